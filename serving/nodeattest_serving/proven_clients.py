"""Clients whose requests were valid. Pure.

A new client replaces only one that has sent no valid request for an hour. So clients that prove themselves during an
attack replace none that did so before it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["ProvenClients"]

_MOST: Final = 64
_UNUSED: Final = 3600.0
"""Seconds without a valid request after which a client can be replaced."""


class ProvenClients:
    """The proven clients of one listener."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is monotonic seconds."""
        self._clock = clock
        self._used: OrderedDict[str, float] = OrderedDict()
        """When each sent its last valid request, the least recent first."""
        self.on_add: Callable[[str], None] = lambda _client: None
        """Called with each new client."""

    def __contains__(self, client: str) -> bool:
        """Return whether a client is proven."""
        return client in self._used

    def add(self, client: str) -> None:
        """Note a valid request of a client."""
        now, is_new = self._clock(), client not in self._used
        if is_new and len(self._used) >= _MOST:
            oldest, used = next(iter(self._used.items()))
            if now - used < _UNUSED:
                return
            del self._used[oldest]
        self._used[client] = now
        self._used.move_to_end(client)
        if is_new:
            self.on_add(client)
