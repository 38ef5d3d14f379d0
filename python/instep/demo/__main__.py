"""Runs the demo: starts the job, kills a rank, checks that the job recovered, then searches; says how it went.

`instep demo` names itself in INSTEP_BINARY, so that the binary that was called is the one that runs the job.
Exit status: 0 when everything went as announced, 1 when something did not, 130 after Ctrl-C.
"""

import argparse
import contextlib
import importlib.util
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from instep import _binary
from instep.demo.console import Console
from instep.demo.events import EVENTS_FILE, WAIT_S, WAIT_TO_BE_KILLED, Event, EventReader
from instep.demo.search import RANKS, SLOTS, TRIALS, Outcome, Search, SearchError
from instep.demo.tracking import DATABASE, Client, OwnMaster, Run, TrackingError
from instep.demo.undisturbed import losses

TOTAL_EPOCHS = 20
SAVE_EVERY = 5
KILL_AT_EPOCH = 8
MAX_RESTARTS = 3
PACE_S = 0.15
DEADLINE_S = 300.0
POLL_INTERVAL_S = 0.02
STOP_TIMEOUT_S = 10.0
# Hot spares import torch one after another, at low priority; the demo does not wait longer for them.
SPARES_TIMEOUT_S = 150.0
# What `instep run --spares hot` says when its spares are ready, and when there will be none.
SPARES_READY = "hot spares are ready"
NO_SPARES = "no spares are kept"


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    ranks: int
    kill: bool
    keep: Path | None
    with_torch: bool

    @property
    def keeps_step(self) -> bool:
        """Whether the rank alone is replaced: with torch, and with peers that have its state."""
        return self.with_torch and self.ranks > 1

    @property
    def victim(self) -> int:
        """The rank to kill: the third, or the last of fewer."""
        return min(2, self.ranks - 1)


@dataclass
class Record:
    """What happened, pieced together from the ranks' events and our own doings."""

    victim_waits: Event | None = None  # in the epoch in which it is to be killed
    killed_at: float | None = None
    hot: bool = False  # a hot spare was ready when the rank was killed
    kill_epoch: int | None = None
    resumed_epoch: int | None = None
    recovered_at: float | None = None
    restarts: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)  # (attempt, epoch), as rank 0 began them
    losses: dict[int, float] = field(default_factory=dict)  # rank -> final loss
    curve: dict[int, float] = field(default_factory=dict)  # epochs done -> loss
    undisturbed: dict[int, float] = field(default_factory=dict)  # the same, where no rank was killed
    recorded: int | None = None  # points of the loss that the master has


class Demo:
    """One run of the demo in one folder."""

    def __init__(self, options: Options, folder: Path, console: Console) -> None:
        """Get ready to run in `folder`, which must be empty."""
        self._options = options
        self._folder = folder
        self._console = console
        self._events = EventReader(folder / EVENTS_FILE)
        self._record = Record()
        self._master: OwnMaster | None = None
        self._run: Run | None = None
        self._outcome: Outcome | None = None
        self._spares_ready = threading.Event()
        self._no_more_spares = threading.Event()

    def run(self) -> str | None:
        """Play the whole story; return what went wrong, if anything did."""
        what = "a small MLP with torch" if self._options.with_torch else "a tiny MLP in plain Python"
        self._console.narrate(f"training {what} on {self._options.ranks} CPU ranks for {TOTAL_EPOCHS} epochs")
        if self._options.with_torch:
            self._console.plain("    (first, each rank imports torch, which takes a few seconds)")
        began = time.monotonic()
        try:
            problem = self._first_act()
            if problem is None:
                self._summarise(time.monotonic() - began)
                problem = self._second_act()
        finally:
            if self._master is not None:
                self._master.stop()
        if problem is None:
            self._end(time.monotonic() - began)
        return problem

    def _first_act(self) -> str | None:
        self._tracked(self._begin_recording)
        problem: str | None = "it was interrupted"
        try:
            status = self._run_job()
            if status == 0 and self._options.keeps_step and self._record.killed_at is not None:
                self._console.narrate("training once more without a kill, to compare")
                command = [launcher(), *self.launch(spares="0"), *self._script(pace_s=0.0)]
                self._record.undisturbed = losses(command, self._folder / "undisturbed", worker_environment())
            problem = self._problem(status)
        finally:
            self._tracked(lambda: self._end_recording(well=problem is None))
        return problem

    def _second_act(self) -> str | None:
        """A search on slots of our own, whoever recorded the first act."""
        if not self._options.with_torch:
            self._console.plain("    (skipping the second part, a hyperparameter search: it needs torch)")
            return None
        self._console.narrate(
            f"searching with adaptive_asha: {TRIALS} trials of {RANKS} DDP ranks each, on {SLOTS} slots"
        )
        try:
            master = self._own_master()
            search = Search(Client(master.address), self._folder, self._console)
            self._outcome = search.run(launcher(), master.environment)
        except (SearchError, TrackingError) as error:
            return str(error)
        return None

    def _own_master(self) -> OwnMaster:
        if self._master is None:
            slots = SLOTS if self._options.with_torch else 0
            self._master = OwnMaster(launcher(), self._folder, slots=slots, environment=worker_environment())
        return self._master

    def _begin_recording(self) -> None:
        client = Client.of_environment() or Client(self._own_master().address)
        self._run = Run(client, self._options.ranks)
        self._console.narrate(f"watch its loss at {client.page(self._run.experiment)}")

    def _end_recording(self, *, well: bool) -> None:
        if self._run is not None:
            self._record.recorded = self._run.finish(well=well)

    def _tracked(self, work: Callable[[], None]) -> None:
        """Do something with the master; without it the demo goes on, and says so once."""
        try:
            work()
        except TrackingError as error:
            self._run = None
            self._console.plain(f"    (the loss is no longer recorded: {error})")

    def _run_job(self) -> int | None:
        """Start `instep run` and follow it to its end; None when it did not end in time."""
        launch, script = self.launch(spares="hot" if self._options.kill else "0"), self._script(PACE_S)
        self._console.job_output(f"$ instep {' '.join([*launch, *script])}")
        process = subprocess.Popen(
            [launcher(), *launch, *script],
            cwd=self._folder,
            env=self._job_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        pump = threading.Thread(target=self._pass_output_on, args=(process,))
        pump.start()
        try:
            deadline = time.monotonic() + DEADLINE_S
            while process.poll() is None:
                if time.monotonic() > deadline:
                    return None
                self._follow()
                time.sleep(POLL_INTERVAL_S)
            return process.returncode
        finally:
            stop(process)
            pump.join()
            self._follow()

    def launch(self, spares: str) -> list[str]:
        """The launcher's part of the command."""
        launch = ["run", "--standalone", f"--nproc-per-node={self._options.ranks}", f"--max-restarts={MAX_RESTARTS}"]
        # The rank that is to be killed waits for the spares: that is no hang to warn of, nor to replace a rank for.
        recovery = ["--recover=step", f"--spares={spares}", f"--hang-after={WAIT_S:.0f}"]
        return [*launch, *recovery] if self._options.keeps_step else launch

    def _script(self, pace_s: float) -> list[str]:
        module = "instep.demo.train_torch" if self._options.with_torch else "instep.demo.train_stdlib"
        return ["-m", module, f"--total-epochs={TOTAL_EPOCHS}", f"--save-every={SAVE_EVERY}", f"--pace={pace_s}"]

    @property
    def _awaits_spares(self) -> bool:
        return self._options.keeps_step and self._options.kill

    def _job_environment(self) -> dict[str, str]:
        held = {WAIT_TO_BE_KILLED: f"{self._options.victim}:{KILL_AT_EPOCH}"} if self._options.kill else {}
        return {**worker_environment(), **held}

    def _pass_output_on(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._console.job_output(line.rstrip("\n"))
            if SPARES_READY in line:
                self._spares_ready.set()
            elif NO_SPARES in line:
                self._no_more_spares.set()

    def _follow(self) -> None:
        """Take in what the ranks reported since the last look, and act on it."""
        for event in self._events.new_events():
            self._on(event)
        waiting = self._record.victim_waits
        # Rank 0 tells how far the job is: it, too, has come to this epoch.
        all_there = (0, KILL_AT_EPOCH) in self._record.epochs
        if waiting is not None and all_there and self._record.killed_at is None and self._time_to_kill(waiting):
            self._kill(waiting)

    def _time_to_kill(self, waiting: Event) -> bool:
        """Whether the recovery will be as fast as it can be, or we have waited long enough for that."""
        overdue = time.monotonic() > waiting.at + SPARES_TIMEOUT_S
        return not self._awaits_spares or self._spares_ready.is_set() or self._no_more_spares.is_set() or overdue

    def _on(self, event: Event) -> None:
        record = self._record
        if event.kind == "started":
            if event.attempt > record.restarts:
                record.restarts = event.attempt
                self._console.narrate(f"instep stopped the other ranks and restarts all {self._options.ranks}")
                if self._run is not None:
                    self._tracked(self._run.start)
        elif event.kind == "finished":
            record.losses[event.rank] = event.loss
        elif event.kind == "epoch":
            self._on_epoch(event)
        elif event.kind == "step":
            self._on_first_step(event)
        elif event.rank != 0:
            return
        elif event.kind == "resumed":
            record.resumed_epoch = event.epoch
            self._console.narrate(f"resumed from the snapshot at epoch {event.epoch}")
        elif event.kind == "loss":
            record.curve[event.epoch] = event.loss
            if self._run is not None:
                run = self._run
                self._tracked(lambda: run.report(event.epoch, event.loss))

    def _on_first_step(self, event: Event) -> None:
        """A process trains: is it one that was started because of the kill?"""
        if (event.attempt, event.incarnation) == (0, 0) or self._record.recovered_at is not None:
            return
        self._record.recovered_at = event.at
        if event.incarnation > 0:
            self._console.narrate(f"another process is rank {event.rank} now, and the step was done again")

    def _on_epoch(self, event: Event) -> None:
        if event.rank == 0:
            self._record.epochs.append((event.attempt, event.epoch))
        to_be_killed = self._options.kill and (event.attempt, event.rank) == (0, self._options.victim)
        if to_be_killed and event.epoch == KILL_AT_EPOCH:
            self._record.victim_waits = event
            if not self._time_to_kill(event):
                self._console.narrate("waiting for hot spares, which run the script up to its loop")

    def _kill(self, event: Event) -> None:
        """Be the failing machine."""
        victim = self._options.victim
        self._console.narrate(f"killing rank {victim} (pid {event.pid}, SIGKILL) on purpose at epoch {event.epoch}")
        self._record.killed_at = time.monotonic()
        self._record.hot = self._spares_ready.is_set()
        self._record.kill_epoch = event.epoch
        os.kill(event.pid, signal.SIGKILL)

    def _problem(self, status: int | None) -> str | None:
        """The first thing that is not as it should be."""
        record, options = self._record, self._options
        expected_restarts = 1 if options.kill and not options.keeps_step else 0
        counted = epochs_that_count(record.epochs)
        problems = [
            (status is None, f"the job was still running after {DEADLINE_S:.0f} s"),
            (status not in (None, 0), f"instep run ended with status {status}"),
            (options.kill and record.killed_at is None, f"no rank was killed: epoch {KILL_AT_EPOCH} never began"),
            (record.restarts != expected_restarts, f"{record.restarts} restarts, expected {expected_restarts}"),
            (len(record.losses) != options.ranks, f"{len(record.losses)} of {options.ranks} ranks finished training"),
            (counted != list(range(TOTAL_EPOCHS)), f"epochs were lost or trained twice: {counted}"),
            (len(set(record.losses.values())) > 1, f"the ranks disagree on the final loss: {record.losses}"),
            (not all(map(math.isfinite, record.losses.values())), "the final loss is not a number"),
            (self._differs(), "the loss is not that of a training without a kill"),
        ]
        return next((problem for wrong, problem in problems if wrong), None)

    def _differs(self) -> bool:
        """Whether the kill has changed the loss of any epoch, by as little as a bit."""
        compared = self._options.keeps_step and self._record.killed_at is not None
        return compared and self._record.curve != self._record.undisturbed

    def _summarise(self, seconds: float) -> None:
        record, options = self._record, self._options
        kills, epochs = "0", str(TOTAL_EPOCHS)
        if record.killed_at is not None:
            kills = f"1 (rank {options.victim}, SIGKILL)"
            if record.resumed_epoch is not None and record.kill_epoch is not None:
                epochs += f" (killed in epoch {record.kill_epoch}, resumed at epoch {record.resumed_epoch})"
        rows = [("ranks", str(options.ranks)), ("epochs", epochs), ("kills", kills), ("restarts", str(record.restarts))]
        if record.killed_at is not None and record.recovered_at is not None:
            spare = ", by a hot spare" if record.hot else ""
            rows.append(("kill to the next step done", f"{record.recovered_at - record.killed_at:.2f} s{spare}"))
        if record.undisturbed:
            rows.append(("loss of every epoch", "the same bits as in a training without the kill"))
        rows += [("final loss", f"{record.losses[0]:.6f}, the same on every rank"), ("took", f"{seconds:.1f} s")]
        if self._run is not None and record.recorded is not None:
            rows.append(("recorded", f"{record.recorded} points of the loss, experiment {self._run.experiment}"))
        self._console.narrate("trained")
        self._console.table(rows)
        self._console.plain()

    def _end(self, seconds: float) -> None:
        """Say how the search went and what can be done next."""
        self._console.narrate("done")
        rows = [] if self._outcome is None else self._outcome.rows(kept=self._options.keep is not None)
        self._console.table([*rows, ("whole demo", f"{seconds:.1f} s")])
        self._console.plain()
        if not torch_installed():
            self._console.plain(f"torch is not installed for {sys.executable}: the model was plain Python.")
        self._console.plain("Next:")
        self._console.table(self._next_steps())

    def _next_steps(self) -> list[tuple[str, str]]:
        steps = [
            ("instep run --standalone --nproc-per-node=4 train.py", "run your script, in place of torchrun"),
            ("instep doctor", "check this machine"),
        ]
        if not torch_installed():
            steps.insert(0, (f"{sys.executable} -m pip install torch", "then run the demo again, with torch"))
        if self._options.keep is not None:
            steps.append((f"ls {self._options.keep}", "snapshot, code and checkpoints of this run"))
            if self._master is not None:
                steps += self._ways_to_look(self._options.keep / DATABASE, self._master)
        elif self._master is not None:
            steps.append(("instep demo --keep DIR", "keep the run, to look at its charts afterwards"))
        return steps

    def _ways_to_look(self, database: Path, master: OwnMaster) -> list[tuple[str, str]]:
        page = f"{master.address}/det/experiments"
        if self._outcome is not None:
            page += f"/{self._outcome.experiment}"
        again = f"instep up --slots 0 --port {master.port} --db {database}"
        return [(again, f"its charts in the browser, at {page}"), (f"instep down --db {database}", "stop it again")]


def launcher() -> str | Path:
    """The binary that was called, or the one that belongs to this interpreter."""
    return os.environ.get("INSTEP_BINARY") or _binary.find()


def torch_installed() -> bool:
    """Whether this interpreter has torch; answered without the seconds that importing it takes."""
    return importlib.util.find_spec("torch") is not None


def epochs_that_count(epochs: list[tuple[int, int]]) -> list[int]:
    """The epochs that led to the final weights: a later attempt replaces what it ran again."""
    counted: list[int] = []
    last_attempt = 0
    for attempt, epoch in epochs:
        if attempt != last_attempt:
            counted = [earlier for earlier in counted if earlier < epoch]
            last_attempt = attempt
        counted.append(epoch)
    return counted


def worker_environment() -> dict[str, str]:
    """This interpreter and this package for the ranks, wherever the package lies."""
    package_parent = str(Path(__file__).resolve().parents[2])
    search_path = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    # One thread a rank: several ranks share the cores.
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return {**os.environ, **threads, "PYTHON_EXEC": sys.executable, "PYTHONPATH": os.pathsep.join(search_path)}


def stop(process: "subprocess.Popen[str]") -> None:
    """End the launcher, which ends its ranks, if it still runs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def demo_folder(keep: Path | None) -> Iterator[Path]:
    """An empty folder: the one to keep, or a temporary one."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="instep-demo-") as temporary:
            yield Path(temporary)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="instep demo",
        description="Train on a few local ranks, kill one on purpose and watch the job recover. "
        "Then, with torch, search for good hyperparameters on a cluster of this machine's slots.",
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="number of ranks (default 4)")
    parser.add_argument("--no-kill", action="store_true", help="do not kill a rank")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR and keep all files")
    parser.add_argument("--no-torch", action="store_true", help="use the plain Python model even if torch is installed")
    args = parser.parse_args()
    if not 1 <= args.ranks <= 64:
        parser.error("--ranks must be between 1 and 64")
    if args.keep is not None and args.keep.exists() and (not args.keep.is_dir() or any(args.keep.iterdir())):
        parser.error(f"--keep needs a new or empty folder, and {args.keep} is neither")
    with_torch = not args.no_torch and torch_installed()
    return Options(ranks=args.ranks, kill=not args.no_kill, keep=args.keep, with_torch=with_torch)


def main() -> int:
    """Run the demo; return its exit status."""
    options = parse_options()
    console = Console(sys.stdout)
    # A terminated demo must take its job along: turn SIGTERM into an ordinary unwinding.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with demo_folder(options.keep) as folder:
            problem = Demo(options, folder, console).run()
    except KeyboardInterrupt:
        return 130
    except _binary.BinaryNotFoundError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except (OSError, TrackingError) as error:
        problem = str(error)
    if problem is not None:
        console.error(f"the demo failed: {problem}", "run `instep doctor`, and look at the output above")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
