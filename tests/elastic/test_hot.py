"""Hot spares: processes that have run the script up to its loop before anybody is lost (about 20 s)."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from conftest import Runner, WaitUntil

# Spares give way to everything else that runs on the machine.
READY_WITHIN_S = 300
READY = "hot spares are ready"

# Every prologue leaves a line; rank 1 kills itself in step 10 when it may.
SCRIPT = """\
import hashlib, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
with (folder / f"{os.environ['RANK']}.prologue").open("a") as lines:
    lines.write(f"{os.getpid()}\\n")
print("prologue of", os.environ["RANK"])
os.chdir(folder)
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import instep.elastic
dist.init_process_group("instep")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout()))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = instep.elastic.Session(model, optimizer)
batches = [torch.randn(4, 16) for _ in range(20)]
for batch in session.batches(batches):
    with session.step():
        model(batch).square().mean().backward()
        first = os.environ["INSTEP_INCARNATION"] == "0"
        if session.steps == 10 and first and sys.argv[2] == "kill":
            while not Path("go").exists():
                time.sleep(0.02)
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
print("digest", digest)
Path(f"{os.environ['RANK']}.{sys.argv[2]}").write_text(digest)
dist.destroy_process_group()
"""
WITHOUT_SESSION = """\
import os, sys, time
from pathlib import Path
with Path(sys.argv[1], f"{os.environ['RANK']}.prologue").open("a") as lines:
    lines.write(f"{os.getpid()}\\n")
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.02)
"""


def test_a_hot_spare_takes_over_where_the_loop_begins(
    run: Runner, instep: Path, python: Path, forked: Path, tmp_path: Path, wait_until: WaitUntil
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    common = (instep, "run", "--nproc-per-node", "2", "--recover", "step")
    run(*common, "--python", forked, "--spares", "0", script, tmp_path, "calm").expect(0)
    (tmp_path / "0.prologue").unlink()
    (tmp_path / "1.prologue").unlink()
    events, summary = tmp_path / "events", tmp_path / "summary.json"
    told = ("--events", events, "--summary-json", summary)
    job = run.start(*common, "--python", python, "--spares", "hot", *told, script, tmp_path, "kill")
    wait_until(lambda: READY in job.stderr, READY_WITHIN_S, lambda: f"spares\n{job.stderr}")
    before = [(tmp_path / f"{rank}.prologue").read_text().split() for rank in range(2)]
    (tmp_path / "go").touch()
    result = job.wait().expect(0)
    assert (tmp_path / "0.kill").read_text() == (tmp_path / "0.calm").read_text() == (tmp_path / "1.kill").read_text()
    [replaced] = [
        event for line in events.read_text().splitlines() if (event := json.loads(line))["event"] == "rank_replaced"
    ]
    assert (replaced["rank"], replaced["incarnation"], replaced["hot"]) == (1, 1, True)
    assert [len(pids) for pids in before] == [2, 2], "a rank and its spare have each begun the script"
    assert str(replaced["pid"]) == before[1][1], "the process was there before the rank was lost"
    assert result.stdout.count("prologue of 1") == 1, "what the spare prints before it takes over is nobody's output"
    assert result.stdout.count("digest") == 2, "and then it has the rank's"
    goodput = json.loads(summary.read_text())["goodput"]
    assert [rank["seconds"]["unobserved"] for rank in goodput["ranks"]] == [0, 0], "the spare's ledger is the rank's"
    assert 0 < goodput["ettr"] < 1, goodput
    for pid in before[0] + before[1]:
        assert not Path(f"/proc/{pid}").exists(), "no spare outlives its job"


def test_a_script_without_a_session_is_not_run_ahead(
    run: Runner, instep: Path, python: Path, tmp_path: Path, wait_until: WaitUntil
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_SESSION)
    spares = ("--recover", "step", "--spares", "hot", "--preload", "decimal")
    job = run.start(instep, "run", "--nproc-per-node", "1", "--python", python, *spares, script, tmp_path)
    # Its channel, and the job's store, in which it looks for sessions.
    waits = lambda: any(sockets(pid) == 2 for pid in processes(script))  # noqa: E731
    wait_until(waits, READY_WITHIN_S, lambda: f"a spare that waits for sessions\n{job.stderr}")
    time.sleep(1)
    (tmp_path / "go").touch()
    job.wait().expect(0)
    assert len((tmp_path / "0.prologue").read_text().split()) == 1
    wait_until(lambda: not processes(script), 30, lambda: "the end of the spares")


def sockets(pid: int) -> int:
    """How many a process has."""
    found = 0
    for handle in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            found += str(handle.readlink()).startswith("socket:")
    return found


def processes(script: Path) -> list[int]:
    """The processes that have a script on their command line, the launcher's own left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(script).encode() in words and b"run" not in words:
            found.append(int(folder.name))
    return found
