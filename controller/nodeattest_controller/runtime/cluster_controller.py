"""Interfaces of controllers that work in every connected workload cluster, and of observers of requests' outcomes.

A ``ClusterController`` is one controller; for each connection it makes a ``ClusterRunner``, which runs as long as the
connection exists and is notified when an object of the cluster changes in the management cluster.
Out of scope: connecting (``cluster_manager``), restarting after bugs (``supervisor``), every decision.
"""

from __future__ import annotations

import logging
import random as random_module
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import PeriodicReconciler, PeriodicTask, ResyncConfig
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose


class ClusterRunner(Protocol):
    """One controller in one connected cluster."""

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been read once."""
        ...

    @property
    def last_error(self) -> ApiError | None:
        """The error that keeps an informer from being up to date; None while there is none."""
        ...

    async def run(self) -> None:
        """Run until cancelled. An exception is a bug: this runner is made anew after a while, and no other."""
        ...

    def changed(self, keys: frozenset[str] | None, /) -> None:
        """Take in a change of the cluster's objects in the management cluster (``changes.ClusterChanged``).

        Must not block.
        """
        ...


class ClusterController(Protocol):
    """One controller that works in every connected cluster."""

    @property
    def name(self) -> str:
        """The controller's name, for the log."""
        ...

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> ClusterRunner | None:
        """Make the runner of one connection; ``client`` is the workload cluster's. None: nothing to do there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicController:
    """A controller that runs a periodic task in every connected cluster (``ClusterController``)."""

    name: str
    task: Callable[[ApiClient, ClusterEvents], PeriodicTask]
    """Makes the task of one cluster; the client is the workload cluster's."""
    management: ManagementCache
    events: EventRecorder
    log: logging.Logger
    resync: ResyncConfig
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random_module.random

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> PeriodicReconciler:
        """Make the reconciler of one connection."""
        events = ClusterEvents(key, self.management, self.events, log=self.log, clock=self.clock)
        return PeriodicReconciler(self.task(client, events), self.resync, clock=self.clock, random=self.random)


@dataclass(frozen=True, slots=True, kw_only=True)
class CSRIssued:
    """A certificate was published."""

    cluster: ClusterKey
    member: MachineView
    node_name: NodeName
    provider: ProviderName
    purpose: Purpose
    serial: str
    not_after: datetime
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CSRDenied:
    """A request was denied for good."""

    cluster: ClusterKey
    provider_id: ProviderID
    """As the request claims it: proven by nothing."""
    node_name: NodeName
    """As the request claims it; proven where ``by_node``."""
    username: str
    by_node: bool
    """Whether the API server authenticated the requester as that very node (``system:node:<node_name>``)."""
    provider: ProviderName
    purpose: Purpose
    reason: Reason
    request_name: str
    """Of the CertificateSigningRequest."""
    message: str = field(repr=False)
    """Expected, got and remedy: for the management cluster only."""
    at: datetime
    evaluated: bool = True
    """Whether a check refused the request; False where its time ran out before it was evaluated."""


class CSRObserver(Protocol):
    """Observes outcomes; both methods return at once."""

    def granted(self, verdict: CSRIssued) -> None:
        """Take in a certificate."""
        ...

    def refused(self, verdict: CSRDenied) -> None:
        """Take in a denial."""
        ...
