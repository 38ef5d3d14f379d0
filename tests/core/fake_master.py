"""A master that says to a task what a test wants it to say, and remembers what it was told."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "of this allocation"


class FakeMaster(ThreadingHTTPServer):
    """Answers what a task of a cluster asks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.preempt = threading.Event()
        self.calls: list[tuple[str, str, Any]] = []
        self.refused: list[str] = []
        # Paths that are answered late.
        self.slow = "nothing"
        self.answered: list[str] = []

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, pattern: str) -> list[Any]:
        """The bodies of calls to a path."""
        return [body for _, path, body in self.calls if re.fullmatch(pattern, path)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeMaster

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = json.loads(body) if body else None
        self.server.calls.append((self.command, parts.path, given))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.server.refused.append(self.path)
            return self._answer({"error": {"code": 16, "reason": "Unauthenticated", "error": "who?"}}, 401)
        if parts.path.endswith("/signals/preemption"):
            [seconds] = parse_qs(parts.query)["timeout_seconds"]
            told = self.server.preempt.wait(min(float(seconds), 20.0))
            # Ranks that ask for themselves do not hear it at the same time.
            time.sleep(0.01 * (self.client_address[1] % 5))
            return self._answer({"preempt": told})
        if re.fullmatch(self.server.slow, parts.path):
            time.sleep(0.3)
        self.server.answered.append(parts.path)
        if parts.path == "/api/v1/runs/start":
            return self._answer({"storageId": 3})
        return self._answer({})

    def _answer(self, value: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def fake_master() -> Iterator[FakeMaster]:
    """Serve for the length of a block."""
    server = FakeMaster()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.preempt.set()
        server.shutdown()
        thread.join()
        server.server_close()
