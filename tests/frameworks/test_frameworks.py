"""Frameworks that choose gloo themselves come to the same result with `--replace-gloo`, without a change.

They live in an environment of their own (`build/frameworks`, made by `python3 scripts/build.py frameworks`), over the
torch and the instep of `.venv`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, Runner

SCRIPTS = Path(__file__).parent / "scripts"
SAYS_SO = "instep: groups that request gloo use instep (INSTEP_REPLACE=gloo)\n"


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The interpreter with the frameworks."""
    path = ROOT / "build" / "frameworks" / "bin" / "python"
    if not path.exists():
        pytest.fail(f"there is no {path}\nhint: python3 scripts/build.py frameworks", pytrace=False)
    return path


class Job:
    """Runs a script of ours with so many ranks."""

    def __init__(self, run: Runner, instep: Path, python: Path) -> None:
        self._run, self._launch = run, [instep, "run", "--python", python]
        # DeepSpeed compiles a part of itself with the ninja that it depends on.
        self._environment = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}

    def result(self, ranks: int, script: str, *arguments: str, replaced: bool) -> dict[str, Any]:
        """What the script came to."""
        option = ["--replace-gloo"] if replaced else []
        words = [*self._launch, *option, "--nproc-per-node", ranks, SCRIPTS / script, *arguments]
        done = self._run(*map(str, words), env=self._environment, timeout=600).expect(0)
        assert done.stderr.count(SAYS_SO) == int(replaced)
        [line] = [line for line in done.stdout.splitlines() if "RESULT " in line]
        found: dict[str, Any] = json.loads(line.partition("RESULT ")[2])
        assert found.pop("on_instep") is replaced
        return found


@pytest.fixture
def job(run: Runner, instep: Path, frameworks: Path) -> Job:
    """Starts jobs."""
    return Job(run, instep, frameworks)


# What gloo came to, on the versions in requirements/: the price of a second job is not paid in every run.
def test_lightning_needs_no_change(job: Job) -> None:
    found = job.result(2, "lightning_ddp.py", "ddp", replaced=True)
    assert found == {
        "backend": "gloo",
        "loss": pytest.approx(0.3428937, rel=1e-4),
        "weights": pytest.approx(67.151093, rel=1e-4),
    }


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("ranks", "script", "arguments"),
    [
        (2, "lightning_ddp.py", ["ddp"]),
        (2, "accelerate_ddp.py", []),
        (2, "trainer.py", ["gloo"]),
        (2, "trainer.py", []),
        (2, "deepspeed_zero.py", ["1"]),
        (2, "deepspeed_zero.py", ["2"]),
        (8, "three_ways.py", []),
        (2, "compiled_ddp.py", []),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_the_result_is_that_of_gloo(job: Job, ranks: int, script: str, arguments: list[str]) -> None:
    gloo = job.result(ranks, script, *arguments, replaced=False)
    ours = job.result(ranks, script, *arguments, replaced=True)
    assert ours == {
        "backend": gloo["backend"],
        "loss": pytest.approx(gloo["loss"], rel=1e-4),
        "weights": pytest.approx(gloo["weights"], rel=1e-4),
    }
