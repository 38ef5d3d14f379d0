"""What stands between a master and the API server: it counts calls, holds answers back, and cuts the connection.

with Gateway(kubernetes.folder) as gateway:
    gateway.hold("POST", "/jobs")       # the server gets the next such call, and its answer goes nowhere
    gateway.cut()                       # nobody is connected, and nobody gets in
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REQUEST = re.compile(rb"(?:^|\r\n)(GET|POST|PUT|PATCH|DELETE) (\S+) HTTP/1\.1\r\n")


@dataclass
class Call:
    """A request that has passed."""

    method: str
    path: str
    at: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        """Without the query, and with a star for a name."""
        path = re.sub(r"/(jobs|pods|secrets)/[^/?]+", r"/\1/*", self.path.partition("?")[0])
        watch = " (watch)" if "watch=1" in self.path else ""
        return f"{self.method} {path.rpartition('/namespaces/')[2]}{watch}"


class Gateway:
    """A server with the API server's own certificate, which passes on what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.calls: list[Call] = []
        # How often the server has said that a version is too old to go on from.
        self.expired = 0
        self.held = threading.Event()
        config = json.loads((folder / "kubeconfig").read_text())
        cluster = config["clusters"][0]["cluster"]
        host, _, port = cluster["server"].removeprefix("https://").partition(":")
        self._upstream = (host, int(port))
        # For clients of the real server, which has the same certificate.
        self.trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self._identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._identity.load_cert_chain(folder / "certs" / "apiserver.crt", folder / "certs" / "apiserver.key")
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.Task[None]] = set()
        self._wish: tuple[str, str] | None = None
        self._is_cut = False

    def __enter__(self) -> Gateway:
        """Begin to serve."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        """End all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def kubeconfig(self, path: Path) -> Path:
        """A copy of a kubeconfig whose server is this one."""
        config: dict[str, Any] = json.loads(path.read_text())
        config["clusters"][0]["cluster"]["server"] = self.address
        made = path.with_name(f"{path.name}.gateway")
        made.write_text(json.dumps(config))
        return made

    def hold(self, method: str, end: str) -> None:
        """Keep back the answer to the next call of this kind whose path ends so; `held` says that it has come."""
        self.held.clear()
        self._wish = (method, end)

    def cut(self) -> None:
        """End all connections, and take none."""
        self._is_cut = True
        for one in list(self._open):
            self._loop.call_soon_threadsafe(one.cancel)

    def mend(self) -> None:
        """Take connections again."""
        self._is_cut = False

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=self._identity, backlog=256)
        self.address = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _end(self) -> None:
        self._server.close()
        connections = list(self._open)
        self.cut()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if not self._is_cut:
                answers, requests = await asyncio.open_connection(*self._upstream, ssl=self.trust)
                writers.append(requests)
                is_held = asyncio.Event()
                ways = (self._upwards(reader, requests, is_held), self._downwards(answers, writer, is_held))
                # Whoever ends first has ended the connection.
                tasks = [asyncio.ensure_future(way) for way in ways]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for one in tasks:
                        one.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            for one in writers:
                # Nobody hears the end of what is cut.
                one.transport.abort()

    async def _upwards(
        self, reader: asyncio.StreamReader, requests: asyncio.StreamWriter, is_held: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                for method, path in REQUEST.findall(data):
                    call = Call(method.decode(), path.decode())
                    self.calls.append(call)
                    if self._wish and call.method == self._wish[0] and call.path.endswith(self._wish[1]):
                        self._wish = None
                        is_held.set()
                requests.write(data)
                await requests.drain()

    async def _downwards(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, is_held: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await answers.read(1 << 16):
                self.expired += data.count(b'"code":410')
                if is_held.is_set():
                    self.held.set()
                    continue
                writer.write(data)
                await writer.drain()
