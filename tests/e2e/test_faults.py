"""What a user sees when something breaks: killed ranks and launchers, Ctrl-C, full disks, lost readers.

Workers are real processes: scripts/puppet.py where torch would only cost time, torch and gloo where it matters.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conftest import Runner, Running, WaitUntil

SCRIPTS = Path(__file__).resolve().parent / "scripts"
# Within this time what has to end has ended, also on a busy machine; workers that ignore signals are given longer.
GONE_WITHIN_S = 20.0


class Job:
    """One `instep run` on this machine, and the faults that can be done to it."""

    def __init__(self, running: Running, folder: Path, wait_until: WaitUntil) -> None:
        self.running = running
        self.folder = folder
        self._wait_until = wait_until

    def told(self) -> str:
        return f"\n--- stdout\n{self.running.stdout}\n--- stderr\n{self.running.stderr}"

    def wait_for(self, *names: str, timeout: float = 30) -> None:
        """Wait until the workers have left these files."""
        missing = [self.folder / name for name in names]
        self._wait_until(
            lambda: all(path.exists() for path in missing),
            timeout,
            lambda: f"{[path.name for path in missing if not path.exists()]}{self.told()}",
        )

    def is_alive(self, name: str) -> bool:
        """Whether the process lives whose id a worker left in this file."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(int((self.folder / name).read_text())).status() != psutil.STATUS_ZOMBIE)
        return False

    def kill_rank(self, rank: int) -> None:
        [worker] = [child for child in self.running.children() if child.environ().get("RANK") == str(rank)]
        worker.kill()

    def kill_launcher(self) -> None:
        self.running.send_signal(signal.SIGKILL)
        self.running.wait(5)

    def press_control_c(self) -> None:
        """What a terminal does: the whole foreground process group gets the signal."""
        os.killpg(self.running.pid, signal.SIGINT)

    def is_gone(self, within: float = GONE_WITHIN_S) -> None:
        """Wait until no process of the job is left."""
        __tracebackhide__ = True
        self._wait_until(
            lambda: not self.running.left_behind(),
            within,
            lambda: f"these to end: {[command_line(process) for process in self.running.left_behind()]}{self.told()}",
        )


def command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())}"
    return f"{process.pid} (gone)"


class Launch:
    """Starts jobs of puppets: `launch("--nproc-per-node 2", "ready", "hold")`."""

    def __init__(
        self, instep: Path, python: Path, forked: Path, folder: Path, run: Runner, wait_until: WaitUntil
    ) -> None:
        self.instep = instep
        self.folder = folder
        self.environment = {"VIRTUAL_ENV": str(python.parent.parent), "PYTHON_EXEC": None, "OMP_NUM_THREADS": "1"}
        self.puppet = (str(SCRIPTS / "puppet.py"), str(folder))
        self._python = python
        self._forked = forked
        self._run = run
        self._wait_until = wait_until

    def command(self, options: str, *program: str) -> Job:
        running = self._run.start(self.instep, "run", *shlex.split(options), *program, env=self.environment)
        return Job(running, self.folder, self._wait_until)

    def script(self, options: str, name: str, *arguments: str) -> Job:
        """One that trains, and so finds torch imported."""
        return self.command(f"--python {self._forked} {options}", str(SCRIPTS / name), *arguments)

    def __call__(self, options: str, *steps: str) -> Job:
        return self.command(options, *self.puppet, *steps)

    def below_a_shell(self, options: str, *steps: str) -> Job:
        """Puppets that are children of the workers, which are shells and wait for them."""
        shell = ("bash", "-c", '"$@"; exit $?', "worker", str(self._python), *self.puppet)
        return self.command(f"--no-python {options}", *shell, *steps)


@pytest.fixture
def launch(instep: Path, python: Path, forked: Path, tmp_path: Path, run: Runner, wait_until: WaitUntil) -> Launch:
    return Launch(instep, python, forked, tmp_path, run, wait_until)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=24", "tiny", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_killed_rank_restarts_the_job_which_goes_on_from_its_snapshot(launch: Launch, wait_until: WaitUntil) -> None:
    job = launch.script("--nproc-per-node 2 --max-restarts 1", "counting.py", str(launch.folder), "120")
    snapshot = launch.folder / "snapshot.json"
    wait_until(lambda: '"steps": 3' in (snapshot.read_text() if snapshot.exists() else ""), 60, job.told)
    job.kill_rank(1)
    shown = job.running.wait().expect(0)
    starts = [line.split() for line in shown.stdout.splitlines() if " from step " in line]
    assert sorted((words[1], words[3]) for words in starts) == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")], shown
    assert all(int(words[6]) >= 3 for words in starts if words[3] == "1"), shown
    assert sorted(line for line in shown.stdout.splitlines() if " done" in line) == ["rank 0 done", "rank 1 done"]
    assert "rank 1 on" in shown.stderr and "was killed by SIGKILL; restart 1 of 1" in shown.stderr, shown
    assert "FAILED" not in shown.stderr, shown
    job.is_gone()


def test_killed_launcher_takes_workers_along_that_ignore_sigterm(launch: Launch) -> None:
    job = launch("--nproc-per-node 2", "ignore SIGTERM SIGINT SIGHUP", "child", "ready", "hold")
    job.wait_for("0.0.ready", "0.1.ready", "0.0.child", "0.1.child")
    job.kill_launcher()
    job.is_gone()


def test_killed_launcher_takes_children_of_shells_along(launch: Launch) -> None:
    job = launch.below_a_shell("--nproc-per-node 2", "ignore SIGTERM", "child", "ready", "hold")
    job.wait_for("0.0.ready", "0.1.ready")
    job.kill_launcher()
    job.is_gone()


@pytest.mark.parametrize("started", [0, 1, 8, 31])
def test_launcher_killed_while_it_starts_workers_leaves_none(
    launch: Launch, wait_until: WaitUntil, started: int
) -> None:
    # Each worker is a shell whose child is there within a millisecond or two: others are still being started.
    shell = f"sleep 60 & echo $! > {shlex.quote(str(launch.folder))}/$RANK.child; wait"
    job = launch.command("--no-python --nproc-per-node 32", "sh", "-c", shell)
    wait_until((launch.folder / f"{started}.child").exists, 10, job.told)
    job.kill_launcher()
    job.is_gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signal_to_the_launcher_reaches_the_workers(launch: Launch, number: signal.Signals) -> None:
    job = launch("--nproc-per-node 2", f"answer {number.name}", "ready", "hold")
    job.wait_for("0.0.ready", "0.1.ready")
    job.running.send_signal(number)
    shown = job.running.wait(10).expect(1)
    job.wait_for(f"0.0.{number.name}", f"0.1.{number.name}", timeout=0)
    assert f"received {number.name}: forwarding it to the workers" in shown.stderr, shown
    assert "Root cause" not in shown.stderr, shown
    job.is_gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_that_is_not_handled_ends_the_launcher_after_the_output(launch: Launch, number: signal.Signals) -> None:
    # Less than what fits into a pipe: the worker has written all of it when it sends the signal.
    steps = ("child", "crowd 500", "complain the last words", f"betray {number.name}", "hold")
    job = launch("--signals-to-handle SIGINT", *steps)
    shown = job.running.wait(10).expect(-number)
    assert shown.stdout.count("rank 0 line") == 500, shown
    assert "the last words" in shown.stderr, shown
    job.is_gone()


def test_signal_that_is_ignored_does_not_end_the_launcher(launch: Launch, run: Runner) -> None:
    # As under nohup, for a signal that is not among those to handle.
    start = ("sh", "-c", 'trap "" USR1; exec "$@"', "ignoring", str(launch.instep), "run")
    steps = ("betray SIGUSR1", "say still here")
    shown = run(*start, *launch.puppet, *steps, env=launch.environment).expect(0)
    assert "still here" in shown.stdout, shown


def test_control_c_ends_workers_that_do_not_care_for_signals(launch: Launch) -> None:
    job = launch("--nproc-per-node 2", "child", "ready", "hold")
    job.wait_for("0.0.ready", "0.1.ready")
    job.press_control_c()
    # Python may lose the exception in which a signal arrives; then the worker is killed after the grace period of 30 s.
    shown = job.running.wait(45).expect(1)
    assert "received SIGINT" in shown.stderr, shown
    job.is_gone()


def test_second_control_c_kills_at_once(launch: Launch, wait_until: WaitUntil) -> None:
    job = launch("--nproc-per-node 2", "ignore SIGINT SIGTERM", "child", "ready", "hold")
    job.wait_for("0.0.ready", "0.1.ready")
    job.press_control_c()
    wait_until(lambda: "received SIGINT" in job.running.stderr, 5, job.told)
    assert job.running.poll() is None, job.told()
    job.press_control_c()
    shown = job.running.wait(GONE_WITHIN_S).expect(1)
    assert "SIGINT again: killing the workers" in shown.stderr, shown
    job.is_gone()


def test_worker_that_ignores_sigterm_is_killed_after_the_shutdown_timeout(launch: Launch) -> None:
    job = launch("--nproc-per-node 2 --shutdown-timeout 1", "0: ignore SIGTERM", "ready", "hold")
    job.wait_for("0.0.ready", "0.1.ready")
    asked = time.monotonic()
    job.running.send_signal(signal.SIGTERM)
    shown = job.running.wait(GONE_WITHIN_S).expect(1)
    assert time.monotonic() - asked > 0.9, shown
    assert "1 workers ignore the signal to stop: killing them" in shown.stderr, shown
    job.is_gone()


@pytest.mark.soak
def test_worker_that_ignores_sigterm_is_killed_half_a_minute_after_its_peer_failed(launch: Launch) -> None:
    job = launch("--nproc-per-node 2", "0: ignore SIGTERM", "ready", "await 2", "1: exit 3", "hold")
    shown = job.running.wait(60).expect(1)
    assert 29 < shown.seconds < 40, shown
    assert "workers ignore the signal to stop: killing them" in shown.stderr, shown
    assert "exitcode  : 3" in shown.stderr, shown
    job.is_gone()


def test_rank_that_comes_late_after_a_restart_is_waited_for(launch: Launch) -> None:
    job = launch.script("--nproc-per-node 2 --max-restarts 1", "late_rank.py")
    shown = job.running.wait().expect(0)
    done = sorted(line for line in shown.stdout.splitlines() if line.endswith("done"))
    assert done == ["rank 0 attempt 1 done", "rank 1 attempt 1 done"], shown


@pytest.mark.soak
def test_rank_that_comes_late_after_a_restart_makes_torchrun_hang(
    python: Path, run: Runner, wait_until: WaitUntil
) -> None:
    """Why every attempt gets clean keys here: the same script under torchrun reads the dead attempt's addresses."""
    options = shlex.split("--nproc-per-node 2 --max-restarts 1")
    job = run.start(python, "-m", "torch.distributed.run", *options, SCRIPTS / "late_rank.py")
    # The script gives up after ten seconds, if it comes to that; a minute is enough to know.
    with contextlib.suppress(pytest.fail.Exception):
        wait_until(lambda: job.poll() is not None, 60)
    assert job.poll() != 0, job.stderr
    assert "attempt 1 done" not in job.stdout


def test_job_out_of_restarts_says_what_failed_first(launch: Launch) -> None:
    steps = ("environment", "ready", "await 3", "1: complain no more data", "1: exit 3", "hold")
    job = launch("--nproc-per-node 3 --max-restarts 2", *steps)
    shown = job.running.wait(20).expect(1)
    seen = sorted(path.name for path in launch.folder.glob("*.environment"))
    assert seen == [f"{attempt}.{rank}.environment" for attempt in range(3) for rank in range(3)]
    before, root, cause = shown.stderr.partition("Root cause (first failure):\n")
    assert root, shown
    assert "exited with code 3; restart 1 of 2" in before, shown
    assert "exited with code 3; restart 2 of 2" in before, shown
    assert "exited with code 3; all 2 restarts are used up" in before, shown
    cause, then, rest = cause.partition("Then:\n")
    assert "rank      : 1 (local_rank: 1)" in cause and "exitcode  : 3 " in cause and "no more data" in cause, shown
    assert then and "ranks 0,2 stopped by instep (SIGTERM)" in rest, shown
    job.is_gone()


def test_failing_worker_stops_its_peers_promptly(launch: Launch) -> None:
    job = launch("--nproc-per-node 4", "ready", "await 4", "2: see go", "2: exit 5", "hold")
    job.wait_for(*(f"0.{rank}.ready" for rank in range(4)))
    (launch.folder / "go").touch()
    job.running.wait(GONE_WITHIN_S).expect(1)
    job.is_gone()


def test_children_of_a_failed_worker_end_before_the_restart(launch: Launch) -> None:
    job = launch("--nproc-per-node 2 --max-restarts 1", "@0: child", "ready", "await 2", "1@0: exit 3", "see go")
    job.wait_for("1.0.ready", "1.1.ready", "0.0.child", "0.1.child")
    assert not job.is_alive("0.0.child")
    assert not job.is_alive("0.1.child")
    (launch.folder / "go").touch()
    job.running.wait(10).expect(0)


def test_children_of_a_failed_worker_end_with_the_job(launch: Launch) -> None:
    job = launch("--nproc-per-node 2", "child", "ready", "await 2", "1: exit 3", "hold")
    job.running.wait(10).expect(1)
    job.is_gone()


def test_script_that_dies_before_it_meets_the_others(launch: Launch) -> None:
    job = launch.script("--nproc-per-node 2", "dies_early.py")
    shown = job.running.wait().expect(1)
    _, root, cause = shown.stderr.partition("Root cause (first failure):\n")
    assert root and "rank      : 1 (local_rank: 1)" in cause, shown
    assert "FileNotFoundError: no such data set: /data/train" in cause, shown
    assert "rank 0 stopped by instep (SIGTERM)" in cause, shown
    job.is_gone()


def test_full_disk_for_logs_does_not_disturb_the_job(launch: Launch, tiny_disk: Path) -> None:
    job = launch(f"--nproc-per-node 2 --log-dir {tiny_disk} --tee 3", "crowd 2000")
    shown = job.running.wait(30).expect(0)
    for rank in range(2):
        lines = [line for line in shown.stdout.splitlines() if line.startswith(f"[default{rank}]:rank {rank} line ")]
        assert [int(line.split()[3].rstrip("x")) for line in lines] == list(range(2000))


def test_full_disk_for_logs_is_said(launch: Launch, tiny_disk: Path) -> None:
    job = launch(f"--nproc-per-node 2 --log-dir {tiny_disk} --tee 1", "crowd 2000")
    shown = job.running.wait(30).expect(0)
    warnings = [line for line in shown.stderr.splitlines() if line.startswith("warning: ")]
    assert any("No space left on device" in line for line in warnings), shown.stderr
    assert len(warnings) <= 2, "once for each log at most"


def test_full_disk_for_logs_does_not_prevent_a_restart(launch: Launch, tiny_disk: Path) -> None:
    # The first attempt takes the last entries of the file system.
    fill = [tiny_disk / f"file{number}" for number in range(24)]
    job = launch(
        f"--nproc-per-node 2 --max-restarts 1 --log-dir {tiny_disk} --tee 3", "ready", "@0: see go", "1@0: exit 3"
    )
    job.wait_for("0.0.ready", "0.1.ready")
    with contextlib.suppress(OSError):
        for path in fill:
            path.touch()
    (launch.folder / "go").touch()
    job.running.wait(10).expect(0)
    job.wait_for("1.0.ready", "1.1.ready", timeout=0)


def test_full_disk_for_logs_does_not_change_the_exit_code_of_a_failure(launch: Launch, tiny_disk: Path) -> None:
    job = launch(
        f"--nproc-per-node 2 --propagate-exit-code --log-dir {tiny_disk} --tee 3", "crowd 2000", "1: exit 7", "hold"
    )
    job.running.wait(10).expect(7)


def test_reader_that_goes_away_does_not_end_the_job(launch: Launch, run: Runner) -> None:
    command = [str(launch.instep), "run", "--nproc-per-node", "2", *launch.puppet, "crowd 5000", "ready", "exit 0"]
    pipeline = 'set -o pipefail; "$@" | head -1'
    shown = run("bash", "-c", pipeline, "pipeline", *command, env=launch.environment, timeout=20).expect(0)
    assert shown.stdout.count("\n") == 1
    assert sorted(path.name for path in launch.folder.glob("*.ready")) == ["0.0.ready", "0.1.ready"]


@pytest.mark.soak
def test_hundred_restarts_leak_neither_files_nor_processes(launch: Launch) -> None:
    steps = ("count", "ready", "await 2", "1@0-99: exit 3", "@0-99: hold", "see go")
    job = launch("--nproc-per-node 2 --max-restarts 100 --tee 3", *steps)
    job.wait_for("100.0.ready", "100.1.ready", timeout=120)
    counts = [int((launch.folder / f"{attempt}.1.files").read_text()) for attempt in range(101)]
    assert max(counts[1:]) == min(counts[1:]) == counts[0], counts
    # Two workers and the guardian.
    assert len(job.running.left_behind()) == 3, [command_line(process) for process in job.running.left_behind()]
    (launch.folder / "go").touch()
    job.running.wait(10).expect(0)
    job.is_gone()
