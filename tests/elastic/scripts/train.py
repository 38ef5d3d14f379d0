"""A training that can lose ranks: what it ends with does not depend on that.

    train.py CASE [RANK:STEP:MOMENT[:INCARNATION] ...]

That rank then dies in that step, at a moment of the script (`forward`, `between`, `backward`, `vote`, `update`, `done`;
`ballot`: when it enters a vote, which after the last step of an epoch is the vote at its end)
or, while it recovers from another's death, of the protocol (`reconnect`, `compare`, `send`, `receive`, `rebuild`).
Instead of a moment, what happens after the backward pass: `raise`, `exit` (with code 0), `stop` (SIGSTOP), `hang`,
`compute` (for 8 s). With `start` the rank hangs before its loop begins.

Each rank writes its process to $RESULTS/RANK.pid, and to RANK.ok when it has done a step.

Writes what each rank ended with to $RESULTS/RANK.json: a hash of the weights, the optimizer's state and the buffers,
and the samples of every step that counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import instep.elastic
from instep.elastic import ddp, recovery, transfer

SAMPLES, EPOCHS, BATCH = 64, int(os.environ.get("EPOCHS", "2")), 4


class Numbers(Dataset):
    """Samples with noise, which is drawn when they are loaded."""

    def __len__(self) -> int:  # noqa: D105
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:  # noqa: D105
        return index, torch.linspace(-1, 1, 8) * (index % 7) + random.random() + torch.randn(8) * 0.1


def network(case: str) -> torch.nn.Module:
    torch.manual_seed(1)
    layers: list[torch.nn.Module] = [torch.nn.Linear(8, 16)]
    if "norm" in case:
        layers.append(torch.nn.BatchNorm1d(16))
    if "dropout" in case:
        layers.append(torch.nn.Dropout(0.3))
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(16, 1))


def main() -> None:
    case, deaths = sys.argv[1], [each.split(":") for each in sys.argv[2:]]
    rank, incarnation = int(os.environ["RANK"]), int(os.environ.get("INSTEP_INCARNATION", "0"))
    own = Path(os.environ["RESULTS"]) / f"{rank}.pid"
    if incarnation > 0:
        own.write_text(str(os.getpid()))
    dist.init_process_group("instep", timeout=timedelta(seconds=float(os.environ.get("TIMEOUT", "1800"))))
    extra = dist.new_group(backend="instep")
    model = DistributedDataParallel(
        network(case),
        static_graph="static" in case,
        gradient_as_bucket_view="views" in case,
        find_unused_parameters="unused" in case,
        bucket_cap_mb=0.0001,
    )
    parts = list(model.parameters())
    if "adam" in case:
        optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(parts, lr=0.01)]
    elif "two" in case:
        optimizers = [torch.optim.SGD(parts[:1], lr=0.01), torch.optim.Adam(parts[1:], lr=0.01)]
    else:
        optimizers = [torch.optim.SGD(parts, lr=0.01, momentum=0.9)]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3) if "scaler" in case else None
    session = instep.elastic.Session(
        model.module if "inner" in case else model,
        optimizers,
        scheduler=() if "stranger" in case else scheduler,
        scaler=scaler,
        seed=7,
    )
    dataset = Numbers()
    loader = DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset), num_workers=1 if "workers" in case else 0)
    accumulate = 2 if "accumulate" in case else 1
    ledger: dict[int, list[int]] = {}

    def is_time(moment: str) -> bool:
        now = (rank, session.steps, moment, incarnation)
        times = [(int(which), int(step), when, int(nth[0]) if nth else 0) for which, step, when, *nth in deaths]
        return os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and now in times

    def die(moment: str) -> None:
        """End here, if this is the time."""
        if is_time(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def suffer() -> None:
        """Do what else can go wrong in a step."""
        if is_time("raise"):
            raise RuntimeError("this goes wrong")
        if is_time("exit"):
            sys.exit(0)
        if is_time("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_time("hang"):
            time.sleep(600)
        if is_time("compute"):
            end = time.monotonic() + 8
            while time.monotonic() < end:
                network(case)(torch.randn(4, 8))

    def dies_in(owner: object, name: str, moment: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: object, **options: object) -> object:
            die(moment)
            return original(*arguments, **options)

        setattr(owner, name, wrapped)

    dies_in(recovery.Recovery, "vote", "ballot")
    dies_in(recovery.Recovery, "_reconnect", "reconnect")
    dies_in(recovery.Recovery, "_transfer_state", "compare")
    dies_in(transfer, "send", "send")
    dies_in(transfer, "receive", "receive")
    dies_in(ddp, "rebuild", "rebuild")
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(lambda *_: die("update"))
    extra_sum = torch.zeros(1)
    if is_time("start"):
        time.sleep(600)
    print("training", flush=True)
    for _ in session.epochs(EPOCHS):
        for chosen in session.batches(loader, accumulate=accumulate):
            micro = chosen if accumulate > 1 else [chosen]
            with session.step():
                die("forward")
                time.sleep(float(os.environ.get("PACE", "0")))
                for place, (indices, inputs) in enumerate(micro):
                    with model.no_sync() if place < len(micro) - 1 else torch.enable_grad():
                        loss = model(inputs).square().mean() + (indices * 0).sum()
                        die("between")
                        (scaler.scale(loss) if scaler is not None else loss).backward()
                die("backward")
                suffer()
                if "left" in case:
                    continue
                if "drift" in case:
                    optimizers[0].param_groups[0]["lr"] = 0.01 * (rank + 1)
                extra_sum.fill_(float(rank))
                dist.all_reduce(extra_sum, group=extra)
                die("vote")
                for optimizer in optimizers:
                    if scaler is not None:
                        scaler.step(optimizer)
                    else:
                        optimizer.step()
                if scaler is not None:
                    scaler.update()
                scheduler.step()
                for optimizer in optimizers:
                    optimizer.zero_grad(set_to_none="zeros" not in case)
                die("done")
            if session.redo:
                continue
            if not ledger:
                own.write_text(str(os.getpid()))
                own.with_suffix(".ok").write_text(str(os.getpid()))
            ledger[session.steps] = sorted(int(index) for indices, _ in micro for index in indices)
        die("epoch")
    tensors = [*model.state_dict().values()]
    for optimizer in optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    digest = hashlib.sha256(
        b"".join(bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()) for tensor in tensors)
    )
    result = {
        "digest": digest.hexdigest(),
        "steps": session.steps,
        "ledger": ledger,
        "incarnation": incarnation,
        "rates": [optimizer.param_groups[0]["lr"] for optimizer in optimizers],
        "scale": scaler.get_scale() if scaler is not None else None,
        "sum": extra_sum.item(),
    }
    (Path(os.environ["RESULTS"]) / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
