"""A master of one's own for each test, a plain client of its REST API, and the interpreter with `determined`.

The unmodified `determined` package lives in an environment of its own (`build/determined`, made by
`python3 scripts/build.py determined`), because it pins what others want newer.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import sqlite3
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from zygote import forking

from . import document

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
# Fetched once: every master of the tests is the same program.
DOCUMENT: dict[str, Any] = {}


class Failed(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, body: Any) -> None:  # noqa: ANN401
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body

    @property
    def message(self) -> str:
        """The sentence for people, in either shape of errors."""
        return str(self.body.get("message") or self.body["error"]["error"])


class Client:
    """Speaks JSON to a master; to one that encrypts, if it shows a certificate that is trusted."""

    def __init__(self, address: str, token: str | None = None, trusted: Path | None = None) -> None:
        self.address = address
        self.token = token
        self._trusted = trusted

    def connection(self, seconds: float = 30) -> http.client.HTTPConnection:
        """A connection to the master, which is made when it is used."""
        parts = urlsplit(self.address)
        assert parts.hostname is not None
        if self._trusted is None:
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
        context = ssl.create_default_context(cafile=str(self._trusted))
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=seconds, context=context)

    def raw(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send bytes as they are; give status, headers and body."""
        connection = self.connection()
        try:
            all_headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            connection.request(method, path, body=body, headers={**all_headers, **(headers or {})})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()
        finally:
            connection.close()

    def __call__(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        """Send JSON and give the answer; `Failed` if it is none of success."""
        data = None if body is None else json.dumps(body).encode()
        status, _, answer = self.raw(method, path, data)
        value = json.loads(answer)
        if status != 200:
            raise Failed(status, value)
        self.compare(method, path, value)
        return value

    def compare(self, method: str, path: str, value: object) -> None:
        """Compare an answer with what the OpenAPI document says of it."""
        if not DOCUMENT:
            DOCUMENT.update(json.loads(self.raw("GET", "/api/openapi.json")[2]))
        schema = document.answer_schema(DOCUMENT, method, path)
        wrong = document.contradictions(schema, value) if schema else []
        assert not wrong, f"{method} {path} contradicts the OpenAPI document: {wrong[:5]}"

    def lines(self, path: str) -> list[Any]:
        """The elements of a streamed answer."""
        status, headers, answer = self.raw("GET", path)
        assert status == 200, answer
        assert headers["transfer-encoding"] == "chunked"
        lines = answer.decode().split("\n")
        assert lines.pop() == "", "the last line ends like the others"
        return [json.loads(line)["result"] for line in lines]

    def login(self, username: str = "determined", password: str = "") -> Client:
        """A client that speaks for a user."""
        request = {"username": username, "password": password, "isHashed": False}
        return Client(self.address, self("POST", "/api/v1/auth/login", request)["token"], self._trusted)


def plain(text: str) -> object:
    """A value as SQLite's driver gives it, from what psql prints."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return {"t": 1, "f": 0, "": None}.get(text, text)


class Master:
    """`instep master` on a database of its own: a file, or a schema of the server that INSTEP_TEST_DATABASE names."""

    def __init__(
        self,
        start: Callable[..., Any],
        instep: Path,
        database: Path,
        server: str | None = None,
        *,
        place: str | None = None,
    ) -> None:
        self._start = start
        self._instep = instep
        self.database = database
        server = server or os.environ.get("INSTEP_TEST_DATABASE")
        schema = f"test_{hashlib.sha256(str(database).encode()).hexdigest()[:16]}"
        # What `--db` names.
        self.place = place or (f"{server}?schema={schema}" if server else str(database))
        self.port = 0
        self.process: Any = None
        self.address = ""

    def start(self, wait_until: Callable[..., None], *options: str) -> None:
        """Start it, after the first time on the same port."""
        words = ("master", "--port", str(self.port), "--db", self.place, *options)
        self.process = self._start(self._instep, *words, env=self.environment)
        pattern = re.compile(r"listening on (http://\S+:(\d+)) ")
        wait_until(
            lambda: pattern.search(self.process.stdout) or self.process.poll() is not None, 30, "the master to listen"
        )
        found = pattern.search(self.process.stdout)
        assert found, self.process.stderr
        self.address, self.port = found[1], int(found[2])

    @property
    def environment(self) -> dict[str, str]:
        """What belongs to a database in PostgreSQL lies in the user's data folder: here beside the test's others."""
        return {"XDG_DATA_HOME": str(self.database.parent)} if "://" in self.place else {}

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query, or what a change with RETURNING gives, on a database that may be in use."""
        if "://" not in self.place:
            with contextlib.closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
                return list(connection.execute(sql, values))
        address, _, schema = self.place.partition("?schema=")
        for value in values:
            quoted = "'" + str(value).replace("'", "''") + "'"
            sql = sql.replace("?", quoted if isinstance(value, str) else str(value), 1)
        where = ["psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-F", "\x1f", "-R", "\x1e", "-d", address]
        variables = {**os.environ, "PGOPTIONS": f"-c search_path={schema}"}
        done = subprocess.run([*where, "-c", sql], env=variables, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.removesuffix("\n").split("\x1e") if done.stdout.strip("\n") else []
        return [tuple(map(plain, line.split("\x1f"))) for line in lines]

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it in order."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait().expect(0)

    @property
    def client(self) -> Client:
        """A client without a token."""
        return Client(self.address)


@pytest.fixture
def master(run: Any, instep: Path, tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[Master]:  # noqa: ANN401
    """A running master, ended in order when the test is over."""
    yield from started(Master(run.start, instep, tmp_path / "master.db"), wait_until)


@pytest.fixture
def master_with_roles(
    run: Any,  # noqa: ANN401
    instep: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Iterator[Master]:
    """The same with roles; a file whose tests all want them imports it as `master`."""
    yield from started(Master(run.start, instep, tmp_path / "master.db"), wait_until, "--roles")


def started(server: Master, wait_until: Callable[..., None], *options: str) -> Iterator[Master]:
    """Start a master, and end it in order."""
    server.start(wait_until, *options)
    yield server
    if server.process.poll() is None:
        server.stop()


@pytest.fixture
def api(master: Master) -> Client:
    """A client that speaks for the default user."""
    return master.client.login()


@pytest.fixture(scope="session")
def determined() -> Path:
    """The interpreter with the unmodified `determined` package."""
    path = ROOT / "build" / "determined" / "bin" / "python"
    if not path.exists():
        pytest.fail(f"there is no {path}\nhint: python3 scripts/build.py determined", pytrace=False)
    return path


@pytest.fixture(scope="session")
def forked_determined(determined: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same with torch imported already."""
    modules = ("torch._dynamo", "torch.distributed.launcher.api", "torch.nn.parallel")
    with forking(determined, "determined", tmp_path_factory, modules) as interpreter:
        yield interpreter


@pytest.fixture(scope="session")
def forked_det(determined: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same with Determined's client imported already, but for `det` itself, which reads DET_MASTER as it is."""
    modules = ("determined.cli", "determined.experimental.client")
    with forking(determined, "det", tmp_path_factory, modules) as interpreter:
        yield interpreter


@pytest.fixture
def settings(master: Master, tmp_path: Path) -> dict[str, str]:
    """The environment for Determined's client: this test's master, and no trace of other logins."""
    return {
        "DET_MASTER": master.address,
        "DET_DEBUG_CONFIG_PATH": str(tmp_path / "client"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "HOME": str(tmp_path),
    }
