"""An add-on that does what a test asks for: ``python -m echo_upstream PORT``.

``GET /endless`` streams without an end. ``POST /unread`` reads nothing of the body. Any other ``POST`` reads the whole
body, and answers its length and SHA-256. All else is answered at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from contextlib import suppress
from urllib.parse import urlsplit

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
PIECE = b"x" * (64 << 10)
ROOM = 1 << 20
"""Bytes that are written ahead."""
LAST = b"0\r\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.set_write_buffer_limits(high=ROOM)
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while True:
            await _answer(reader, writer)
    writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target = lines[0].split()[:2]
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    path = urlsplit(target).path
    if method == "POST":
        if path.endswith("/unread"):
            await asyncio.Event().wait()
        told = await _digest(reader, fields)
    elif path.endswith("/endless"):
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))
            await writer.drain()
    else:
        told = "here"
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(told), told.encode()))


async def _digest(reader: asyncio.StreamReader, fields: dict[str, str]) -> str:
    """Read a body; return its length and digest."""
    digest, length = hashlib.sha256(), 0
    if "content-length" in fields:
        left = int(fields["content-length"])
        while left:
            piece = await reader.read(min(left, ROOM))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            digest.update(piece)
            length, left = length + len(piece), left - len(piece)
    else:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            digest.update((await reader.readexactly(size + 2))[:-2])
            length += size
        await reader.readuntil(b"\r\n")
    return f"{length} {digest.hexdigest()}"


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024, limit=2 * ROOM)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
