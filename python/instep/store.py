"""A key-value store that speaks PyTorch's TCPStore protocol: server and client, without torch.

The server serves `torch.distributed.TCPStore` clients of torch 2.2 and later, unmodified; the client talks to it and to
torch's own server, and sees the same keys as torch's client does.

    >>> from instep.store import Client, Server
    >>> with Server() as server, Client("localhost", server.port, timeout=10) as client:
    ...     client.set("rank0/address", "10.0.0.1:4000")
    ...     client.get("rank0/address")
    b'10.0.0.1:4000'

Values go in as text (sent as UTF-8) or bytes and come out as bytes. A call that waits longer than its timeout raises
`TimeoutError` and leaves the client usable; `ConnectionError` means that the server is not there, or not any more;
`ValueError` that a key, a value or a request is larger than the protocol allows (8 KiB, 8 MiB, 64 MiB). Waits release
the interpreter and end on Ctrl-C. A client may be shared by threads, whose calls then take turns; a thread that waits
for long is better off with a client of its own.
"""

from __future__ import annotations

from instep._native import StoreClient as Client
from instep._native import StoreServer as Server

__all__ = ["Client", "Server"]
