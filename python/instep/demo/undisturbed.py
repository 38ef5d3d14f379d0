"""The demo's training once more, without a kill: what its loss would have been."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from instep.demo.events import EVENTS_FILE, WAIT_TO_BE_KILLED, EventReader

DEADLINE_S = 300.0


def losses(command: list[str | Path], folder: Path, environment: Mapping[str, str]) -> dict[int, float]:
    """Run a job in a folder of its own; give the loss after each epoch, as far as it came."""
    folder.mkdir()
    quiet = {name: value for name, value in {**os.environ, **environment}.items() if name != WAIT_TO_BE_KILLED}
    subprocess.run(
        command,
        cwd=folder,
        env=quiet,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=DEADLINE_S,
        check=False,
    )
    return {event.epoch: event.loss for event in EventReader(folder / EVENTS_FILE).new_events() if event.kind == "loss"}
