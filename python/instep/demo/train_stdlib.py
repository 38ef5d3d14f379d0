"""The demo's training without torch: a tiny MLP in plain Python, one copy on each rank.

Every rank computes gradients on its share of the samples; the ranks exchange them through the launcher's key-value
store and average them in rank order, so all copies stay equal to the last bit.
"""

import argparse
import json
import math
import os
import random
import sys
import time
from array import array
from pathlib import Path

from instep.demo.events import Reporter
from instep.store import Client

SNAPSHOT = Path("snapshot.json")
SAMPLES = 256
FEATURES = 20
HIDDEN = 8
STEPS_PER_EPOCH = 4
LEARNING_RATE = 0.2
STORE_TIMEOUT_S = 60.0

Sample = tuple[list[float], float]


def dot(left: list[float], right: list[float]) -> float:
    """Sum of products."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def make_samples() -> list[Sample]:
    """Random inputs, with a target the model can learn; the same on every rank."""
    generator = random.Random(0)
    direction = [generator.gauss(0.0, 1.0) for _ in range(FEATURES)]
    inputs = [[generator.gauss(0.0, 1.0) for _ in range(FEATURES)] for _ in range(SAMPLES)]
    return [(features, math.tanh(dot(features, direction) / FEATURES**0.5)) for features in inputs]


class Mlp:
    """20 inputs, 8 tanh units, 1 output. A row holds a unit's input weights and, last, its bias."""

    def __init__(self) -> None:
        """The same random weights on every rank."""
        generator = random.Random(1)
        self.hidden = [[generator.gauss(0.0, 0.2) for _ in range(FEATURES + 1)] for _ in range(HIDDEN)]
        self.output = [generator.gauss(0.0, 0.2) for _ in range(HIDDEN + 1)]

    def weights(self) -> list[float]:
        """Every weight in one flat list."""
        return [weight for row in (*self.hidden, self.output) for weight in row]

    def set_weights(self, flat: list[float]) -> None:
        """The inverse of `weights`."""
        width = FEATURES + 1
        self.hidden = [flat[unit * width : (unit + 1) * width] for unit in range(HIDDEN)]
        self.output = flat[HIDDEN * width :]

    def forward(self, features: list[float]) -> tuple[list[float], float]:
        """Activations of the hidden units, and the prediction."""
        activations = [math.tanh(dot(row, [*features, 1.0])) for row in self.hidden]
        return activations, dot(self.output, [*activations, 1.0])

    def loss(self, samples: list[Sample]) -> float:
        """Mean squared error."""
        return math.fsum((self.forward(features)[1] - target) ** 2 for features, target in samples) / len(samples)

    def gradient(self, samples: list[Sample]) -> list[float]:
        """Gradient of the loss over `samples`, in the order of `weights`."""
        total = [0.0] * len(self.weights())
        for features, target in samples:
            activations, prediction = self.forward(features)
            error = 2.0 * (prediction - target) / len(samples)
            gradient: list[float] = []
            for activation, weight in zip(activations, self.output, strict=False):
                slope = error * weight * (1.0 - activation * activation)
                gradient += [slope * feature for feature in features]
                gradient.append(slope)
            gradient += [error * activation for activation in activations]
            gradient.append(error)
            total = [a + b for a, b in zip(total, gradient, strict=True)]
        return total


class Exchange:
    """Averages a list of floats over all ranks through the store."""

    def __init__(self, client: Client, reporter: Reporter) -> None:
        """Check that this attempt starts on clean keys."""
        self._client = client
        self._rank = reporter.rank
        self._world_size = reporter.world_size
        self._round = 0
        # The launcher promises that an attempt never sees what an earlier one wrote.
        if client.add(f"hello/{self._rank}", 1) != 1:
            sys.exit("error: the store still holds keys of the previous attempt")

    def average(self, values: list[float]) -> list[float]:
        """The mean of every rank's `values`, the same bits everywhere."""
        self._client.set(self._key(self._round, self._rank), array("d", values).tobytes())
        keys = [self._key(self._round, rank) for rank in range(self._world_size)]
        columns = [array("d", payload) for payload in self._client.multi_get(keys)]
        # All ranks have written this round, so all have read the one before: its key can go.
        if self._round > 0:
            self._client.delete(self._key(self._round - 1, self._rank))
        self._round += 1
        return [sum(column) / self._world_size for column in zip(*columns, strict=True)]

    @staticmethod
    def _key(number: int, rank: int) -> str:
        return f"gradient/{number}/{rank}"


def load_snapshot(model: Mlp) -> int:
    """Take the weights of the snapshot, if there is one; return how many epochs are done."""
    if not SNAPSHOT.exists():
        return 0
    saved = json.loads(SNAPSHOT.read_text())
    model.set_weights(saved["MODEL_STATE"])
    return int(saved["EPOCHS_RUN"])


def save_snapshot(model: Mlp, epochs_run: int) -> None:
    """Replace the snapshot in one step, after the bytes have reached the disk."""
    unfinished = SNAPSHOT.with_suffix(".tmp")
    with unfinished.open("w") as file:
        json.dump({"MODEL_STATE": model.weights(), "EPOCHS_RUN": epochs_run}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(SNAPSHOT)


def shard(samples: list[Sample], *, epoch: int, reporter: Reporter) -> list[Sample]:
    """This rank's share of the samples, in an order that changes with every epoch."""
    order = list(samples)
    random.Random(epoch).shuffle(order)
    return order[reporter.rank :: reporter.world_size]


def train(*, total_epochs: int, save_every: int, pace_s: float) -> None:
    """What each rank does."""
    reporter = Reporter.from_environment()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    exchange = Exchange(Client(host, port, timeout=STORE_TIMEOUT_S), reporter)
    samples, model = make_samples(), Mlp()
    epochs_run = load_snapshot(model)
    if epochs_run:
        reporter.report("resumed", epoch=epochs_run)
    for epoch in range(epochs_run, total_epochs):
        next_epoch_at = time.monotonic() + pace_s
        reporter.begin(epoch)
        mine = shard(samples, epoch=epoch, reporter=reporter)
        for step in range(STEPS_PER_EPOCH):
            gradient = exchange.average(model.gradient(mine[step::STEPS_PER_EPOCH]))
            pairs = zip(model.weights(), gradient, strict=True)
            model.set_weights([weight - LEARNING_RATE * slope for weight, slope in pairs])
            if epoch == epochs_run and step == 0:
                reporter.report("step", epoch=epoch)
        if reporter.rank == 0:
            loss = model.loss(samples)
            reporter.report("loss", epoch=epoch + 1, loss=loss)
            sys.stdout.write(f"epoch {epoch:2} | loss {loss:.6f}\n")
            if epoch % save_every == 0 or epoch == total_epochs - 1:
                save_snapshot(model, epoch + 1)
                sys.stdout.write(f"epoch {epoch:2} | snapshot saved\n")
        time.sleep(max(0.0, next_epoch_at - time.monotonic()))
    reporter.report("finished", epoch=total_epochs, loss=model.loss(samples))


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-epochs", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0, help="minimum seconds per epoch, so that you can watch")
    args = parser.parse_args()
    train(total_epochs=args.total_epochs, save_every=args.save_every, pace_s=args.pace)


if __name__ == "__main__":
    main()
