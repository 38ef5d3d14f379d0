"""`instep demo`: a job that recovers and a search, as told on the terminal, and what is left of them."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import Runner, WaitUntil
from instep.demo.__main__ import SPARES_TIMEOUT_S, Demo, Options
from instep.demo.console import Console
from instep.demo.search import EPOCHS, TRIALS, Progress, SearchError, judged


def trial(number: int, state: str, loss: float | None = None, epochs: int = EPOCHS) -> dict[str, Any]:
    """A trial as the master shows it; with a loss, it has validated."""
    validation = None if loss is None else {"metrics": {"avgMetrics": {"loss": loss, "epochs": epochs}}}
    checkpoint = None if loss is None else {"uuid": f"checkpoint-{number}"}
    found = {"id": number, "state": f"STATE_{state}", "hparams": {"rate": 0.1, "width": 8, "epochs": EPOCHS}}
    return found | {"bestValidation": validation, "latestValidation": validation, "bestCheckpoint": checkpoint}


def good_trials(storage: Path) -> list[dict[str, Any]]:
    """Trials that ended well, the third with the best loss, and the checkpoint of that one."""
    (storage / "checkpoint-3").mkdir()
    return [trial(number, "COMPLETED", abs(3 - number) + 0.5, EPOCHS // number) for number in range(1, TRIALS + 1)]


def test_progress_names_the_best_trial_so_far() -> None:
    assert str(Progress.of([])) == "trials: 0 done, 0 running, 0 waiting"
    trials = [trial(1, "COMPLETED", 0.25), trial(2, "RUNNING", 0.125), trial(3, "STARTING"), trial(4, "QUEUED")]
    said = "trials: 1 done, 2 running, 1 waiting | best so far: trial 2, loss 0.125000"
    assert str(Progress.of(trials)) == said


def test_outcome_is_that_of_the_best_trial(tmp_path: Path) -> None:
    outcome = judged(7, good_trials(tmp_path), tmp_path)
    rows = dict(outcome.rows(kept=True))
    assert rows["trials"] == "4 with 2 ranks each, 1 trained to the last epoch"
    assert rows["epochs"] == "33 instead of 64"
    assert rows["best trial"] == "3: loss 0.500000 with rate 0.1, width 8"
    assert rows["its checkpoint"] == str(tmp_path / "checkpoint-3")
    assert dict(outcome.rows(kept=False))["its checkpoint"] == "checkpoint-3"


def test_search_that_went_otherwise_is_no_success(tmp_path: Path) -> None:
    trials = good_trials(tmp_path)
    with pytest.raises(SearchError, match="3 trials, expected 4"):
        judged(7, trials[:-1], tmp_path)
    with pytest.raises(SearchError, match="trial 1 is STATE_ERROR"):
        judged(7, [trial(1, "ERROR"), *trials[1:]], tmp_path)
    with pytest.raises(SearchError, match="trial 3 has the best loss, and no checkpoint"):
        judged(7, [*trials[:2], trials[2] | {"bestCheckpoint": None}, trials[3]], tmp_path)
    with pytest.raises(SearchError, match="the checkpoint of trial 3 is not in"):
        judged(7, trials, tmp_path / "elsewhere")


@pytest.mark.timeout(330)
def test_demo_recovers_and_searches_with_torch(forked: Path, instep: Path, tmp_path: Path, run: Runner) -> None:
    kept = tmp_path / "kept"
    environment = {"INSTEP_BINARY": str(instep), "NO_COLOR": "1", "HOME": str(tmp_path)}
    command: list[str | Path] = [forked, "-m", "instep.demo", "--ranks", "2", "--keep", kept]
    shown = run(*command, env=environment, timeout=300).expect(0)
    told = [line for line in shown.stdout.splitlines() if line.startswith("==> ")]
    waiting = "==> waiting for hot spares, which run the script up to its loop"
    told = [line for line in told if line != waiting]  # said only where the ranks are faster than the spares

    def hidden(found: re.Match[str]) -> str:
        return "" if found[0].startswith(" (pid") else "ADDRESS"

    assert [re.sub(r" \(pid.*|http://[^/]+", hidden, line) for line in told] == [
        "==> training a small MLP with torch on 2 CPU ranks for 20 epochs",
        "==> watch its loss at ADDRESS/det/experiments/1",
        "==> killing rank 1",
        "==> another process is rank 1 now, and the step was done again",
        "==> training once more without a kill, to compare",
        "==> trained",
        "==> searching with adaptive_asha: 4 trials of 2 DDP ranks each, on 4 slots",
        "==> watch its trials at ADDRESS/det/experiments/2",
        "==> done",
    ]
    assert "\x1b" not in shown.stdout
    assert re.search(r"kill to the next step done +[\d.]+ s, by a hot spare\n", shown.stdout), shown
    assert re.search(r"loss of every epoch +the same bits as in a training without the kill\n", shown.stdout), shown
    assert (kept / "snapshot.pt").is_file()
    # Twenty epochs, none of them trained twice.
    assert "20 points of the loss, experiment 1" in shown.stdout
    assert "trials: 4 done, 0 running, 0 waiting | best so far: trial " in shown.stdout
    checkpoint = re.search(r"its checkpoint +(\S+)", shown.stdout)
    assert checkpoint is not None
    assert (Path(checkpoint[1]) / "state.pt").is_file()
    assert still_running(kept) == []
    look_again(run, instep, kept, shown.stdout)


def test_rank_that_waits_to_be_killed_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    demo = Demo(Options(ranks=2, kill=True, keep=None, with_torch=True), tmp_path, Console(sys.stderr))
    [after] = [word for word in demo.launch(spares="hot") if word.startswith("--hang-after=")]
    assert int(after.partition("=")[2]) > SPARES_TIMEOUT_S


def test_kill_comes_in_the_epoch_it_is_announced_for_however_slow_the_demo_is(
    python: Path, instep: Path, tmp_path: Path, run: Runner, wait_until: WaitUntil
) -> None:
    kept, environment = tmp_path / "kept", {"INSTEP_BINARY": str(instep), "NO_COLOR": "1", "HOME": str(tmp_path)}
    demo = run.start(python, "-m", "instep.demo", "--no-torch", "--ranks", "2", "--keep", kept, env=environment)
    wait_until(lambda: "epoch  2 | loss" in demo.stdout, 60, lambda: f"epoch 2\n{demo.stdout}{demo.stderr}")
    demo.send_signal(signal.SIGSTOP)  # a machine so busy that the demo gets no turn
    events, seen = kept / "events.jsonl", (0, 0.0)

    def ranks_are_quiet() -> bool:
        """Whether nothing has been reported for a second: they report several times as often."""
        nonlocal seen
        if events.stat().st_size != seen[0]:
            seen = (events.stat().st_size, time.monotonic())
        return time.monotonic() > seen[1] + 1.0

    wait_until(ranks_are_quiet, 60, "the ranks to wait for the demo")
    demo.send_signal(signal.SIGCONT)
    shown = demo.wait().expect(0)
    before, killing, _ = shown.stdout.partition("==> killing rank 1 ")
    assert killing, shown
    assert "on purpose at epoch 8\n" in shown.stdout, shown
    assert max(int(epoch) for epoch in re.findall(r"epoch +(\d+) \| loss", before)) == 7, shown


def still_running(folder: Path) -> list[str]:
    """Processes that name a folder."""
    found = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in found if str(folder) in line]


def look_again(run: Runner, instep: Path, kept: Path, shown: str) -> None:
    """What the demo says about looking at it again is true."""
    command = re.search(r"instep (up .*master\.db) +its charts in the browser, at (http:\S+)", shown)
    assert command is not None
    try:
        up = run(instep, *command[1].split()).expect(0).stdout
        assert command[2].startswith(re.findall(r"http://\S+", up)[0])
        listed = run(instep, "trial", "list", "2", "--master", command[2].partition("/det/")[0]).expect(0).stdout
        assert listed.count(" completed ") == TRIALS
    finally:
        run(instep, "down", "--db", kept / "master.db").expect(0)
