"""Small read buffers for connections of asyncio, where this Python lets them be set.

For TLS, asyncio takes 256 KiB for each connection from the begin of its handshake on, which is most of what a
connection costs, and so much that the allocator keeps it. A record of TLS has 16 KiB at most: with a smaller buffer,
reading takes half as much CPU again, and with a larger one no less. Without TLS, it reads up to 256 KiB at once, and so
much waits for each peer that does not read what a proxy passes on.
Source: asyncio.sslproto (``SSLProtocol.max_size``) and asyncio.selector_events (``_SelectorSocketTransport.max_size``),
not documented; RFC 8446 §5.1.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["PLAIN_READ", "TLS_READ", "set_buffer", "use_small_buffers"]

TLS_READ: Final = 16 * 1024
"""Bytes, with TLS."""
PLAIN_READ: Final = 128 * 1024
"""Bytes at once, without TLS: with less, a proxy needs more CPU for each byte."""
_CLASSES: Final = (
    ("sslproto", "SSLProtocol", TLS_READ),
    ("selector_events", "_SelectorSocketTransport", PLAIN_READ),
)


def use_small_buffers() -> None:
    """Have connections of this process, both ways, take small buffers from now on."""
    for module, name, most in _CLASSES:
        set_buffer(getattr(getattr(asyncio, module, None), name, None), most)


def set_buffer(reader: object, most: int) -> bool:
    """Have a class of asyncio read ``most`` bytes at once; False: it is not as expected, and left alone."""
    size: object = getattr(reader, "max_size", None)
    if not isinstance(reader, type) or not isinstance(size, int) or size < most:
        return False
    reader.max_size = most  # pyright: ignore[reportAttributeAccessIssue] - present, as seen above
    return True
