"""An add-on that answers what reached it, as JSON: ``python -m echo_upstream PORT [HOST]``.

``requests`` counts all that came. Of a WebSocket it writes the JSON first, and then returns every byte.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import sys
from contextlib import suppress

ROOM = 1 << 20
"""Bytes that are read and written ahead."""
COUNT = itertools.count(1)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while await _answer(reader, writer):
            pass
    writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, path, _ = first.split()
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    fields = {name.lower(): value for name, value in headers}
    told: dict[str, object] = {"requests": next(COUNT), "method": method, "path": path, "headers": headers}
    if "upgrade" in fields:
        guid = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(fields["sec-websocket-key"].encode() + guid).digest())  # noqa: S324
        writer.write(b"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ")
        writer.write(accept + b"\r\n\r\n" + json.dumps(told).encode() + b"\n")
        while piece := await reader.read(ROOM):
            writer.write(piece)
        return False
    told["body"] = await _digest(reader, fields)
    body = json.dumps(told).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return True


async def _digest(reader: asyncio.StreamReader, fields: dict[str, str]) -> str:
    """Read a body; return its length and digest."""
    digest, length, left = hashlib.sha256(), 0, int(fields.get("content-length", 0))
    while left and (piece := await reader.read(min(left, ROOM))):
        digest.update(piece)
        length, left = length + len(piece), left - len(piece)
    while "transfer-encoding" in fields and (size := int(await reader.readuntil(b"\r\n"), 16)):
        digest.update((await reader.readexactly(size + 2))[:-2])
        length += size
    if "transfer-encoding" in fields:
        await reader.readuntil(b"\r\n")
    return f"{length} {digest.hexdigest()}"


async def main(port: int, host: str = "127.0.0.1") -> None:
    server = await asyncio.start_server(serve, host, port, backlog=1024, limit=2 * ROOM)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
