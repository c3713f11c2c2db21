"""Caches signatures of cluster-info, so that a cluster with many tokens delays no other.

Promises: a signature is made once for each text and token. The event loop runs after each signed mebibyte, so that
thousands of tokens over a large text delay no lease and no request. Checking all tokens takes at most a tenth of the
time. Leaves to others: what is signed (``decide``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from nodeattest_discovery import jws
from nodeattest_discovery.token import BootstrapToken

__all__ = ["DutyCycle", "SignatureCache"]

_SLICE: Final = 1 << 20
"""Bytes; some five milliseconds."""
_REST: Final = 9.0
"""Seconds of rest for a second of work: other clusters are served by the same event loop."""


class SignatureCache:
    """What is known to be the signature of a text by a token."""

    def __init__(self, make: Callable[[bytes, BootstrapToken], str] = jws.sign) -> None:
        self._make = make
        self._content = b""
        self._known: dict[BootstrapToken, str] = {}

    async def prepare(self, content: bytes, tokens: Iterable[BootstrapToken]) -> None:
        """Sign by all of these what they have not signed; what others signed is forgotten."""
        known = self._known if content == self._content else {}
        self._content, self._known = content, {}
        signed = 0
        for token in tokens:
            found = known.get(token)
            if found is None:
                found = self._make(content, token)
                signed += len(content)
            self._known[token] = found
            if signed >= _SLICE:
                signed = 0
                await asyncio.sleep(0)

    def sign(self, content: bytes, token: BootstrapToken) -> str:
        """Return a signature, which is made now where it was not prepared."""
        found = self._known.get(token) if content == self._content else None
        return self._make(content, token) if found is None else found


class DutyCycle:
    """How often something may be done that may take long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic seconds."""
        self._clock = clock
        self._next = float("-inf")

    def wait(self) -> float:
        """Say how many seconds to wait; 0: it may be done now."""
        return max(self._next - self._clock(), 0.0)

    def worked(self, since: float) -> None:
        """Note what was done since then, without a pause."""
        now = self._clock()
        self._next = now + _REST * (now - since)
