"""Pages that tasks serve, opened by somebody who is signed in: they work, and reach nothing but themselves."""

from __future__ import annotations

import base64
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from detached.conftest import Client
from managed.conftest import Cluster
from pages.conftest import record

HOSTILE = Path(__file__).parent / "contexts" / "hostile"


def launch(cluster: Cluster) -> str:
    """Start a task whose page is somebody's own program, and wait until it serves."""
    files = [
        {"path": str(path.relative_to(HOSTILE)), "content": base64.b64encode(path.read_bytes()).decode(), "type": 48}
        for path in sorted(HOSTILE.rglob("*.py"))
    ]
    recorded = record(cluster.api, "shown", checkpoint_storage={"type": "shared_fs", "host_path": str(cluster.folder)})
    request = {"experimentIds": [recorded.experiment], "files": files}
    task: str = cluster.api("POST", "/api/v1/tensorboards", request)["tensorboard"]["id"]

    def ready() -> bool:
        [allocation] = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["allocations"]
        return bool(allocation["isReady"])

    cluster.wait_until(ready, 60, "the task to serve")
    return task


@pytest.fixture
def cluster(one_agent: Callable[[Path], Cluster]) -> Cluster:
    """A master with an agent."""
    return one_agent(Path(sys.executable))


def opened(context: BrowserContext, task: str) -> Page:
    """Sign in, and open a task's page the way that `det tensorboard open` does."""
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_test_id("user")).to_have_text("determined")
    page.goto(f"/det/interactive/{task}/tensorboard")
    expect(page.get_by_role("heading", name="Task", exact=True)).to_be_visible()
    return page


def workspaces(api: Client) -> list[str]:
    """Name the workspaces that somebody made."""
    return sorted(found["name"] for found in api("GET", "/api/v1/workspaces")["workspaces"] if found["id"] != 1)


# What a page can try to make the master do without being allowed to read the answer.
FORGE = """async (master) => {
    const made = (name) => JSON.stringify({name});
    const path = master + "/api/v1/workspaces";
    await fetch(path, {method: "POST", body: made("fetched"), credentials: "include"}).catch(() => 0);
    await fetch(path, {method: "POST", body: made("blind"), credentials: "include", mode: "no-cors"}).catch(() => 0);
    navigator.sendBeacon(path, made("beacon"));
    const frame = Object.assign(document.createElement("iframe"), {name: "sink"});
    document.body.append(frame);
    const form = Object.assign(document.createElement("form"),
        {method: "POST", action: path, target: "sink", enctype: "text/plain"});
    form.append(Object.assign(document.createElement("input"), {name: '{"name": "form', value: '"}'}));
    document.body.append(form);
    const sent = new Promise((done) => { frame.onload = done; });
    form.submit();
    await sent;
}"""


def origin_of(page: Page) -> str:
    """Give the origin of what a window shows."""
    return str(page.evaluate("location.origin"))


READ = """(address) => fetch(address, {credentials: "include"}).then((answer) => answer.text(), () => null)"""
ASK = """async ([path, method, body]) => {
    const answer = await fetch(path, {method, body});
    return [answer.status, await answer.text()];
}"""


def test_a_task_s_page_does_not_get_at_the_session(cluster: Cluster, context: BrowserContext) -> None:
    page = opened(context, launch(cluster))
    found = page.evaluate("[Object.entries(localStorage), Object.entries(sessionStorage), document.cookie].join()")
    assert "token" not in found and "auth" not in found and "instep" not in found, found
    assert origin_of(page) != cluster.master.address, "the page has the master's own origin"
    assert page.evaluate(READ, f"{cluster.master.address}/api/v1/me") is None
    page.evaluate(FORGE, cluster.master.address)
    assert workspaces(cluster.api) == []
    # The same by a page of the master's does something: it is the origin that decides.
    mine = context.new_page()
    mine.goto("/")
    assert mine.evaluate(ASK, ["/api/v1/workspaces", "POST", '{"name": "own"}'])[0] == 200
    assert workspaces(cluster.api) == ["own"]
    assert mine.evaluate("document.cookie") == "", "a script can read the session"


def test_a_task_s_page_cannot_show_the_master_s(cluster: Cluster, context: BrowserContext) -> None:
    page = opened(context, launch(cluster))
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.evaluate(
        """(master) => new Promise((done) => {
            const frame = Object.assign(document.createElement("iframe"), {src: master + "/", onload: done});
            document.body.append(frame);
        })""",
        cluster.master.address,
    )
    assert any("frame-ancestors" in text for text in refused), refused
    [_, frame] = page.frames
    assert not frame.url.startswith("http"), frame.url
    # A window that it opens is another origin's: it can be neither read nor scripted.
    with context.expect_page() as opening:
        page.evaluate("(master) => { window.other = window.open(master + '/') }", cluster.master.address)
    expect(opening.value.get_by_test_id("user")).to_have_text("determined")
    blocked = "() => { try { return window.other.document.title } catch (error) { return error.name } }"
    assert page.evaluate(blocked) == "SecurityError"


def test_a_task_s_page_works_at_its_own_address(cluster: Cluster, context: BrowserContext) -> None:
    task = launch(cluster)
    page = opened(context, task)
    base = f"/proxy/{task}/"
    assert page.url.endswith(base), "the ticket is still in the address"
    # What the task is told of who asks: nothing of the master's.
    page.evaluate(ASK, [f"{base}cookies", "GET", None])
    kept = {(cookie["name"], cookie["path"]) for cookie in context.cookies()}
    own = {("own", base), ("wide", base)}
    assert {each for each in kept if not each[0].startswith("instep_")} == own
    assert [path for name, path in kept if name.startswith("instep_session_")] == ["/"]
    assert [path for name, path in kept if name.startswith("instep_task_")] == [base]
    status, seen = page.evaluate(ASK, [f"{base}seen", "GET", None])
    assert status == 200 and "own=1" in seen and "instep_" not in seen and "authorization" not in seen, seen
    for method in ("POST", "PUT"):
        assert page.evaluate(ASK, [f"{base}echo", method, "a body"]) == [200, "a body"]
    # A websocket, there and back.
    echo = """(path) => new Promise((done, failed) => {
        const socket = new WebSocket(location.origin.replace("http", "ws") + path);
        socket.onopen = () => socket.send("over the wire");
        socket.onmessage = (event) => { done(event.data); socket.close(); };
        socket.onerror = () => failed(new Error("no websocket"));
    })"""
    assert page.evaluate(echo, f"{base}socket") == "over the wire"
    # What it says for the whole host is not passed on.
    page.evaluate(ASK, [f"{base}clear", "GET", None])
    assert {(cookie["name"], cookie["path"]) for cookie in context.cookies()} == kept
    # Nor can a page of the master's speak to it: it is another origin there, too.
    mine = context.new_page()
    mine.goto("/")
    assert mine.evaluate(READ, f"{origin_of(page)}{base}seen") is None


def test_a_ticket_and_a_key_are_for_one_use_and_one_task(
    cluster: Cluster, context: BrowserContext, browser: Browser
) -> None:
    tickets: list[str] = []
    task, other = launch(cluster), launch(cluster)
    context.on("request", lambda request: tickets.append(request.url) if "instep_ticket=" in request.url else None)
    page = opened(context, task)
    [used] = tickets
    origin = origin_of(page)
    thief = browser.new_context()
    try:
        stolen = thief.new_page()
        answer = stolen.goto(used)
        assert answer is not None and answer.status == 403
        assert "was used before" in stolen.content() and "hint:" in stolen.content()
        # The key of one task is nothing at another, nor is it a session; nor is the session a key.
        [key] = [cookie for cookie in context.cookies() if cookie["name"].startswith("instep_task_")]
        [session] = [cookie for cookie in context.cookies() if cookie["name"].startswith("instep_session_")]

        def ask(address: str, name: str, value: str) -> int:
            headers = {"Cookie": f"{name}={value}", "Sec-Fetch-Site": "same-origin"}
            return thief.request.get(address, headers=headers, max_redirects=0).status

        assert ask(f"{origin}/proxy/{task}/", key["name"], key["value"]) == 200
        assert ask(f"{origin}/proxy/{other}/", key["name"], key["value"]) == 401
        assert ask(f"{origin}/proxy/{task}/", session["name"], session["value"]) == 401
        assert ask(f"{cluster.master.address}/api/v1/me", session["name"], session["value"]) == 200
        assert ask(f"{cluster.master.address}/api/v1/me", session["name"], key["value"]) == 401
        assert ask(f"{cluster.master.address}/api/v1/me", "auth", key["value"]) == 401
        assert ask(f"{origin}/api/v1/me", session["name"], session["value"]) == 404, "the API is not there"
    finally:
        thief.close()
    # With the session the key ends, at once.
    mine = context.new_page()
    mine.goto("/")
    mine.get_by_role("button", name="Sign out").click()
    expect(mine.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate(ASK, [f"/proxy/{task}/seen", "GET", None])[0] == 401


def test_a_task_s_page_opens_no_other_without_a_question(cluster: Cluster, context: BrowserContext) -> None:
    task, other = launch(cluster), launch(cluster)
    page = opened(context, task)
    for path in (f"/proxy/{other}/", f"/det/interactive/{other}/tensorboard"):
        with context.expect_page() as opening:
            page.evaluate("(address) => { window.open(address) }", cluster.master.address + path)
        question = opening.value
        expect(question.get_by_role("heading", name=f"Open the page of task {other[:8]}?")).to_be_visible()
        assert page.evaluate(ASK, [f"/proxy/{other}/seen", "GET", None])[0] == 401, "it has a key for the other"
    question.get_by_role("button", name="Open the page").click()
    expect(question.get_by_role("heading", name="Task", exact=True)).to_be_visible()
    assert f"/proxy/{other}/" in question.url


def test_who_is_not_signed_in_signs_in_and_gets_to_the_page(cluster: Cluster, context: BrowserContext) -> None:
    task = launch(cluster)
    administrator = cluster.master.client.login("admin")
    users = {user["username"]: user["id"] for user in administrator("GET", "/api/v1/users")["users"]}
    change = {"password": "secret enough", "isHashed": False}
    administrator("PATCH", f"/api/v1/users/{users['determined']}", change)
    page = context.new_page()
    page.goto(f"/proxy/{task}/some/page?tab=1")
    page.get_by_label("User").fill("determined")
    page.get_by_label("Password").fill("secret enough")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Task", exact=True)).to_be_visible()
    assert page.url.endswith(f"/proxy/{task}/some/page?tab=1") and origin_of(page) != cluster.master.address
    # A bookmark of the page leads there again, also when the browser has lost the key.
    bookmark = page.url
    context.clear_cookies(path=f"/proxy/{task}/")
    page.goto(bookmark)
    expect(page.get_by_role("heading", name="Task", exact=True)).to_be_visible()
    assert page.url == bookmark


def answered(address: str, path: str, token: str | None, count: int) -> tuple[socket.socket, bytes]:
    """Ask for a websocket as programs do, and give the connection with the first bytes of the answer."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    wants = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{bearer}{wants}\r\n".encode())
    return connection, connection.recv(count)


def test_programs_use_websockets_with_a_token_until_the_session_ends(cluster: Cluster) -> None:
    task, program = launch(cluster), cluster.master.client.login()
    path = f"/proxy/{task}/socket"
    stranger, head = answered(cluster.master.address, path, None, 12)
    assert head == b"HTTP/1.1 401"
    stranger.close()
    connection, head = answered(cluster.master.address, path, program.token, 4096)
    assert head.startswith(b"HTTP/1.1 101"), head
    # One masked text, there and back.
    connection.sendall(b"\x81\x82\0\0\0\0hi")
    assert connection.recv(16) == b"\x81\x02hi"
    program("POST", "/api/v1/auth/logout")
    assert connection.recv(16) == b"", "the websocket outlives its session"
    connection.close()
