"""A server in the place of TensorBoard: says what it is sent, sets cookies, and echoes one message of a websocket."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import sys

OPTIONS = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
COOKIES = (
    "own=1; Path=/; Domain=127.0.0.1; Max-Age=600",
    "wide=1; Path=/",
    "auth=stolen; Path=/",
    "instep_session=stolen; Path=/",
    "=instep_nameless=stolen; Path=/",
)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers below the address that the master gave."""

    protocol_version = "HTTP/1.1"

    def answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.path.endswith("/clear"):
            self.send_header("Clear-Site-Data", '"cookies", "storage"')
        if self.path.endswith("/cookies"):
            for cookie in COOKIES:
                self.send_header("Set-Cookie", cookie)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """A page, what the request carried, or a websocket."""
        if self.headers.get("Upgrade") == "websocket":
            self.echo()
        elif self.path.endswith("/seen"):
            self.answer("application/json", json.dumps({name.lower(): value for name, value in self.headers.items()}))
        else:
            self.answer("text/html", f"<!doctype html><title>task</title><h1>Task</h1><p>{OPTIONS['path_prefix']}</p>")

    def do_POST(self) -> None:
        """The body again."""
        self.answer("text/plain", self.rfile.read(int(self.headers["Content-Length"])).decode())

    do_PUT = do_POST

    def echo(self) -> None:
        """Accept a websocket, send one short text back, with the origin that the browser said, and end."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while (head := self.rfile.read(2)) and head[0] & 15 == 1:
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[index % 4] for index, byte in enumerate(self.rfile.read(head[1] & 127)))
            self.wfile.write(bytes((0x81, len(text))) + text)
        self.wfile.write(b"\x88\x00")
        self.close_connection = True

    def log_message(self, *words: object) -> None:
        """Say nothing: what was asked is what the tests look at."""


http.server.ThreadingHTTPServer((OPTIONS["host"], int(OPTIONS["port"])), Handler).serve_forever()
