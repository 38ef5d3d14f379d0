"""`instep run --preload`: restarts from interpreters that have imported ahead, and every way in which that can fail.

What a woken spare must be, a fresh interpreter, is checked by a portrait (scripts/portrait.py) that the same script
makes of itself in a cold round and in a warm one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import Runner, Running, WaitUntil

SCRIPTS = Path(__file__).resolve().parent / "scripts"
# Spares give way to everything else that runs on the machine.
READY_WITHIN_S = 300
READY = "skips the imports"
# Prints one line a round: whether the module was there before it was imported, and the round.
PLAIN = """
import os, sys, time
from pathlib import Path
warm = "decimal" in sys.modules
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"round {count} rank {os.environ['RANK']} {'warm' if warm else 'cold'} {os.getpid()}", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


def spares_are_ready(job: Running, wait_until: WaitUntil, times: int = 1) -> None:
    wait_until(lambda: job.stderr.count(READY) >= times, READY_WITHIN_S, lambda: f"spares\n{job.stdout}\n{job.stderr}")


def lines(job: Running) -> list[str]:
    return [line for line in job.stdout.splitlines() if line.startswith("round ")]


def pid_of(job: Running, line: int) -> int:
    return int(lines(job)[line].split()[-1])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN)
    return path


def portraits(
    run: Runner, command: list[str | Path], folder: Path, wait_until: WaitUntil, env: dict[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Run a job whose first round is cold and whose second is warm; what both were like, and the exit status."""
    job = run.start(*command, env=env, cwd=folder)
    wait_until((folder / "0.json").exists, 60, lambda: f"the first round\n{job.stdout}\n{job.stderr}")
    spares_are_ready(job, wait_until)
    (folder / "go").touch()
    status = job.wait().status
    cold, warm = (json.loads((folder / f"{count}.json").read_text()) for count in range(2))
    return cold, warm, status


@pytest.mark.parametrize("form", ["script", "module", "redirected"])
def test_a_woken_spare_is_like_a_fresh_interpreter(
    run: Runner, instep: Path, python: Path, tmp_path: Path, wait_until: WaitUntil, form: str
) -> None:
    (tmp_path / "parts").mkdir()
    shutil.copy(SCRIPTS / "portrait.py", tmp_path / "parts" / "portrait.py")
    program: list[str | Path] = {
        "script": ["parts/portrait.py"],
        "module": ["-m", "parts.portrait"],
        "redirected": ["--redirects", "3", "--log-dir", tmp_path / "logs", tmp_path / "parts" / "portrait.py"],
    }[form]
    options = ["--max-restarts", "1", "--preload", "decimal", "--python", python]
    command: list[str | Path] = [instep, "run", *options, *program, tmp_path]
    cold, warm, status = portraits(run, command, tmp_path, wait_until)
    assert status == 0
    assert not cold.pop("preloaded")
    assert warm.pop("preloaded"), "the second round did not come from a spare"
    assert warm["remains"] == []
    for name, value in cold.items():
        assert warm[name] == value, name


def test_what_the_site_does_at_start_is_done(
    run: Runner, instep: Path, python: Path, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """A `sitecustomize` of the user's runs, and PYTHONPATH is what it was."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os\nos.environ['CUSTOMIZED'] = 'yes'\n")
    options = ["--max-restarts", "1", "--preload", "decimal", "--python", python]
    command: list[str | Path] = [instep, "run", *options, SCRIPTS / "portrait.py", tmp_path]
    cold, warm, status = portraits(run, command, tmp_path, wait_until, {"PYTHONPATH": str(tmp_path / "site")})
    assert status == 0
    assert warm.pop("preloaded")
    assert warm["environment"]["CUSTOMIZED"] == "yes"
    assert not cold.pop("preloaded")
    assert warm == cold


@pytest.mark.parametrize(("end", "code"), [("raise", 1), ("exit7", 7)])
def test_a_woken_spare_ends_like_a_fresh_interpreter(
    run: Runner, instep: Path, python: Path, tmp_path: Path, wait_until: WaitUntil, end: str, code: int
) -> None:
    options = ["--max-restarts", "1", "--preload", "decimal", "--python", python, "--propagate-exit-code"]
    logs = ["--redirects", "3", "--log-dir", tmp_path / "logs"]
    command: list[str | Path] = [instep, "run", *options, *logs, SCRIPTS / "portrait.py", tmp_path, end]
    _, warm, status = portraits(run, command, tmp_path, wait_until)
    assert warm["preloaded"]
    assert status == code
    for name in ("stdout", "stderr"):
        [first] = tmp_path.glob(f"logs/*/attempt_0/0/{name}.log")
        [second] = tmp_path.glob(f"logs/*/attempt_1/0/{name}.log")
        assert first.read_text() == second.read_text()
    assert ("ValueError: as told" in second.read_text()) == (end == "raise")


def test_a_second_kill_does_not_wait_for_spares(
    run: Runner, instep: Path, python: Path, tmp_path: Path, script: Path, wait_until: WaitUntil
) -> None:
    """Warm, then cold because no spare is ready yet, then warm again; nothing is left at the end."""
    options = ["--nproc-per-node", "2", "--max-restarts", "5", "--preload", "decimal", "--python", python]
    job = run.start(instep, "run", *options, script, tmp_path / "stop")
    spares_are_ready(job, wait_until)
    for round_number, how in ((1, "warm"), (2, "cold")):
        os.kill(pid_of(job, -1), signal.SIGKILL)
        wait_until(lambda count=2 * round_number + 2: len(lines(job)) == count, 30, lambda: job.stderr)
        assert all(how in line for line in lines(job)[-2:]), lines(job)
    spares_are_ready(job, wait_until, 2)
    os.kill(pid_of(job, -1), signal.SIGKILL)
    wait_until(lambda: len(lines(job)) == 8, 30, lambda: job.stderr)
    assert all("round 3" in line and "warm" in line for line in lines(job)[-2:]), lines(job)
    (tmp_path / "stop").touch()
    job.wait().expect(0)
    assert not job.left_behind()


def test_spares_do_not_outlive_a_killed_launcher(
    run: Runner, instep: Path, python: Path, tmp_path: Path, script: Path, wait_until: WaitUntil
) -> None:
    options = ["--nproc-per-node", "2", "--max-restarts", "5", "--preload", "decimal", "--python", python]
    job = run.start(instep, "run", *options, script, tmp_path / "stop")
    spares_are_ready(job, wait_until)
    # The guardian, two workers, two spares.
    assert len(job.children()) == 5
    job.send_signal(signal.SIGKILL)
    wait_until(lambda: not job.left_behind(), 10, lambda: str(job.left_behind()))


def test_a_lost_spare_is_reported_and_made_again(
    run: Runner, instep: Path, python: Path, tmp_path: Path, script: Path, wait_until: WaitUntil
) -> None:
    options = ["--max-restarts", "1", "--preload", "decimal", "--python", python]
    job = run.start(instep, "run", *options, script, tmp_path / "stop")
    spares_are_ready(job, wait_until)
    workers = {pid_of(job, 0)}
    [spare] = [
        child for child in job.children() if script.name in " ".join(child.cmdline()) and child.pid not in workers
    ]
    spare.kill()
    wait_until(lambda: "is lost, starting another" in job.stderr, 30, lambda: job.stderr)
    spares_are_ready(job, wait_until, 2)
    psutil.Process(workers.pop()).kill()
    wait_until(lambda: len(lines(job)) == 2, 30, lambda: job.stderr)
    assert "warm" in lines(job)[1]
    (tmp_path / "stop").touch()
    job.wait().expect(0)


def test_a_module_that_is_not_there_costs_only_a_warning(
    run: Runner, instep: Path, python: Path, tmp_path: Path, script: Path, wait_until: WaitUntil
) -> None:
    options = ["--max-restarts", "1", "--preload", "decimal,no_such_module", "--python", python]
    job = run.start(instep, "run", *options, script, tmp_path / "stop")
    wait_until(lambda: "--preload has no effect" in job.stderr, 30, lambda: job.stderr)
    os.kill(pid_of(job, 0), signal.SIGKILL)
    wait_until(lambda: len(lines(job)) == 2, 30, lambda: job.stderr)
    assert "round 1 rank 0 cold" in lines(job)[1]
    (tmp_path / "stop").touch()
    result = job.wait().expect(0)
    assert "cannot import no_such_module: ModuleNotFoundError" in result.stderr
    assert result.stderr.count("--preload has no effect") == 1


def test_an_interpreter_that_cannot_be_held_up_never_runs_the_script_unasked(
    run: Runner, instep: Path, python: Path, tmp_path: Path, script: Path, wait_until: WaitUntil
) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {python} "$@"\n')
    wrapper.chmod(0o755)
    options = ["--max-restarts", "1", "--preload", "decimal", "--python", wrapper]
    job = run.start(instep, "run", *options, script, tmp_path / "stop")
    wait_until(lambda: "ignores PYTHONPATH" in job.stderr, 30, lambda: job.stderr)
    (tmp_path / "stop").touch()
    job.wait().expect(0)
    assert len(lines(job)) == 1


def test_bad_input(run: Runner, instep: Path, script: Path, tmp_path: Path) -> None:
    wrong = run(instep, "run", "--max-restarts", "1", "--preload", "torch vision", script).expect(1)
    assert '"torch vision" is not the name of a module' in wrong.stderr
    assert "hint: use comma-separated module names" in wrong.stderr
    both = run(instep, "run", "--no-python", "--preload", "torch", "true").expect(1)
    assert "--preload and --no-python contradict each other" in both.stderr
    (tmp_path / "stop").touch()
    useless = run(instep, "run", "--preload", "torch", script, tmp_path / "stop").expect(0)
    assert "--preload has no effect with --max-restarts 0" in useless.stderr


TRAINING = """
import os, sys, time
warm = "torch" in sys.modules
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    assert not torch.cuda.is_initialized()
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    how = "warm" if warm else "cold"
    print(f"round {count} {how} sum {total.item():.0f} {torch.get_num_threads()} {os.getpid()}", flush=True)
    if count == "1":
        raise ValueError("in the warm round")
    time.sleep(600)

main()
"""


def test_torch_trains_in_a_woken_spare(
    run: Runner, instep: Path, python: Path, tmp_path: Path, wait_until: WaitUntil
) -> None:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    options = ["--nproc-per-node", "2", "--max-restarts", "1", "--preload", "torch", "--python", python]
    job = run.start(instep, "run", *options, script)
    wait_until(lambda: len(lines(job)) == 2, 60, lambda: job.stderr)
    spares_are_ready(job, wait_until)
    os.kill(pid_of(job, 0), signal.SIGKILL)
    result = job.wait().expect(1)
    assert all("round 1 warm sum 3 1 " in line for line in lines(job)[2:]), result.stdout
    assert "in the warm round" in result.stderr
