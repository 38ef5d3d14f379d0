"""A rank is killed in the middle of a step: the job ends with the bits of one in which nothing happened.

Costs about 40 s: every training is two or three processes that are forked with torch imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Runner

from .conftest import TRAIN, Ended, Train

# Ways to train, and when which rank dies: RANK:STEP:MOMENT, and which incarnation of it.
KINDS = [
    ("sgd", ["1:3:forward"]),
    ("sgd", ["1:3:between"]),
    ("sgd", ["0:3:backward"]),
    ("sgd", ["1:3:vote"]),
    ("sgd", ["1:3:update"]),
    ("sgd", ["0:3:done"]),
    ("sgd-workers", ["1:0:forward"]),
    ("adam-dropout", ["1:5:backward", "1:5:backward:1"]),
    ("adam-norm", ["0:2:backward", "1:9:vote"]),
    ("adam-norm", ["1:6:ballot"]),
    ("two-accumulate", ["1:2:between"]),
    ("scaler-zeros", ["1:4:backward"]),
    ("static-norm", ["1:3:backward"]),
    ("views-zeros", ["1:6:backward"]),
    ("unused", ["0:1:between"]),
    # The last step of an epoch: its peers are on their way to the next one.
    ("adam-norm", ["1:5:done"]),
]

# More ranks die while the others recover. A replacement is at step 0 until it has its peers' state.
AGAIN = [
    ["1:3:backward", "2:3:backward"],
    ["1:3:backward", "0:3:reconnect"],
    ["1:3:backward", "1:0:reconnect:1"],
    ["0:3:vote", "2:3:compare"],
    ["1:3:forward", "0:3:send"],
    ["1:3:forward", "1:0:receive:1", "2:3:send"],
    ["1:3:backward", "1:3:rebuild:1", "0:3:rebuild", "1:0:compare:2"],
]


@pytest.mark.parametrize("deaths", AGAIN, ids=",".join)
def test_ranks_are_lost_while_others_recover(
    train: Train, undisturbed: Callable[[int, str], Ended], deaths: list[str]
) -> None:
    compare(train(3, "adam-dropout", *deaths), undisturbed(3, "adam-dropout"), deaths)


@pytest.mark.parametrize(("case", "deaths"), KINDS, ids=lambda each: each if isinstance(each, str) else ",".join(each))
def test_the_same_bits_come_out(
    train: Train, undisturbed: Callable[[int, str], Ended], case: str, deaths: list[str]
) -> None:
    compare(train(3, case, *deaths), undisturbed(3, case), deaths)


def test_what_only_two_lost_ranks_had_makes_all_start_again(started: Train, run: Runner, tmp_path: Path) -> None:
    deaths = ["0:3:backward", "1:3:compare"]
    ended = started(run, tmp_path, 3, "sgd-norm", *deaths, options=("--recover", "step", "--max-restarts", "1"))
    ended.result.expect(0)
    assert (
        "rank 0 and the rank that kept what only it had were lost together, so all workers restart"
        in ended.result.stderr
    )
    assert [rank["incarnation"] for rank in ended.ranks] == [0, 0, 0], str(ended.result)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("sgd-stranger", "an optimizer has a scheduler that the session does not know"),
        ("sgd-left", "gradients are left from a step without optimizer.step()"),
        ("sgd-drift", "rank 1 trains with other settings than rank 0, such as the learning rate"),
    ],
)
def test_what_would_end_in_other_weights_is_refused_at_once(train: Train, case: str, says: str) -> None:
    ended = train(2, case)
    assert ended.result.status == 1
    assert says in ended.result.stderr, str(ended.result)


def test_code_behind_a_step_is_refused_before_anything_is_lost(
    run: Runner, instep: Path, forked: Path, tmp_path: Path
) -> None:
    command = ("run", "--standalone", "--nproc-per-node", "2", "--no-python", forked, TRAIN.with_name("behind.py"))
    environment = {"OMP_NUM_THREADS": "1", "RESULTS": str(tmp_path)}
    done = run(instep, *command, env=environment).expect(0)
    assert done.stdout.count("behind the step") == 6
    refused = run(instep, command[0], "--recover", "step", *command[1:], env=environment).expect(1)
    assert "behind.py:16: this would also run for a step that was lost and is done again" in refused.stderr
    assert "behind the step" not in refused.stdout


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("plain", "session.step() outside session.batches(): a rank that is replaced would train on other samples"),
        ("once", "session.batches() was called before the epoch in which its batches are used"),
        ("lengths", "rank 0 has 3 batches in this epoch, rank 1 has 0"),
    ],
)
def test_a_session_that_is_used_wrongly_ends_the_job_at_once(
    run: Runner, instep: Path, forked: Path, how: str, says: str
) -> None:
    options = ("--standalone", "--nproc-per-node", "2", "--recover", "step", "--max-restarts", "3")
    script = TRAIN.with_name("misuse.py")
    result = run(instep, "run", *options, "--no-python", forked, script, how, env={"OMP_NUM_THREADS": "1"}).expect(1)
    assert says in result.stderr
    assert "the script uses its session wrongly, which no replacement and no restart mends" in result.stderr
    for word in ("replacing", "restarting"):
        assert word not in result.stderr, str(result)


def test_a_session_may_be_given_what_ddp_wraps(train: Train, undisturbed: Callable[[int, str], Ended]) -> None:
    compare(train(3, "sgd-inner", "1:3:backward"), undisturbed(3, "sgd"), ["1:3:backward"])


def test_a_rank_that_raises_once_is_replaced(train: Train, undisturbed: Callable[[int, str], Ended]) -> None:
    compare(train(3, "adam-norm", "1:4:raise"), undisturbed(3, "adam-norm"), ["1:4:raise"])


def test_a_rank_that_raises_in_the_same_step_again_ends_the_job(started: Train, run: Runner, tmp_path: Path) -> None:
    ended = started(
        run, tmp_path, 3, "sgd", "1:4:raise", "1:4:raise:1", options=("--recover", "step", "--max-restarts", "3")
    )
    ended.result.expect(1)
    assert "rank 1 failed twice in step 4" in ended.result.stderr, str(ended.result)
    assert ended.result.stderr.count("; replacing it") == 1, str(ended.result)
    assert "restarting" not in ended.result.stderr, str(ended.result)


# A rank that is stopped is found at the first look of the hang watch, one that sleeps at the second.
@pytest.mark.parametrize(
    ("mishap", "says"), [("stop", "was stopped and kept the others waiting"), ("hang", "hung and was killed: it is in")]
)
def test_a_rank_that_hangs_is_replaced(
    started: Train, undisturbed: Callable[[int, str], Ended], run: Runner, tmp_path: Path, mishap: str, says: str
) -> None:
    deaths = [f"1:4:{mishap}"]
    ended = started(run, tmp_path, 3, "adam-norm", *deaths, options=("--recover", "step", "--hang-after", "2"))
    compare(ended, undisturbed(3, "adam-norm"), deaths)
    assert f"{says}" in ended.result.stderr, str(ended.result)
    assert "; replacing it (generation 1)" in ended.result.stderr, str(ended.result)


def test_a_rank_that_is_slow_is_only_reported(started: Train, run: Runner, tmp_path: Path) -> None:
    """Three looks of the hang watch find it computing."""
    ended = started(run, tmp_path, 2, "sgd", "1:4:compute", options=("--recover", "step", "--hang-after", "2"))
    ended.result.expect(0)
    assert "rank 1 has not entered" in ended.result.stderr, str(ended.result)
    assert "replacing" not in ended.result.stderr, str(ended.result)


def test_a_rank_that_ends_with_0_in_a_step_makes_all_start_again(started: Train, run: Runner, tmp_path: Path) -> None:
    ended = started(run, tmp_path, 3, "sgd", "1:3:exit", options=("--recover", "step", "--max-restarts", "1"))
    ended.result.expect(0)
    [line] = [line for line in ended.result.stderr.splitlines() if "restarting" in line]
    assert "rank 1 ended with exit code 0 while rank " in line, str(ended.result)
    assert "was training, so all workers restart; restart 1 of 1" in line, str(ended.result)
    # Its peers were told: none of them gave up waiting.
    assert "CannotRecover" not in ended.result.stderr, str(ended.result)


def test_without_restarts_a_rank_that_ends_with_0_in_a_step_is_the_cause(
    started: Train, run: Runner, tmp_path: Path
) -> None:
    ended = started(run, tmp_path, 2, "sgd", "1:3:exit", options=("--recover", "step"))
    ended.result.expect(1)
    [head, cause] = ended.result.stderr.split("Root cause")
    assert "rank 1 ended with exit code 0 while rank 0 was training" in head, str(ended.result)
    assert "rank      : 1" in cause, str(ended.result)


def test_a_replacement_that_never_comes_is_named_and_makes_all_start_again(
    started: Train, run: Runner, tmp_path: Path
) -> None:
    options = ("--recover", "step", "--max-restarts", "1")
    ended = started(run, tmp_path, 2, "sgd", "1:3:backward", "1:0:start:1", options=options, env={"TIMEOUT": "20"})
    ended.result.expect(0)
    assert "(generation 1): the others wait for rank 1: starting, or still computing" in ended.result.stderr
    [line] = [line for line in ended.result.stderr.splitlines() if "restarting" in line]
    assert "was killed by SIGKILL: rank 0 waited 20 s for rank 1 of 2 to join the group, so all workers" in line


@pytest.mark.soak
def test_sessions_end_without_a_word(started: Train, run: Runner, tmp_path: Path) -> None:
    """A thread that still waits for generations when the interpreter ends would panic."""
    for number in range(30):
        environment = {"EPOCHS": "1", "INSTEP_TEST_WHOLE_END": "1"}
        ended = started(run, tmp_path / str(number), 4, "sgd", options=("--recover", "step"), env=environment)
        ended.result.expect(0)
        assert ended.result.stderr == "", str(ended.result)


def compare(ended: Ended, expected: Ended, deaths: list[str]) -> None:
    """Weights, optimizer state, buffers, rates and samples are those of the undisturbed training."""
    ended.result.expect(0)
    said = str(ended.result)
    victims = [int(death.split(":")[0]) for death in deaths]
    assert [rank["incarnation"] for rank in ended.ranks] == [victims.count(rank) for rank in range(3)], said
    for found, wanted in zip(ended.ranks, expected.ranks, strict=True):
        for key in ("digest", "steps", "rates", "scale", "sum"):
            assert found[key] == wanted[key], f"{key}\n{said}"
        # A replacement knows the steps since it came.
        assert found["ledger"], said
        assert found["ledger"].items() <= wanted["ledger"].items(), said
