"""Cluster-info and the bootstrap tokens of the cluster, kept by informers.

Promises: every lookup is answered from memory. While the API server is away the last state counts for a bounded time;
expirations are checked by our own clock meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from nodeattest_discovery import clusterinfo, informers, secret
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject

_MAX_TOKENS: Final = 20_000
_MAX_BYTES: Final = 64 << 20
"""Of tokens in memory."""


class ClusterReader(Protocol):
    """What the services need of a cluster."""

    def token(self, token_id: str, /) -> JsonObject | None:
        """Return the Secret of a token."""

    def cluster_info(self) -> JsonObject | None:
        """Return the ConfigMap."""

    def unready_reason(self) -> str | None:
        """Why no request can be answered now; None if it can."""


class ClusterCache:
    """The informers of one workload cluster."""

    def __init__(self, client: ApiClient, *, max_stale: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``max_stale``: seconds without contact to the API server, after which nothing is answered."""
        self._max_stale = max_stale
        self._clock = clock
        self._tokens = informers.watch_tokens(
            client, _ignore, data_keys=None, max_objects=_MAX_TOKENS, max_bytes=_MAX_BYTES, clock=clock
        )
        self._info = informers.watch_cluster_info(client, _ignore, clock=clock)

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
        """Why no request can be answered now; None if it can."""
        for what, reflector in (("tokens", self._tokens), ("cluster-info", self._info)):
            if not reflector.synced:
                return f"the {what} of the cluster were not read yet"
            if self._clock() - reflector.last_contact > self._max_stale:
                return f"no contact to the API server about {what} for more than {self._max_stale:.0f} s"
        return None


def _ignore(_key: str, _item: JsonObject | None) -> None:
    """Do nothing: lookups read the informers."""
