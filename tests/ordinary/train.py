"""A training script in which one rank fails in an ordinary way.

train.py FRAMEWORK BACKEND FAILURE TIMEOUT_S
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 6
FAILS_AT = 3  # step
WIDTH = 8


def wants_to_fail() -> bool:
    """Whether this is the rank that fails: one in the middle, of two the second."""
    return int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) // 2


class FailingBackward(torch.autograd.Function):
    """Raises on the way back if it is told to."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, values: torch.Tensor, fails: bool) -> torch.Tensor:
        context.fails = fails  # type: ignore[attr-defined]
        return values.clone()

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if context.fails:  # type: ignore[attr-defined]
            raise RuntimeError("the backward pass went wrong")
        return gradient, None


class Net(nn.Module):
    """Two layers; what fails in it is set from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.fails_forward = self.fails_backward = self.fails_in_hook = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.fails_forward:
            raise ValueError("the forward pass went wrong")
        middle = FailingBackward.apply(self.first(values), self.fails_backward)
        if middle.requires_grad:
            middle.register_hook(self.hook)
        return self.second(middle)

    def hook(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.fails_in_hook:
            raise LookupError("the hook went wrong")
        return gradient


class Batches(Dataset[torch.Tensor]):
    """Random batches, one of which cannot be read if so wanted."""

    def __init__(self, broken: int | None) -> None:
        self.broken = broken

    def __len__(self) -> int:
        """One batch for each step."""
        return STEPS

    def __getitem__(self, step: int) -> torch.Tensor:
        """The batch of a step."""
        if step == self.broken:
            raise OSError(f"batch {step} cannot be read")
        return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))


def batches(failure: str) -> Iterator[torch.Tensor]:
    """What is trained on; with a worker process only where that is what fails."""
    fails = failure == "data loader" and wants_to_fail()
    workers = 1 if failure == "data loader" else 0
    return iter(DataLoader(Batches(FAILS_AT if fails else None), batch_size=None, num_workers=workers))


def kill_itself(number: signal.Signals) -> None:
    """Get a signal, and stay where it ends nothing at once."""
    if number is signal.SIGINT:  # which what a shell starts in the background ignores
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), number)
    signal.pause()


def never_come() -> None:
    """Be there and take no part."""
    while True:
        signal.pause()


# What a rank does at the beginning of its step, before or instead of it.
AT_A_STEP: dict[str, Callable[[], object]] = {
    "out of memory": lambda: torch.empty(1 << 50),
    "exit 0": lambda: sys.exit(0),
    "exit 1": lambda: sys.exit(1),
    "os._exit 3": lambda: os._exit(3),
    "SIGTERM": lambda: kill_itself(signal.SIGTERM),
    "SIGKILL": lambda: kill_itself(signal.SIGKILL),
    "SIGSTOP": lambda: kill_itself(signal.SIGSTOP),
    "mismatch": lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64), dist.ReduceOp.MAX),
    "interrupt": lambda: kill_itself(signal.SIGINT),
}


def wrong_batch(failure: str, batch: torch.Tensor) -> torch.Tensor:
    """The batch, as a rank that fails sees it."""
    if failure == "wrong shape":
        return batch[:, :-1]
    return batch * float("nan") if failure == "nan" else batch


def prepared(framework: str, net: Net) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model as the framework wants it."""
    if framework == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(net)
    if framework == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (net.first, net.second):
            fully_shard(layer, mesh=mesh)
        return fully_shard(net, mesh=mesh)
    return net


def train(framework: str, failure: str) -> None:
    """A few steps, in the middle of which one rank fails."""
    torch.manual_seed(0)
    net = Net()
    model = prepared(framework, net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, batch in enumerate(batches(failure)):
        if step == FAILS_AT and wants_to_fail():
            net.fails_forward = failure == "forward"
            net.fails_backward = failure == "backward"
            net.fails_in_hook = failure == "hook"
            AT_A_STEP.get(failure, lambda: None)()
            batch = wrong_batch(failure, batch)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        assert not loss.isnan(), f"the loss is {loss.item()} at step {step}"
        loss.backward()
        if framework == "plain":
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()


def train_with_lightning(backend: str, failure: str, timeout: timedelta) -> None:
    """The same, where Lightning has the loop."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: torch.Tensor, step: int) -> torch.Tensor:
            if step == FAILS_AT and wants_to_fail():
                self.net.fails_forward = failure == "forward"
                self.net.fails_backward = failure == "backward"
                self.net.fails_in_hook = failure == "hook"
                AT_A_STEP.get(failure, lambda: None)()
                batch = wrong_batch(failure, batch)
            loss = self.net(batch).square().mean()
            assert not loss.isnan(), f"the loss is {loss.item()} at step {step}"
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    fails = failure == "data loader" and wants_to_fail()
    workers = 1 if failure == "data loader" else 0
    loader = DataLoader(Batches(FAILS_AT if fails else None), batch_size=None, num_workers=workers)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend=backend, timeout=timeout),
        max_epochs=1,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader)


def main(framework: str, backend: str, failure: str, timeout_s: str) -> None:
    """Train as the arguments say."""
    torch.set_num_threads(1)
    if failure == "never comes" and wants_to_fail():
        never_come()
    timeout = timedelta(seconds=float(timeout_s))
    if framework == "lightning":
        train_with_lightning(backend, failure, timeout)
        return
    dist.init_process_group(backend, timeout=timeout)
    train(framework, failure)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
