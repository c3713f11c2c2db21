"""The least server there is, as the add-on of a measurement: ``python -m bench.http_upstream PORT CPU``.

Answers each request with the same 256 bytes; a request to upgrade is answered 101, and the connection stays open and
silent. Reads no bodies: the load sends none.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import sys

BODY = b"x" * 256
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
KEY = re.compile(rb"^sec-websocket-key:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455 §1.3."""


class AddOn(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._held = b""
        self._upgraded = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._upgraded or self._transport is None:
            return
        self._held += data
        while b"\r\n\r\n" in self._held:
            head, _, self._held = self._held.partition(b"\r\n\r\n")
            self._transport.write(self._switched(head) or ANSWER)

    def _switched(self, head: bytes) -> bytes | None:
        key = KEY.search(head)
        if key is None:
            return None
        self._upgraded = True
        accept = base64.b64encode(hashlib.sha1(key[1] + MAGIC, usedforsecurity=False).digest())
        lines = (b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade")
        return b"\r\n".join([*lines, b"Sec-WebSocket-Accept: " + accept, b"", b""])


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(AddOn, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[2])})
    asyncio.run(serve(int(sys.argv[1])))
