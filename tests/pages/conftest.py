"""A browser, a master with something recorded in it, and what went wrong in the browser's own eyes.

Chromium comes from the system (`scripts/system.py` installs it), Playwright's client from `.venv`.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from conftest import Runner
from detached.conftest import Client, Master, api, master  # noqa: F401
from managed.conftest import Cluster

# Nothing here may ever become part of a page's structure.
HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>&lt;"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    found = shutil.which("chromium-headless-shell")
    if found is None:
        pytest.fail("there is no chromium-headless-shell\nhint: python3 scripts/system.py test", pytrace=False)
    # Chromium's own sandbox does not work for root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=[*options, "--disable-dev-shm-usage"])
        yield running
        running.close()


@pytest.fixture
def context(browser: Browser, master: Master) -> Iterator[BrowserContext]:  # noqa: F811
    """A browser that keeps nothing of other tests."""
    context = browser.new_context(base_url=master.address)
    context.set_default_timeout(30_000)
    yield context
    context.close()


def own_address() -> str:
    """An address that no other test has: tasks of another test's cluster have the same ports."""
    number = os.getpid()
    return f"127.{number >> 8 & 127 | 1}.{number & 255}.7"


@pytest.fixture
def make_cluster(
    run: Runner,
    instep: Path,
    master: Master,  # noqa: F811
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Callable[[Path], Cluster]]:
    """Makes a cluster of the master, without agents; their tasks have a certain Python."""
    clusters: list[Cluster] = []

    def make(python: Path) -> Cluster:
        made = Cluster(run, instep, python, master, tmp_path, wait_until)
        clusters.append(made)
        return made

    yield make
    for cluster in clusters:
        cluster.end()


@pytest.fixture
def one_agent(make_cluster: Callable[[Path], Cluster]) -> Callable[[Path], Cluster]:
    """Makes a cluster of the master and an agent whose tasks have a certain Python."""

    def make(python: Path) -> Cluster:
        made = make_cluster(python)
        made.agent("one", 1, "--address", own_address())
        return made

    return make


@dataclass
class Window:
    """A page, and everything that the browser complained about."""

    page: Page
    complaints: list[str]
    foreign: list[str]


@pytest.fixture
def window(browser: Browser, master: Master) -> Iterator[Window]:  # noqa: F811
    """A window of its own for each test, which must not complain and must ask nobody but the master."""
    context = browser.new_context(base_url=master.address, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    page = context.new_page()
    opened = Window(page, [], [])

    def noted(message: ConsoleMessage) -> None:
        # A refused request is a line of the console too; what the page makes of it is what the tests look at.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            opened.complaints.append(message.text)

    def asked(request: Request) -> None:
        if not request.url.startswith((master.address, "data:", "blob:")):
            opened.foreign.append(request.url)

    page.on("console", noted)
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("request", asked)
    yield opened
    assert page.evaluate("window.hacked") is None
    context.close()
    assert opened.complaints == []
    assert opened.foreign == []


@dataclass
class Recorded:
    """An experiment with one started trial."""

    api: Client
    experiment: int
    trial: int
    task: str

    def report(self, group: str, step: int, **values: object) -> None:
        """Report metrics at a step."""
        self.report_values(group, step, values)

    def report_values(self, group: str, step: int, values: dict[str, object]) -> None:
        """The same for names that are no words."""
        metrics = {"trialId": self.trial, "trialRunId": 1, "stepsCompleted": step, "metrics": {"avgMetrics": values}}
        self.api("POST", f"/api/v1/trials/{self.trial}/metrics", {"group": group, "metrics": metrics})

    def log(self, *lines: str, rank: int = 0, level: str = "INFO") -> None:
        """Write lines as one rank."""
        now = datetime.now(timezone.utc).isoformat()
        records = [
            {"task_id": self.task, "rank_id": rank, "level": f"LOG_LEVEL_{level}", "timestamp": now, "log": f"{line}\n"}
            for line in lines
        ]
        status, _, body = self.api.raw("POST", "/task-logs", dumped(records))
        assert status == 200, body

    def save(self, step: int, files: dict[str, int], **metadata: object) -> str:
        """Record a checkpoint."""
        name = str(uuid.uuid4())
        checkpoint = {
            "uuid": name,
            "taskId": self.task,
            "state": "STATE_COMPLETED",
            "resources": {path: str(size) for path, size in files.items()},
            "metadata": {"steps_completed": step, **metadata},
        }
        self.api("POST", "/api/v1/checkpoints", checkpoint)
        return name

    def end(self, state: str = "STATE_COMPLETED") -> None:
        """Bring the trial to its end."""
        self.api("PATCH", f"/api/v1/trials/{self.trial}", {"state": state})


def dumped(value: object) -> bytes:
    """Give JSON as bytes."""
    return json.dumps(value).encode()


def record(client: Client, name: str, *, hparams: dict[str, object] | None = None, **config: object) -> Recorded:
    """Make an experiment with one started trial."""
    full = {"name": name, "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True}, **config}
    body = {"config": dumped(full).decode(), "unmanaged": True}
    experiment = client("POST", "/api/v1/experiments", body)["experiment"]["id"]
    trial = add_trial(client, experiment, hparams)
    return Recorded(client, experiment, trial["id"], trial["taskId"])


def add_trial(client: Client, experiment: int, hparams: dict[str, object] | None = None) -> dict:
    """Start one more trial of an experiment."""
    request = {"experimentId": experiment, "hparams": hparams or {}, "unmanaged": True}
    trial = client("POST", "/api/v1/trials", request)["trial"]
    client("POST", f"/api/v1/trials/{trial['id']}/start", {"resume": True})
    return trial
