"""What `instep drill` asks of sessions: that a rank ends at a certain place of a step, that every step is done twice.

An order is a file in the folder of the flight recorders, `drill-RANK`, with the name of a place. Who reaches that place
removes the order and ends, as if it had been killed there.
"""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path

import torch

FORWARD, BACKWARD, VOTE, OPTIMIZER, TRANSFER = "forward", "backward", "vote", "optimizer", "transfer"

# Any of the places that have the same name, not always the first.
_chance = random.Random()


def replays() -> bool:
    """Whether every step is to be done twice."""
    return "replay" in _wanted()


def _wanted() -> list[str]:
    return os.environ.get("INSTEP_DRILL", "").split(",")


def _file(kind: str) -> Path | None:
    folder, rank = os.environ.get("INSTEP_RECORDER_DIR"), os.environ.get("RANK")
    return Path(folder, f"{kind}-{rank}") if folder and rank else None


@functools.cache  # asked first when it is known which rank this is
def _order() -> Path | None:
    return _file("drill") if "orders" in _wanted() else None


def reached(place: str) -> None:
    """End here, if this is where this rank is to end."""
    order = _order()
    if order is None:
        return
    try:
        ordered = order.read_text() == place
    except FileNotFoundError:
        return
    if ordered:
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def watch(parameters: Iterable[torch.nn.Parameter], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Notice when gradients are computed and weights have changed, if orders may come."""
    if _order() is None:
        return
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_hook(lambda _: reached(BACKWARD) if _chance.random() < 0.5 else None)
    for optimizer in optimizers:
        optimizer.register_step_post_hook(lambda *_: reached(OPTIMIZER))


def replayed(steps: int) -> None:
    """Say how many steps were done twice."""
    path = _file("replayed")
    if path is not None:
        path.write_text(str(steps))
