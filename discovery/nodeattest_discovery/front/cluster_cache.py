"""What the front knows of its cluster: cluster-info and the bootstrap tokens, kept by watching.

Promises: every look-up is answered from memory, so that asking costs the API server nothing; what was read last stays
good while the API server is away, for a bounded time, and expirations are judged by our own clock meanwhile.
Leaves to others: what a Secret is worth (``secret``, ``proof``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from nodeattest_discovery import clusterinfo, informers, secret
from nodeattest_kube.client import ApiClient, JsonObject

__all__ = ["ClusterCache", "ClusterReader"]

_MOST_TOKENS: Final = 20_000
_MOST_BYTES: Final = 64 << 20
"""Of tokens in memory, and of cluster-info."""


class ClusterReader(Protocol):
    """What answering takes."""

    def token(self, token_id: str, /) -> JsonObject | None:
        """Return the Secret of a token."""
        ...

    def cluster_info(self) -> JsonObject | None:
        """Return the ConfigMap."""
        ...

    def unready_reason(self) -> str | None:
        """Tell why nothing can be answered now; None if it can."""
        ...


class ClusterCache:
    """One workload cluster, as far as discovery needs it."""

    def __init__(self, client: ApiClient, *, max_stale: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``max_stale``: seconds without a word of the API server, after which nothing is answered any more."""
        self._max_stale = max_stale
        self._clock = clock
        self._tokens = informers.tokens(
            client,
            _ignore,
            transform=informers.slim,
            max_objects=_MOST_TOKENS,
            max_bytes=_MOST_BYTES,
            clock=clock,
        )
        self._info = informers.cluster_info(client, _ignore, max_bytes=_MOST_BYTES, clock=clock)

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tokens.run())
            group.create_task(self._info.run())

    def token(self, token_id: str) -> JsonObject | None:
        """Return the Secret of a token."""
        return self._tokens.get(f"{secret.NAMESPACE}/{secret.secret_name(token_id)}")

    def cluster_info(self) -> JsonObject | None:
        """Return the ConfigMap."""
        return self._info.get(f"{clusterinfo.NAMESPACE}/{clusterinfo.NAME}")

    def unready_reason(self) -> str | None:
        """Tell why nothing can be answered now; None if it can."""
        for what, reflector in (("tokens", self._tokens), ("cluster-info", self._info)):
            if not reflector.synced:
                return f"the {what} of the cluster were not read yet"
            if self._clock() - reflector.last_contact > self._max_stale:
                return f"the API server has told nothing of {what} for more than {self._max_stale:.0f} s"
        return None


def _ignore(_key: str, _item: JsonObject | None) -> None:
    """Nothing is triggered by a change: whoever asks next is answered by it."""
