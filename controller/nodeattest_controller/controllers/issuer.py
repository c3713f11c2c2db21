"""Publishes the keys of each connected cluster, and reads them back through the public URL.

A cluster is published if its API server names the issuer that the controller's configuration has for it, byte for
byte, and only under its own name. One that names another has not opted in, and is left alone. No content of a cluster
decides where something is written, and two clusters never share a target. Keys that a cluster does not name any more
stay until no token signed by them is valid (``nodeattest_identity.publish``). After a kill the next run finishes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import PeriodicController
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.settings import Settings
from nodeattest_identity.issuer.documents import UrlError, default_jwks_uri
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey
from nodeattest_identity.publish.plan import Desired, Plan
from nodeattest_identity.publish.publisher import PublicStatus, check_public, publish
from nodeattest_identity.publish.store import (
    ForeignIssuerError,
    PublishError,
    StoreAccess,
    StoreLocation,
    StoreUnavailableError,
    WriteConflictError,
    open_store,
    parse_location,
)
from nodeattest_identity.serve.sources import SourceError, read_api_server
from nodeattest_identity.tokens.relying_party import HttpsFetcher
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import ResyncConfig

log = logging.getLogger(__name__)
PUBLISHED: Final = "IssuerPublished"
NOT_PUBLISHED: Final = "IssuerNotPublished"
_DAY: Final = 24 * 3600.0


class IssuerEvents:
    """Reports about one cluster's documents."""

    def __init__(self, events: ClusterEvents, metrics: Metrics) -> None:
        self._events, self._metrics = events, metrics

    def published(self, target: PublishTarget, published: Plan) -> None:
        """Report what is published now, where that changed."""
        self._metrics.issuer_publication("written" if published.writes else "equal")
        notes = "; ".join(published.notes)
        if not published.writes:
            if notes and self._events.allow("unwanted", _DAY):
                self._events.info("an issuer's documents hold what is not wanted", notes=notes)
            return
        keys = len(published.documents.keys)
        self._events.info("published an issuer's documents", place=str(target.location), keys=keys)
        if notes:
            self._events.event("Normal", PUBLISHED, f"{keys} keys of {target.issuer}: {notes}")

    def other_issuer(self, why: str) -> None:
        """Report once a day that a cluster is another issuer."""
        self._metrics.issuer_publication("other-issuer")
        if self._events.allow("other-issuer", _DAY):
            self._events.info("not publishing a cluster of another issuer", why=why)

    def failed(self, outcome: str, message: str) -> None:
        """Report a failure."""
        self._metrics.issuer_publication(outcome)
        if self._events.warn(outcome, "cannot publish an issuer's documents", outcome=outcome, error=message):
            self._events.event("Warning", NOT_PUBLISHED, message)


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """The target of one cluster."""

    issuer: str
    jwks_uri: str
    location: StoreLocation
    owner: str
    """``namespace/name``, which is also the last part of the location."""


@dataclass(frozen=True, slots=True)
class PublishTargets:
    """The targets of all clusters."""

    base: str
    """Without a slash at the end."""
    place: str
    """Without a slash at the end."""
    max_age: int

    def of(self, key: ClusterKey) -> PublishTarget:
        """Return one cluster's target; ``key`` is two Kubernetes names, so it needs no quoting anywhere."""
        issuer = f"{self.base}/{key}"
        return PublishTarget(issuer, default_jwks_uri(issuer), parse_location(self.place).below(key), key)


def publish_targets(settings: Settings) -> PublishTargets | None:
    """Read the settings; None where nothing is to be published."""
    if not settings.enabled("issuer") or settings.issuer_base is None or settings.issuer_place is None:
        return None
    return PublishTargets(
        base=settings.issuer_base.removesuffix("/"),
        place=settings.issuer_place.removesuffix("/"),
        max_age=round(settings.issuer_max_age),
    )


_RESYNC: Final = ResyncConfig(period=60.0, min_interval=30.0)
"""A key set has no watch."""
_COMPARE_PERIOD: Final = 1800.0
"""Seconds after which the published documents are compared again though no key changed: another writer may have
changed them."""
_CONCURRENT: Final = 4
"""Publications at a time: each opens a storage client, which costs some tenths of a second of CPU."""
_READ_AGAIN: Final = 30.0
"""Seconds until the public URL is read again where a cache still has the older document."""


class _ReportedError(ApiError):
    """A failure that is reported already."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(0, outcome, message)


def issuer_controller(
    management: ManagementCache,
    *,
    guard: ClusterGuard,
    events: EventRecorder,
    metrics: Metrics,
    targets: PublishTargets,
    resync: ResyncConfig = _RESYNC,
    https: HttpsFetcher | None = None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> PeriodicController:
    """Make the controller of all clusters; ``now`` is seconds since the epoch, ``clock`` monotonic seconds."""
    publisher = _Publisher(https or HttpsFetcher(), now)

    def task(client: ApiClient, cluster_events: ClusterEvents) -> _Task:
        key, reports = cluster_events.key, IssuerEvents(cluster_events, metrics)
        may_act = partial(guard.may_act, key)
        return _Task(
            client, targets.of(key), targets.max_age, publisher=publisher, events=reports, may_act=may_act, clock=clock
        )

    return PeriodicController(name="issuer", task=task, management=management, events=events, log=log, resync=resync)


class _Publisher:
    """Publishes, few at a time."""

    def __init__(self, https: HttpsFetcher, now: Callable[[], float]) -> None:
        self._https, self._now = https, now
        self._gate = asyncio.Semaphore(_CONCURRENT)

    async def publish(self, target: PublishTarget, wanted: Desired) -> Plan:
        """Make the target hold the documents; raises ``PublishError``, ``KeysError`` and ``UrlError``."""
        async with self._gate:
            return await publish(open_store(target.location, StoreAccess()), wanted, clock=self._now)

    async def read_back(self, published: Plan, max_age: int) -> tuple[PublicStatus, str]:
        """Read the public URL without credentials."""
        found = await check_public(self._https, published, max_age=max_age, now=int(self._now()))
        return found.status, "; ".join(found.findings)


class _Task:
    """One cluster's documents (``PeriodicTask``)."""

    def __init__(
        self,
        client: ApiClient,
        target: PublishTarget,
        max_age: int,
        *,
        publisher: _Publisher,
        events: IssuerEvents,
        may_act: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._client, self._target, self._max_age = client, target, max_age
        self._publisher, self._events, self._may_act, self._clock = publisher, events, may_act, clock
        self._published: tuple[VerifyingKey, ...] = ()
        """Keys of the last publication that the public URL shows."""
        self._compare_at = float("-inf")

    async def reconcile(self) -> float | None:
        """Bring the documents up to date, where this replica may act.

        1. Read the keys from the cluster's API server. 2. Nothing to do where they are published, and were compared
        lately. 3. Publish. 4. Read back through the public URL; caches may hold the older one for a while, which is no
        failure.
        """
        if not self._may_act():
            return None
        # 1
        keys = await self._keys()
        # 2
        if keys is None or (keys == self._published and self._clock() < self._compare_at) or not self._may_act():
            return None
        # 3
        published = await self._publish(keys)
        self._events.published(self._target, published)
        # 4
        seen, findings = await self._publisher.read_back(published, self._max_age)
        if seen is PublicStatus.WRONG:
            raise self._reported(
                "not-public", f"published at {self._target.location}, but the public URL does not show it: {findings}"
            )
        if seen is PublicStatus.EQUAL:
            self._published, self._compare_at = keys, self._clock() + _COMPARE_PERIOD
        return _READ_AGAIN if seen is PublicStatus.OLDER else None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Do nothing: every failure is reported where it happens."""

    async def _keys(self) -> tuple[VerifyingKey, ...] | None:
        """Read the cluster's keys; None for one that is another issuer."""
        try:
            return await read_api_server(self._client, self._target.issuer)
        except SourceError as error:
            if error.outcome == "other-issuer":
                self._events.other_issuer(str(error))
                return None
            raise self._reported(error.outcome, str(error)) from None

    async def _publish(self, keys: tuple[VerifyingKey, ...]) -> Plan:
        target = self._target
        wanted = Desired(
            issuer=target.issuer, jwks_uri=target.jwks_uri, keys=keys, owner=target.owner, max_age=self._max_age
        )
        try:
            return await self._publisher.publish(target, wanted)
        except (PublishError, KeysError, UrlError) as error:
            raise self._reported(_outcome(error), f"{target.location}: {error}") from None

    def _reported(self, outcome: str, message: str) -> _ReportedError:
        self._events.failed(outcome, message)
        return _ReportedError(outcome, message)


def _outcome(error: Exception) -> str:
    match error:
        case ForeignIssuerError():
            return "foreign-issuer"
        case StoreUnavailableError() | WriteConflictError():
            return "place-unavailable"
        case PublishError():
            return "place-refused"
        case _:
            return "unusable"
