"""Makes docs/pictures/page-*.png: the master's pages, photographed in Chromium.

    .venv/bin/python scripts/page_pictures.py

The runs that they show are invented, and recorded through the master's own API in a database that is thrown away.
"""

from __future__ import annotations

import importlib.util
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from project import ROOT, fail, say

if importlib.util.find_spec("playwright") is None:
    fail("playwright is not installed in this Python", hint="`make build`, then .venv/bin/python")

from playwright.sync_api import sync_playwright

# The tests have a client of the API, and ways to record things with it.
sys.path.insert(0, str(ROOT / "tests"))
from detached.conftest import Client
from pages.conftest import Recorded, add_trial, record

PICTURES = ROOT / "docs" / "pictures"
NAMES = [
    "resnet50 baseline",
    "resnet50 warm-up",
    "bert-large fine-tuning",
    "gpt-small from scratch",
    "vit-b/16 augmented",
]


def fill(client: Client) -> int:
    """Record some runs; give the one whose charts are shown."""
    noise = random.Random(7)
    recorded: list[Recorded] = []
    for index, name in enumerate([*NAMES, "unet segmentation"]):
        labels = ["nightly"] if index % 3 == 0 else ["paper"] if index == 2 else []
        made = record(client, name, labels=labels, hparams={"lr": 0.001 * (index + 1), "batch_size": 64})
        if index != 3:
            made.report("validation", 10, loss=0.9 - 0.1 * index)
            made.end("STATE_ERROR" if index == 4 else "STATE_COMPLETED")
        recorded.append(made)
    shown = recorded[3]
    other = add_trial(client, shown.experiment, {"lr": 0.01, "batch_size": 128})
    trials = [shown, Recorded(client, shown.experiment, other["id"], other["taskId"])]
    for step in range(1, 401):
        for slower, trial in enumerate(trials):
            decay = math.exp(-step / (90 + 60 * slower))
            trial.report(
                "training",
                step,
                loss=2.5 * decay + 0.35 + noise.gauss(0, 0.06),
                lr=0.001 * min(1.0, step / 50) * (0.5 + 0.5 * math.cos(step / 400 * math.pi)),
                samples_per_second=1200 + 40 * slower + noise.gauss(0, 20),
            )
            if step % 20 == 0:
                loss = 2.4 * decay + 0.4 + noise.gauss(0, 0.02)
                trial.report("validation", step, loss=loss, accuracy=0.92 - 0.7 * decay)
        if step % 100 == 0:
            shown.save(step, {f"shard_{rank}/model.pt": 51_200_000 + step for rank in range(2)}, framework="torch")
        if step % 8 == 0:
            shown.log(f"step {step} of 400 | {1200 + noise.gauss(0, 20):.0f} samples/s", rank=step // 8 % 4)
    shown.log("the gradient overflowed, the loss scale is halved to 32768", rank=2, level="WARNING")
    return shown.experiment


def main() -> None:
    """Serve, fill, photograph."""
    browser_path = shutil.which("chromium-headless-shell")
    if browser_path is None:
        fail("there is no chromium-headless-shell", hint="python3 scripts/system.py test")
    with tempfile.TemporaryDirectory() as folder:
        command = [ROOT / "target/quick/instep", "master", "--port", "0", "--db", Path(folder) / "a.db"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as master, sync_playwright() as playwright:
            assert master.stdout is not None
            found = re.search(r"http://\S+", master.stdout.readline())
            assert found
            address = found[0]
            experiment = fill(Client(address).login())
            browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            for name, path, theme in (
                ("list", "/", "light"),
                ("charts", f"/det/experiments/{experiment}", "light"),
                ("logs", f"/det/experiments/{experiment}#logs", "dark"),
            ):
                viewport = {"width": 1200, "height": 760}
                page = browser.new_context(base_url=address, viewport=viewport, color_scheme=theme).new_page()
                page.goto(path)
                if name == "charts":
                    page.get_by_label("Smoothing").fill("0.8")
                    page.locator("figure[data-loaded=true] canvas").nth(2).wait_for()
                    box = page.locator(".u-over").first.bounding_box()
                    assert box
                    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
                else:
                    page.locator("td.name, .line").first.wait_for()
                page.screenshot(path=PICTURES / f"page-{name}.png")
                say(f"docs/pictures/page-{name}.png")
            browser.close()
            master.terminate()


if __name__ == "__main__":
    main()
