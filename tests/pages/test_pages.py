"""What people see and do: the list, an experiment's charts, checkpoints and logs, signing in."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from detached.conftest import Client, Master
from pages.conftest import HOSTILE, Window, add_trial, record


def box_of(page: Page, shape: Locator) -> FloatRect:
    """Give where something is, which a chart that is drawn anew is not for a moment."""
    deadline = time.monotonic() + 10
    while (box := shape.bounding_box()) is None:
        assert time.monotonic() < deadline, "it is not shown"
        page.wait_for_timeout(50)
    return box


def chart(page: Page, metric: str) -> Locator:
    """Find the chart of a metric, once its points are there."""
    found = page.locator(f'figure[data-metric="{metric}"][data-loaded="true"]')
    expect(found.locator("canvas")).to_be_visible()
    return found


def test_an_empty_master_says_how_to_record_something(window: Window, master: Master) -> None:
    window.page.goto("/")
    expect(window.page.get_by_role("heading", name="Nothing recorded yet")).to_be_visible()
    expect(window.page.locator("pre")).to_contain_text(f"INSTEP_MASTER={master.address}")
    expect(window.page.get_by_test_id("user")).to_have_text("determined")


def test_the_list_is_filtered_and_sorted(window: Window, api: Client) -> None:
    for index, name in enumerate(("alpha run", "beta run", "gamma")):
        recorded = record(api, name, labels=["nightly"] if name == "gamma" else [])
        recorded.report("validation", 1, loss=[0.3, 0.1, 0.2][index])
        if name != "gamma":
            recorded.end("STATE_COMPLETED" if index else "STATE_ERROR")
    page = window.page
    page.goto("/")
    rows = page.get_by_test_id("experiments").locator("tbody tr")
    names = page.locator("td.name > a")
    expect(names).to_have_text(["gamma", "beta run", "alpha run"])
    expect(rows.nth(0)).to_contain_text("Running")
    expect(rows.nth(2)).to_contain_text("Error")
    expect(rows.nth(1)).to_contain_text("0.1")
    page.get_by_role("button", name="Best metric").click()
    expect(names).to_have_text(["alpha run", "gamma", "beta run"])
    page.get_by_role("button", name="Name").click()
    expect(names).to_have_text(["alpha run", "beta run", "gamma"])
    page.get_by_label("Filter by name").fill("RUN")
    expect(names).to_have_text(["alpha run", "beta run"])
    page.get_by_label("State").select_option("completed")
    expect(names).to_have_text(["beta run"])
    # The address holds all of it, so that it can be sent to somebody.
    page.reload()
    expect(names).to_have_text(["beta run"])
    page.get_by_label("Filter by name").fill("nothing has this name")
    page.get_by_role("button", name="Show all experiments").click()
    expect(names).to_have_count(3)
    page.get_by_role("button", name="nightly").click()
    expect(names).to_have_text(["gamma"])
    names.first.click()
    expect(page.get_by_test_id("name")).to_have_text("gamma")


def test_a_chart_has_all_points_and_grows_while_one_looks(window: Window, api: Client) -> None:
    recorded = record(api, "live", hparams={"lr": 0.1, "model": {"layers": 3}})
    for step in range(1, 41):
        recorded.report("training", step, loss=1 / step)
    recorded.report("validation", 40, loss=0.5)
    page = window.page
    page.goto(f"/det/experiments/{recorded.experiment}")
    expect(chart(page, "training.loss")).to_have_attribute("data-points", "40")
    expect(chart(page, "validation.loss")).to_have_attribute("data-points", "1")
    expect(page.get_by_test_id("steps")).to_have_text("40")
    for step in range(41, 51):
        recorded.report("training", step, loss=1 / step)
    recorded.report("training", 51, accuracy=0.9)
    expect(chart(page, "training.loss")).to_have_attribute("data-points", "50")
    expect(chart(page, "training.accuracy")).to_have_attribute("data-points", "1")
    recorded.end()
    expect(page.get_by_test_id("state")).to_have_text("Completed")
    page.get_by_role("tab", name="Settings").click()
    expect(page.get_by_test_id("hyperparameters")).to_contain_text("model.layers")
    expect(page.get_by_test_id("config")).to_contain_text("name: live")


def test_long_series_are_thinned_out_and_zooming_brings_the_points_back(window: Window, api: Client) -> None:
    recorded = record(api, "long")
    for step in range(1, 2501):
        recorded.report("training", step, loss=step % 7)
    page = window.page
    page.goto(f"/det/experiments/{recorded.experiment}")
    figure = chart(page, "training.loss")
    expect(figure).to_have_attribute("data-total", "2500")
    assert 500 <= int(figure.get_attribute("data-points")) <= 1000
    box = box_of(page, figure.locator(".u-over"))
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=4)
    expect(page.locator(".tip")).to_contain_text("Step 1,")
    page.mouse.up()
    # A tenth of the steps: all of them are sent.
    expect(figure).to_have_attribute("data-points", re.compile(r"^2[3-7]\d$"))
    page.get_by_role("button", name="Reset zoom").click()
    expect(figure).to_have_attribute("data-points", re.compile(r"^(1000|9\d\d)$"))
    page.get_by_label("Log scale").check()
    page.get_by_label("Smoothing").fill("0.9")
    page.get_by_label("Axis").select_option("time")
    expect(figure.locator("canvas")).to_be_visible()


def test_trials_are_compared_in_one_chart(window: Window, api: Client) -> None:
    recorded = record(api, "search", hparams={"lr": 0.1})
    recorded.report("training", 1, loss=1)
    other = add_trial(api, recorded.experiment, {"lr": 0.2})
    recorded.trial = other["id"]
    for step in range(1, 4):
        recorded.report("training", step, loss=step)
    page = window.page
    page.goto(f"/det/experiments/{recorded.experiment}")
    expect(chart(page, "training.loss")).to_have_attribute("data-points", "4")
    page.locator(".trials label").nth(1).locator("input").uncheck()
    expect(chart(page, "training.loss")).to_have_attribute("data-points", "1")


def test_trials_stand_side_by_side(window: Window, api: Client) -> None:
    recorded = record(api, "search", hparams={"lr": 0.1, "batch": 8, "model": {"name": HOSTILE}})
    recorded.report("validation", 5, loss=0.7)
    recorded.end()
    for rate, loss in ((0.2, 0.3), (0.3, None)):
        recorded.trial = add_trial(api, recorded.experiment, {"lr": rate, "batch": 8, "model": {"name": "b"}})["id"]
        if loss is not None:
            recorded.report("validation", 9, loss=loss)
    page = window.page
    page.goto(f"/det/experiments/{recorded.experiment}")
    page.get_by_role("tab", name="Trials").click()
    rows = page.get_by_test_id("trials").locator("tbody tr")
    expect(rows).to_have_count(3)
    # What is the same for all trials is no column.
    expect(page.get_by_test_id("trials").locator("thead")).to_contain_text("model.name")
    expect(page.get_by_test_id("trials").locator("thead")).not_to_contain_text("batch")
    expect(rows.nth(0)).to_contain_text("Completed")
    expect(rows.nth(0)).to_contain_text(HOSTILE)
    expect(rows.nth(1)).to_contain_text("best")
    page.get_by_role("button", name="Best loss").click()
    expect(rows.nth(0)).to_contain_text("0.3")
    expect(rows.nth(1)).to_contain_text("0.7")
    page.get_by_role("button", name="Best loss").click()
    expect(rows.nth(0)).to_contain_text("0.7")
    # One without a metric is last, whichever way.
    expect(rows.nth(2)).to_contain_text("Running")


def slot(number: int, *, enabled: bool = True, parent: str | None = None) -> dict[str, object]:
    """A slot as the master tells of it."""
    device = {"id": number, "brand": "Xeon", "uuid": f"cpu-{number}", "type": "TYPE_CPU"}
    container = {"id": "c", "parent": parent, "state": "STATE_RUNNING"} if parent else None
    return {"id": str(number), "device": device, "enabled": enabled, "draining": False, "container": container}


POOL = {
    "name": "default",
    "description": "",
    "numAgents": 1,
    "slotsAvailable": 12,
    "slotsUsed": 1,
    "schedulerType": "priority",
}


def test_the_cluster_shows_what_every_slot_does(window: Window) -> None:
    slots = {str(number): slot(number) for number in range(11)}
    slots["2"] = slot(2, parent=f"7.{HOSTILE}")
    slots["11"] = slot(11, enabled=False)
    agent = {
        "id": "node-1",
        "registeredTime": "2026-01-02T03:04:05Z",
        "slots": slots,
        "containers": {},
        "addresses": ["10.0.0.1"],
        "enabled": True,
        "draining": False,
        "connected": True,
        "version": "0.38.1",
        "instepVersion": "0.1.0",
        "resourcePools": ["default"],
    }
    page = window.page
    page.route("**/api/v1/agents*", lambda route: route.fulfill(json={"agents": [agent]}))
    page.route("**/api/v1/resource-pools*", lambda route: route.fulfill(json={"resourcePools": [POOL]}))
    page.goto("/")
    page.get_by_role("link", name="Cluster").click()
    expect(page.get_by_test_id("agent-count")).to_have_text("1 agent")
    expect(page.get_by_test_id("pool")).to_contain_text("1 of 12 slots")
    shown = page.get_by_test_id("agents").locator(".slots li")
    expect(shown).to_have_count(12)
    expect(shown.nth(2)).to_contain_text(f"2 Busy 7.{HOSTILE}")
    expect(shown.nth(10)).to_contain_text("10 Free")
    expect(shown.nth(11)).to_contain_text("11 Disabled")


def test_a_cluster_without_machines_says_how_to_get_one(window: Window, master: Master) -> None:
    page = window.page
    page.route("**/api/v1/agents*", lambda route: route.fulfill(json={"agents": []}))
    page.route("**/api/v1/resource-pools*", lambda route: route.fulfill(json={"resourcePools": [POOL]}))
    page.goto("/det/cluster")
    expect(page.get_by_role("heading", name="No agents connected")).to_be_visible()
    expect(page.locator("pre")).to_have_text(f"instep agent --master {master.address}")


def test_the_queue_says_why_something_waits(window: Window) -> None:
    def job(number: int, state: str, reason: str) -> dict[str, object]:
        job = {
            "jobId": f"job-{number}",
            "entityId": str(number),
            "type": "TYPE_EXPERIMENT",
            "submissionTime": "2026-01-02T03:04:05Z",
            "username": "determined",
            "resourcePool": "default",
            "name": f"search {number}",
            "priority": 42,
            "weight": 1,
            "requestedSlots": 8,
            "allocatedSlots": 8 if state == "STATE_SCHEDULED" else 0,
            "progress": 0,
            "summary": {"state": state, "jobsAhead": number},
            "reason": reason,
        }
        return {"full": job}

    reason = f"waiting: needs 8 slots, pool default has 4 free, behind {HOSTILE}"
    jobs = [job(1, "STATE_SCHEDULED", ""), job(2, "STATE_QUEUED", reason)]
    page = window.page
    page.route("**/api/v1/resource-pools*", lambda route: route.fulfill(json={"resourcePools": [POOL]}))
    page.route("**/api/v1/job-queues-v2*", lambda route: route.fulfill(json={"jobs": jobs}))
    page.goto("/det/queue")
    rows = page.get_by_test_id("queue-default").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("8 of 8")
    expect(rows.nth(0).get_by_test_id("reason")).to_have_count(0)
    expect(rows.nth(1).get_by_test_id("reason")).to_have_text(reason)
    expect(rows.nth(1).get_by_role("link")).to_have_attribute("href", "/det/experiments/2")
    page.route("**/api/v1/job-queues-v2*", lambda route: route.fulfill(json={"jobs": []}))
    expect(page.get_by_role("heading", name="The queue is empty")).to_be_visible()


def test_checkpoints_show_their_files_and_sizes(window: Window, api: Client) -> None:
    recorded = record(api, "saves")
    page = window.page
    page.goto(f"/det/experiments/{recorded.experiment}#checkpoints")
    expect(page.get_by_role("heading", name="No checkpoints")).to_be_visible()
    uuid = recorded.save(100, {"shard_0/model.pt": 1536, "shard_1/model.pt": 2 << 20, "shard_1/": 0}, note="first")
    item = page.get_by_test_id("checkpoints").locator("li")
    expect(item).to_contain_text("Step 100")
    expect(item).to_contain_text("2 files")
    item.locator("summary").click()
    expect(item.locator(".files")).to_contain_text("shard_0/model.pt")
    expect(item.locator(".files")).to_contain_text("1.5 KiB")
    expect(item).to_contain_text(uuid)
    expect(item).to_contain_text("note: first")


def test_logs_are_filtered_and_followed(window: Window, api: Client) -> None:
    recorded = record(api, "talks")
    recorded.log("zero starts", "loss is 3.5")
    recorded.log("one starts", rank=1)
    recorded.log("something broke", rank=1, level="ERROR")
    page = window.page
    page.goto(f"/det/experiments/{recorded.experiment}#logs")
    texts = page.locator(".line .text")
    expect(texts).to_have_text(["zero starts", "loss is 3.5", "one starts", "something broke"])
    recorded.log("and on it goes")
    expect(texts).to_have_count(5)
    page.get_by_label("Rank").select_option("1")
    expect(texts).to_have_text(["one starts", "something broke"])
    page.get_by_label("Level").select_option("WARNING")
    expect(texts).to_have_text(["something broke"])
    page.get_by_label("Level").select_option("")
    page.get_by_label("Rank").select_option("")
    page.get_by_label("Search logs").fill(r"loss is \d\.\d")
    expect(page.get_by_role("heading", name="No matching lines")).to_be_visible()
    page.get_by_label("Regular expression").check()
    expect(texts).to_have_text(["loss is 3.5"])
    page.get_by_label("Search logs").fill("(")
    expect(page.get_by_role("alert")).to_contain_text("is not a regular expression")


def test_hostile_text_is_only_ever_text(window: Window, api: Client) -> None:
    recorded = record(
        api, HOSTILE, hparams={HOSTILE: HOSTILE}, labels=[HOSTILE], description=HOSTILE, data={"x": HOSTILE}
    )
    recorded.report_values("training", 1, {HOSTILE: 1.0, "words": HOSTILE})
    recorded.report_values(HOSTILE.replace(".", "_"), 1, {"x": 1.0})
    recorded.log(HOSTILE)
    recorded.save(1, {HOSTILE: 1}, note=HOSTILE)
    page = window.page
    page.goto("/")
    expect(page.locator("td.name > a")).to_have_text(HOSTILE)
    expect(page.locator("td.name .chip")).to_have_text(HOSTILE)
    page.goto(f"/det/experiments/{recorded.experiment}")
    expect(page.get_by_test_id("name")).to_have_text(HOSTILE)
    expect(page.locator("figure .metric").first).to_have_text(HOSTILE)
    expect(page.locator("td", has_text="window.hacked")).to_be_visible()
    page.get_by_role("tab", name="Logs").click()
    expect(page.locator(".line .text")).to_have_text(HOSTILE)
    page.get_by_role("tab", name="Checkpoints").click()
    page.locator("summary").click()
    expect(page.locator(".files td").first).to_have_text(HOSTILE)
    page.get_by_role("tab", name="Settings").click()
    expect(page.get_by_test_id("hyperparameters").locator("th")).to_have_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0


def test_signing_in_and_out(window: Window, master: Master) -> None:
    administrator = master.client.login("admin")
    users = {user["username"]: user["id"] for user in administrator("GET", "/api/v1/users")["users"]}
    change = {"password": "secret enough", "isHashed": False}
    administrator("PATCH", f"/api/v1/users/{users['determined']}", change)
    page = window.page
    page.goto("/")
    page.get_by_label("User").fill("determined")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Wrong user name or password")
    page.get_by_label("Password").fill("secret enough")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("user")).to_have_text("determined")
    page.reload()
    expect(page.get_by_test_id("user")).to_have_text("determined")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate("Object.keys(localStorage).filter((key) => key.includes('token'))") == []


def test_a_missing_experiment_and_a_missing_master_are_said_clearly(
    window: Window, api: Client, master: Master
) -> None:
    page = window.page
    page.goto("/det/experiments/77")
    expect(page.get_by_role("heading", name="There is no experiment 77")).to_be_visible()
    record(api, "here")
    page.goto("/")
    expect(page.locator("td.name > a")).to_have_text("here")
    master.kill()
    expect(page.get_by_role("alert")).to_contain_text("is not responding")


def test_everything_can_be_done_with_the_keyboard(window: Window, api: Client) -> None:
    recorded = record(api, "keys")
    page = window.page
    page.goto(f"/det/experiments/{recorded.experiment}")
    page.get_by_role("tab", name="Charts").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Trials")).to_be_focused()
    expect(page.get_by_role("tab", name="Trials")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Checkpoints")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_hangs_out_of_the_window(window: Window, api: Client, width: int) -> None:
    recorded = record(api, "a-name-without-any-place-to-break-" * 6, labels=["one", "two"], description="long " * 40)
    recorded.report("training", 1, loss=1)
    page = window.page
    page.set_viewport_size({"width": width, "height": 800})
    for path in (
        "/",
        *(f"/det/experiments/{recorded.experiment}#{tab}" for tab in ("charts", "trials", "logs", "settings")),
    ):
        page.goto(path)
        expect(page.locator("main h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path


def test_pages_carry_their_own_rules(master: Master) -> None:
    status, headers, body = master.client.raw("GET", "/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    script = re.search(rb'src="(/assets/[^"]+\.js)"', body)
    assert script
    status, headers, _ = master.client.raw("GET", script[1].decode())
    assert status == 200
    assert "immutable" in headers["cache-control"]
    assert master.client.raw("GET", "/assets/../../etc/passwd")[0] == 404
    assert master.client.raw("GET", "/assets/nothing.js")[0] == 404
