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
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.settings import Settings
from nodeattest_identity.issuer.documents import UrlError, default_jwks_uri
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey
from nodeattest_identity.publish.plan import Desired, Plan
from nodeattest_identity.publish.publisher import PublicStatus, check_public, open_store, publish
from nodeattest_identity.publish.store import (
    ForeignIssuerError,
    PublishError,
    StoreAccess,
    StoreUnavailableError,
    WriteConflictError,
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


_RESYNC: Final = ResyncConfig(period=60.0, min_interval=30.0)
"""A key set has no watch."""
_COMPARE_PERIOD: Final = 1800.0
"""Seconds after which the published documents are compared again though no key changed: another writer may have
changed them."""
_CONCURRENT: Final = 4
"""Publications at a time: each opens a storage client, which costs some tenths of a second of CPU."""
_READ_AGAIN: Final = 30.0
"""Seconds until the public URL is read again where a cache still has the older document."""


@dataclass(frozen=True, slots=True)
class PublishTargets:
    """Where the documents of all clusters go."""

    base: str
    """Without a slash at the end."""
    place: str
    """Without a slash at the end."""
    max_age: int


def publish_targets(settings: Settings) -> PublishTargets | None:
    """Read the settings; None where nothing is to be published."""
    if not settings.enabled("issuer") or settings.issuer_base is None or settings.issuer_place is None:
        return None
    return PublishTargets(
        base=settings.issuer_base.removesuffix("/"),
        place=settings.issuer_place.removesuffix("/"),
        max_age=round(settings.issuer_max_age),
    )


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
    gate, fetcher = asyncio.Semaphore(_CONCURRENT), https or HttpsFetcher()

    def task(client: ApiClient, cluster_events: ClusterEvents) -> _Task:
        return _Task(
            client,
            targets,
            events=cluster_events,
            metrics=metrics,
            may_act=partial(guard.may_act, cluster_events.key),
            gate=gate,
            https=fetcher,
            now=now,
            clock=clock,
        )

    return PeriodicController(
        name="issuer", task=task, management=management, events=events, log=log, resync=resync, clock=clock
    )


class _Task:
    """One cluster's documents (``PeriodicTask``)."""

    def __init__(
        self,
        client: ApiClient,
        targets: PublishTargets,
        *,
        events: ClusterEvents,
        metrics: Metrics,
        may_act: Callable[[], bool],
        gate: asyncio.Semaphore,
        https: HttpsFetcher,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._client, self._events, self._metrics, self._may_act = client, events, metrics, may_act
        self._gate, self._https, self._now, self._clock = gate, https, now, clock
        # The key is two Kubernetes names, so it needs no quoting anywhere.
        self._issuer, self._max_age = f"{targets.base}/{events.key}", targets.max_age
        self._location = parse_location(targets.place).below(events.key)
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
        self._report(published)
        # 4
        seen = await check_public(self._https, published, max_age=self._max_age, now=int(self._now()))
        if seen.status is PublicStatus.WRONG:
            findings = "; ".join(seen.findings)
            message = f"published at {self._location}, but the public URL does not show it: {findings}"
            raise ApiError(0, "not-public", message)
        if seen.status is PublicStatus.EQUAL:
            self._published, self._compare_at = keys, self._clock() + _COMPARE_PERIOD
        return _READ_AGAIN if seen.status is PublicStatus.OLDER else None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Count and report a failure; its reason is the outcome in the metric."""
        self._metrics.issuer_publication(error.reason)
        what = "cannot publish an issuer's documents"
        if self._events.warn(error.reason, what, outcome=error.reason, error=error.message):
            self._events.event("Warning", NOT_PUBLISHED, error.message)

    async def _keys(self) -> tuple[VerifyingKey, ...] | None:
        """Read the cluster's keys; None for one that is another issuer, which is logged once a day."""
        try:
            return await read_api_server(self._client, self._issuer)
        except SourceError as error:
            if error.outcome != "other-issuer":
                raise ApiError(0, error.outcome, str(error)) from None
            self._metrics.issuer_publication("other-issuer")
            if self._events.allow("other-issuer", _DAY):
                self._events.info("not publishing a cluster of another issuer", why=str(error))
            return None

    async def _publish(self, keys: tuple[VerifyingKey, ...]) -> Plan:
        wanted = Desired(
            issuer=self._issuer,
            jwks_uri=default_jwks_uri(self._issuer),
            keys=keys,
            owner=self._events.key,
            max_age=self._max_age,
        )
        try:
            async with self._gate:
                return await publish(open_store(self._location, StoreAccess()), wanted, clock=self._now)
        except (PublishError, KeysError, UrlError) as error:
            raise ApiError(0, _outcome(error), f"{self._location}: {error}") from None

    def _report(self, published: Plan) -> None:
        """Report what is published now where that changed; keys that the cluster does not name stay once a day."""
        self._metrics.issuer_publication("written" if published.writes else "equal")
        notes, keys = "; ".join(published.notes), len(published.documents.keys)
        if published.writes:
            self._events.info("published an issuer's documents", place=str(self._location), keys=keys)
            if notes:
                self._events.event("Normal", PUBLISHED, f"{keys} keys of {self._issuer}: {notes}")
        elif notes and self._events.allow("unwanted", _DAY):
            self._events.info("an issuer's documents hold what is not wanted", notes=notes)


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
