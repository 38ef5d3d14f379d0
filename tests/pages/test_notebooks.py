"""A notebook in a browser, from its start by `det` to its end because nobody uses it (about 40 s, half of it idle).

On an agent of root in CI, on the other kinds of agents in soak.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from detached.conftest import Client, Failed, determined, forked_det
from detached.det import Commands, det
from managed.conftest import Cluster, settings
from managed.kinds import KINDS, USERS, StartAgent, start_agent

from .conftest import own_address

__all__ = ["det", "determined", "forked_det", "settings", "start_agent"]


@pytest.fixture
def cluster(make_cluster: Callable[[Path], Cluster], determined: Path) -> Cluster:
    """A master whose agents have a Python with JupyterLab."""
    return make_cluster(determined)


def state_of(api: Client, task: str) -> str:
    """How a notebook stands."""
    found: str = api("GET", f"/api/v1/notebooks/{task}")["notebook"]["state"]
    return found


def opened(page: Page, task: str) -> None:
    """Open the notebook the way that `det notebook open` does."""
    page.goto("/")
    expect(page.get_by_test_id("user")).to_have_text("determined", timeout=30_000)
    page.goto(f"/det/interactive/{task}/jupyter-lab")
    expect(page.locator("#jupyterlab-splash")).to_have_count(0, timeout=60_000)


def run_cell(page: Page, text: str, result: str) -> None:
    """Type something into the newest cell and run it, once the kernel is there."""
    expect(page.get_by_role("button", name="(ipykernel) | Idle")).to_be_visible(timeout=60_000)
    editor = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .cm-content").last
    editor.click()
    page.keyboard.insert_text(text)
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea-output", has_text=result).last).to_be_visible(timeout=60_000)


@KINDS
@pytest.mark.timeout(300)
def test_a_notebook_runs_cells_until_nobody_uses_it(
    cluster: Cluster, start_agent: StartAgent, det: Commands, context: BrowserContext, tmp_path: Path, kind: str
) -> None:
    start_agent(cluster, kind, "--address", own_address())
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "from_context.py").write_text("ANSWER = 42\n")
    words = ["notebook", "start", "--context", str(folder), "--config", "idle_timeout=15s", "--no-browser"]
    [printed] = det(words)
    api = cluster.api
    [task] = [found["id"] for found in api("GET", "/api/v1/notebooks")["notebooks"]]
    assert f"/det/interactive/{task}/jupyter-lab" in printed, printed
    # A kernel keeps it. Programs get there with a token.
    kernels = f"/proxy/{task}/api/kernels"
    assert api.raw("POST", kernels, b'{"name": "python3"}')[0] == 201

    # It runs programs as its owner: nobody else opens it, not even who may read everything.
    user = {"user": {"username": "ann", "active": True}, "password": "Abcdefg1"}
    cluster.master.client.login("admin")("POST", "/api/v1/users", user)
    ann = cluster.master.client.login("ann", "Abcdefg1")
    assert state_of(ann, task) == "STATE_RUNNING"
    with pytest.raises(Failed, match="only they and administrators may open it"):
        ann("GET", kernels)

    page = context.new_page()
    opened(page, task)
    page.locator(".jp-LauncherCard[data-category='Notebook']").first.click(timeout=120_000)
    run_cell(page, "import from_context; x = from_context.ANSWER; print('it is', x)", "it is 42")
    run_cell(page, "import os; print('as', os.getuid())", f"as {USERS[kind]}")
    page.keyboard.press("Control+s")

    cluster.master.kill()
    cluster.master.start(cluster.wait_until)
    page = context.new_page()
    opened(page, task)
    run_cell(page, "print('still', x)", "still 42")

    assert state_of(api, task) == "STATE_RUNNING"
    page.close()
    for kernel in api("GET", kernels):
        assert api.raw("DELETE", f"{kernels}/{kernel['id']}")[0] == 204
    cluster.wait_until(lambda: state_of(api, task) == "STATE_TERMINATED", 60, "the notebook to end")
    assert "it was idle for 15 s" in "".join(line["message"] for line in api.lines(f"/api/v1/tasks/{task}/logs"))
    with pytest.raises(Failed, match="has ended"):
        api("GET", kernels)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_cell_that_computes_is_not_idle(cluster: Cluster, start_agent: StartAgent, context: BrowserContext) -> None:
    """Somebody starts a long cell and leaves: the notebook ends after the cell, not during it (about 110 s)."""
    start_agent(cluster, "root", "--address", own_address())
    api = cluster.api
    # JupyterLab's page may take a while to load, which is no activity of a kernel.
    config = {"idle_timeout": "25s", "notebook_idle_type": "activity", "resources": {"slots": 0}}
    task = api("POST", "/api/v1/notebooks", {"config": config})["notebook"]["id"]
    cluster.wait_until(lambda: state_of(api, task) == "STATE_RUNNING", 60, "the notebook")
    page = context.new_page()
    opened(page, task)
    page.locator(".jp-LauncherCard[data-category='Notebook']").first.click(timeout=120_000)
    run_cell(page, "import time; print('begun'); time.sleep(60)", "begun")
    page.close()

    def computes() -> bool:
        return any(kernel["execution_state"] == "busy" for kernel in api("GET", f"/proxy/{task}/api/kernels"))

    assert computes()
    cluster.wait_until(lambda: not computes(), 100, "the end of the cell")
    assert state_of(api, task) == "STATE_RUNNING", "its kernel computed, though nobody was connected"
    cluster.wait_until(lambda: state_of(api, task) == "STATE_TERMINATED", 60, "the notebook to end")
    assert "it was idle for 25 s" in "".join(line["message"] for line in api.lines(f"/api/v1/tasks/{task}/logs"))
