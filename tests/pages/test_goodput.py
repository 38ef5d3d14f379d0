"""What became of a trial's time, under the trials of an experiment's page."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from conftest import Runner
from detached.conftest import Master
from managed.conftest import Cluster
from pages.conftest import HOSTILE, Window, record

# What a launcher leaves that has run for a second with two ranks.
SECONDS = {
    **{"start": 0.4, "compute": 1.2, "communication": 0.2, "data": 0, "checkpoint": 0.1},
    **{"restart": 0, "lost": 0.1, "idle": 0, "unobserved": 0},
}
SAID = {
    "wall_seconds": 1,
    "seconds": SECONDS,
    "ranks": [{}, {}],
    **{"first_step": 0, "steps": 9, "redone_steps": 1, "taken_back_steps": 0},
}
SCRIPT = """
import os, pathlib, time
pathlib.Path(os.environ["INSTEP_SUMMARY_JSON"]).write_text(os.environ["SAID"])
time.sleep(1)
"""


def test_the_time_of_a_trial_is_a_bar_with_a_legend(
    run: Runner, instep: Path, master: Master, tmp_path: Path, wait_until: Callable[..., None], window: Window
) -> None:
    cluster = Cluster(run, instep, Path(sys.executable), master, tmp_path, wait_until)
    number = os.getpid()
    agent = cluster.agent("one", 2, "--address", f"127.{number >> 8 & 127 | 1}.{number & 255}.8")
    environment = {"environment_variables": [f"SAID={json.dumps({'goodput': SAID})}"]}
    more = {"environment": environment, "resources": {"slots_per_trial": 2}, "name": HOSTILE}
    config = cluster.config([sys.executable, "-c", SCRIPT], **more)
    cluster.api("POST", "/api/v1/experiments", {"config": json.dumps(config), "activate": True})
    cluster.wait_for(1, "STATE_COMPLETED")
    seconds = cluster.api("GET", "/api/v1/trials/1/goodput")["goodput"]["seconds"]
    share = (seconds["compute"] + seconds["communication"]) / sum(seconds.values())
    page = window.page
    page.goto("/det/experiments/1#trials")
    card = page.get_by_test_id("goodput")
    expect(card.get_by_role("heading")).to_have_text(f"{share * 100:.1f} % of the ranks' time was training")
    expect(card).to_contain_text("ETTR) of 2 ranks over 1 allocation, without the time in the queue; 1 step redone.")
    texts = ["Computing", "Waiting for peers", "Checkpoints", "Starting", "Lost work"]
    legend = card.locator("li")
    expect(legend).to_have_count(len(texts))
    for place, text in enumerate(texts):
        expect(legend.nth(place)).to_contain_text(text)
    widths = [part.bounding_box()["width"] for part in card.locator(".bar i").all()]
    assert abs(widths[0] / sum(widths) - 1.2 / sum(seconds.values())) < 0.02
    # A trial that runs elsewhere has no launcher that tells.
    page.goto(f"/det/experiments/{record(cluster.api, 'elsewhere').experiment}#trials")
    expect(page.get_by_test_id("trials")).to_be_visible()
    expect(card).to_have_count(0)
    agent.kill_tree()
