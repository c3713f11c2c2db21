"""Older requests of a requester for a node that has got its certificate: nobody waits for them any more.

Promises: only requests with another key, of the very user for whom the certificate was issued, and no younger than the
request that was certified, are closed; so a token closes nobody else's requests, and a copy with the same key gets the
same certificate. Times are whole seconds: of two requests of one second, the one that was open when the other was
certified is closed, and one that is seen only afterwards counts as newer. Memory is bounded, and losing it is harmless:
what is not closed here ends by its own limits.
Source: the two-step protocol §E5 step 2b (older ones are denied only after a newer one succeeded).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import NodeName, SignerName
from nodeattest_providers.verifier_interface import NodeRequest

__all__ = ["Duplicates"]

_REMEMBERED: Final = 20_000
"""Open requests, and certified nodes; the oldest are forgotten."""

_Wanted = tuple[ClusterKey, SignerName, str, NodeName]
"""Cluster, signer (a serving certificate is none for a client), user and node name."""


@dataclass(frozen=True, slots=True)
class _Open:
    """What is kept of a request."""

    name: str
    created: datetime
    spki: str
    closed: bool = False
    """Whether it was open when a request that is no older was certified."""

    def is_superseded_by(self, certified: _Open) -> bool:
        """Whether nobody waits for it any more, if it was open when the other was certified."""
        return self.created <= certified.created and self.spki != certified.spki

    def is_older_than(self, certified: _Open) -> bool:
        """Whether nobody waits for it any more, whenever it was seen."""
        return self.created < certified.created and self.spki != certified.spki


class Duplicates:
    """The requests that are open, and the newest certified ones."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._open: dict[_Wanted, dict[str, _Open]] = {}
        """By UID."""
        self._wanted: OrderedDict[str, _Wanted] = OrderedDict()
        """By UID, oldest first."""
        self._certified: OrderedDict[_Wanted, _Open] = OrderedDict()

    def check(self, cluster: ClusterKey, request: NodeRequest) -> None:
        """Note an open request; raises Denied where a newer one was certified."""
        wanted = _wanted(cluster, request)
        this = _Open(request.name, request.created, request.csr.spki_sha256)
        seen = self._open.get(wanted, {}).get(request.uid)
        certified = self._certified.get(wanted)
        if (seen is not None and seen.closed) or (certified is not None and this.is_older_than(certified)):
            raise Denied(
                Reason.SUPERSEDED,
                expected="the newest request of this requester for this node",
                got="one that is older than the one that was certified",
                remedy="nothing to do if the node has its certificate; else file a new first request",
            )
        self._open.setdefault(wanted, {})[request.uid] = seen or this
        self._wanted[request.uid] = wanted
        if len(self._wanted) > self._remembered:
            self.forget(next(iter(self._wanted)))

    def certified(self, cluster: ClusterKey, request: NodeRequest, asked: datetime) -> tuple[str, ...]:
        """Note what was certified, first asked for at ``asked``; returns the names of the requests to be closed."""
        wanted = _wanted(cluster, request)
        self.forget(request.uid)
        certified = self._certified[wanted] = _Open(request.name, asked, request.csr.spki_sha256)
        self._certified.move_to_end(wanted)
        if len(self._certified) > self._remembered:
            self._certified.popitem(last=False)
        requests = self._open.get(wanted, {})
        closed = {uid: one for uid, one in requests.items() if one.is_superseded_by(certified)}
        requests.update((uid, replace(one, closed=True)) for uid, one in closed.items())
        return tuple(one.name for one in closed.values())

    def forget(self, uid: str) -> None:
        """Drop a request that is settled."""
        wanted = self._wanted.pop(uid, None)
        if wanted is None:
            return
        requests = self._open[wanted]
        del requests[uid]
        if not requests:
            del self._open[wanted]

    def __len__(self) -> int:
        return len(self._wanted)


def _wanted(cluster: ClusterKey, request: NodeRequest) -> _Wanted:
    return cluster, request.signer_name, request.username, request.csr.node_name
