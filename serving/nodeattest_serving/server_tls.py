"""A small read buffer for TLS connections of asyncio, where this Python lets one be set.

asyncio takes 256 KiB for each connection from the begin of its handshake on, which is most of what a connection costs,
and so much that the allocator keeps it. A record of TLS has 16 KiB at most.
Source: asyncio.sslproto (``SSLProtocol.max_size``, not documented); RFC 8446 §5.1.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["READ_BUFFER", "use_small_buffers"]

READ_BUFFER: Final = 32 * 1024
"""Bytes."""


def _protocol() -> object:
    return getattr(getattr(asyncio, "sslproto", None), "SSLProtocol", None)


def use_small_buffers(protocol: object = None) -> bool:
    """Have TLS connections of this process, both ways, take ``READ_BUFFER`` from now on; False: they take asyncio's.

    ``protocol``: the class that reads; None: asyncio's. What is not as expected is left alone.
    """
    protocol = _protocol() if protocol is None else protocol
    size: object = getattr(protocol, "max_size", None)
    if not isinstance(protocol, type) or not isinstance(size, int) or size < READ_BUFFER:
        return False
    protocol.max_size = READ_BUFFER  # pyright: ignore[reportAttributeAccessIssue] - present, as seen above
    return True
