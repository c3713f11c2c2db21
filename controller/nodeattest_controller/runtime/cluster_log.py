"""Limits the log lines and Events that a workload cluster can cause, and reports whether each cluster answers.

An API server may invent requests, refuse every write and break every watch. A bootstrap token may file requests without
end. Each message has a limit for a requester and for a cluster; lines beyond it are counted.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.errors import ApiError, Unauthorized, Unreachable
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.periodic import RateLimiter

_LOG: Final = logging.getLogger(__name__)
BURST, RATE = 30, 1 / 10
"""Lines of one message about a cluster at once, and a second after that."""
REQUESTER_BURST, REQUESTER_RATE = 5, 1 / 60
"""Of these, lines about one requester."""
OUTAGES, OUTAGE_RATE = 4, 1 / 300
"""Lines that a cluster's connection began, ended or is silent, at once, and a second after that."""
SILENT_PERIOD: Final = 3600.0
"""Seconds between two lines that a cluster still does not answer."""
CONNECTED, DISCONNECTED = "connected", "disconnected"
SILENT: Final = "cluster does not answer"
_REMEDY: Final = "check the kubeconfig in the Secret <cluster>-kubeconfig, the endpoint and the network"


@dataclass(slots=True)
class _Connection:
    server: str
    logged: str = DISCONNECTED


class ClusterLog:
    """The limits of all clusters' lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limiter = EventLimiter(clock)
        self._clusters = RateLimiter(burst=BURST, per_second=RATE, clock=clock)
        self._requesters = RateLimiter(burst=REQUESTER_BURST, per_second=REQUESTER_RATE, clock=clock)
        self._outages = RateLimiter(burst=OUTAGES, per_second=OUTAGE_RATE, clock=clock)
        self._left_out: Counter[tuple[ClusterKey, str]] = Counter()
        self._connections: dict[ClusterKey, _Connection] = {}

    def allows(self, message: str, cluster: ClusterKey, requester: str | None = None) -> bool:
        """Return whether to log a line about a request, or about the cluster itself; counts it where not."""
        of_cluster, of_requester = (cluster, message), (cluster, message, requester)
        if requester is None and self._clusters.take(of_cluster):
            return True
        if requester is not None and self._requesters.has_token(of_requester) and self._clusters.take(of_cluster):
            return self._requesters.take(of_requester)
        self._left_out[of_cluster] += 1
        return False

    def report(self) -> None:
        left_out, self._left_out = self._left_out, Counter()
        for (cluster, message), lines in left_out.items():
            _LOG.warning("left out log lines about a cluster", extra=fields(cluster=cluster, line=message, lines=lines))

    def opened(self, cluster: ClusterKey, server: str) -> None:
        """Expect requests to a cluster; nothing is logged before the first one ended."""
        self._connections[cluster] = _Connection(server)

    def closed(self, cluster: ClusterKey) -> None:
        """Log that no request is sent any more, if it may be logged, and forget the connection."""
        connection = self._connections.pop(cluster)
        if connection.logged != DISCONNECTED:
            self._log(cluster, connection, DISCONNECTED)

    def answered(self, cluster: ClusterKey, error: ApiError | None) -> None:
        """Note how a request ended: None if it was granted."""
        connection = self._connections.get(cluster)
        if connection is None:
            return
        if error is None and connection.logged != CONNECTED:
            self._log(cluster, connection, CONNECTED)
        elif isinstance(error, Unreachable | Unauthorized):
            self._log(cluster, connection, SILENT, error)

    def has_reported(self, cluster: ClusterKey, error: ApiError) -> bool:
        """Return whether an error says no more than that the cluster does not answer, which the log says already."""
        connection = self._connections.get(cluster)
        is_silent = connection is not None and connection.logged == SILENT
        return is_silent and isinstance(error, Unreachable | Unauthorized)

    def _log(self, cluster: ClusterKey, connection: _Connection, line: str, error: ApiError | None = None) -> None:
        """Log another state if the cluster has a line left, and repeat that it does not answer once an hour."""
        if line != connection.logged:
            recovers = line == CONNECTED and connection.logged == SILENT
            if not recovers and not self._outages.take(cluster):
                return
            connection.logged = line
            self._limiter.allow(cluster, SILENT_PERIOD)
        elif not self._limiter.allow(cluster, SILENT_PERIOD):
            return
        if error is None:
            _LOG.info(line, extra=fields(cluster=cluster, server=connection.server))
        else:
            more = fields(cluster=cluster, server=connection.server, error=str(error), remedy=_REMEDY)
            _LOG.warning(line, extra=more)
