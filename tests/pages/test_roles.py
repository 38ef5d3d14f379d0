"""The pages of a master with roles: what one may not see is not there, and it is said why."""

from __future__ import annotations

from playwright.sync_api import expect

from detached.conftest import Master
from detached.conftest import master_with_roles as master
from pages.conftest import Window

__all__ = ["master"]


def test_lists_hold_what_one_may_see_and_say_why_they_are_empty(window: Window, master: Master) -> None:
    admin = master.client.login("admin")
    config = "{name: hidden run, searcher: {name: single, metric: x}}"
    experiment = admin("POST", "/api/v1/experiments", {"config": config, "unmanaged": True})["experiment"]["id"]
    page = window.page
    page.goto("/")
    expect(page.get_by_role("heading", name="No workspace is shared with you yet")).to_be_visible()
    expect(page.locator("body")).not_to_contain_text("hidden run")
    page.goto(f"/det/experiments/{experiment}")
    expect(page.locator("body")).to_contain_text(f"There is no experiment {experiment}")
    user = master.client.login()("GET", "/api/v1/me")["user"]["id"]
    viewer = {"userId": user, "roleAssignment": {"role": {"roleId": 4}, "scopeWorkspaceId": 1}}
    admin("POST", "/api/v1/roles/add-assignments", {"userRoleAssignments": [viewer]})
    page.goto("/det/experiments")
    expect(page.get_by_test_id("experiments")).to_contain_text("hidden run")


def test_jobs_of_others_have_no_names_in_the_queue(window: Window, master: Master) -> None:
    admin = master.client.login("admin")
    admin("POST", "/api/v1/commands", {"config": {"entrypoint": ["true"], "description": "hidden command"}})
    page = window.page
    pool = {"name": "default", "description": "", "numAgents": 1, "slotsAvailable": 1, "slotsUsed": 0}
    page.route("**/api/v1/resource-pools*", lambda route: route.fulfill(json={"resourcePools": [pool]}))
    page.goto("/det/queue")
    rows = page.get_by_test_id("queue-default").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.nth(0)).to_contain_text("Another user's job")
    expect(rows.nth(0).get_by_role("link")).to_have_count(0)
    expect(page.locator("body")).not_to_contain_text("hidden command")
