"""The controller ``issuer`` at work in each connected cluster: read its keys, publish them, see them as anybody would.

Promises: a cluster is published if its API server names the issuer that the controller's configuration has for it, byte
for byte, and only under its own name; one that names another has not opted in, and is left alone. Keys that a cluster
does not name any more stay until no token by them lives (``nodeattest_identity.publish``). A kill at any instant costs
nothing: tokens verify all the while, and the next look finishes.
Leaves to others: connections (``fleet``), what is written (``publish``), words (``report``).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from nodeattest_controller.controllers.issuer.events import Report
from nodeattest_controller.controllers.issuer.publish_target import PrefixedStore, PublishTarget, PublishTargets
from nodeattest_controller.model.objects import mapping
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.ownership import Ownership
from nodeattest_controller.runtime.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey
from nodeattest_identity.issuer.urls import UrlError
from nodeattest_identity.publish.publisher import Published, publish
from nodeattest_identity.publish.state import Desired
from nodeattest_identity.publish.store import (
    ForeignIssuerError,
    PublishError,
    Store,
    StoreUnavailableError,
    WriteConflictError,
)
from nodeattest_identity.publish.store_location import StoreAccess, StoreLocation, open_store
from nodeattest_identity.publish.verify_public import PublicReader, PublicStatus
from nodeattest_identity.serve.sources import SourceError, read_api_server
from nodeattest_kube.client import ApiClient, ApiError

__all__ = ["IssuerController"]

_PACE: Final = ResyncConfig(period=60.0, gap=30.0)
"""A key set has no watch."""
_AGAIN: Final = 1800.0
"""Seconds after which a place is compared again though no key changed: somebody else may have written there."""
_AT_ONCE: Final = 4
"""Publications at a time: each opens the place's client, which costs some tenths of a second of CPU."""


class _Told(ApiError):
    """Something failed, and that is told already."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(0, outcome, message)


class IssuerController:
    """Makes the work of each cluster."""

    def __init__(
        self,
        management: ManagementCache,
        report: Report,
        *,
        ownership: Ownership,
        sites: PublishTargets | None,
        pace: ResyncConfig = _PACE,
        open_place: Callable[[StoreLocation, StoreAccess], Store] = open_store,
        reader: Callable[[], PublicReader] = PublicReader,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``sites``: None where the controller does not run. ``now`` is seconds since the epoch."""
        self._management, self._report, self._ownership, self._sites = management, report, ownership, sites
        self._pace, self._clock, self._chance = pace, clock, chance
        self._publisher = _Publisher(open_place, reader, now)

    def of(self, key: ClusterKey, client: ApiClient) -> PeriodicReconciler | None:
        """Make the work of one connection; None where the controller does not run."""
        if self._sites is None:
            return None
        site = self._sites.of(key)
        looker = _Looker(
            key,
            client,
            site,
            self._sites.max_age,
            publisher=self._publisher,
            report=self._report,
            may_act=lambda: self._may_act(key),
            clock=self._clock,
        )
        return PeriodicReconciler(looker, self._pace, clock=self._clock, chance=self._chance)

    def _may_act(self, key: ClusterKey) -> bool:
        cluster = self._management.cluster(key) if self._ownership.owns(key) else None
        if cluster is None or self._management.is_paused(cluster):
            return False
        return "deletionTimestamp" not in mapping(cluster, "metadata")


class _Publisher:
    """Publishes, few at a time."""

    def __init__(
        self,
        open_place: Callable[[StoreLocation, StoreAccess], Store],
        reader: Callable[[], PublicReader],
        now: Callable[[], float],
    ) -> None:
        self._open, self._reader, self._now = open_place, reader, now
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def publish(self, site: PublishTarget, wanted: Desired) -> Published:
        """Make the place hold the documents; raises ``PublishError``, ``KeysError`` and ``UrlError``."""
        async with self._gate:
            store = PrefixedStore(self._open(site.target, StoreAccess()), site.folder)
            try:
                return await publish(store, wanted, clock=self._now)
            finally:
                await store.aclose()

    async def read_back(self, published: Published) -> tuple[PublicStatus, str]:
        """Look at the public URL without credentials."""
        async with self._reader() as reader:
            found = await reader.check(published, now=int(self._now()))
        return found.status, "; ".join(found.findings)


class _Looker:
    """One cluster's documents (``looks.Looker``)."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        site: PublishTarget,
        max_age: int,
        *,
        publisher: _Publisher,
        report: Report,
        may_act: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._key, self._client, self._site, self._max_age = key, client, site, max_age
        self._publisher, self._report, self._may_act, self._clock = publisher, report, may_act, clock
        self._standing: tuple[VerifyingKey, ...] = ()
        """Keys of the last publication that everybody sees."""
        self._compare_at = float("-inf")

    async def look(self) -> bool:
        """Bring the documents up to date, if this may be acted for.

        1. What the cluster's API server says. 2. Nothing to do where that stands there, and was looked at lately.
        3. Publish. 4. See it through the public URL; caches may hold the older one for a while, which is no failure.
        """
        if not self._may_act():
            return False
        # 1
        keys = await self._keys()
        # 2
        if keys is None or (keys == self._standing and self._clock() < self._compare_at) or not self._may_act():
            return False
        # 3
        published = await self._publish(keys)
        self._report.published(self._key, self._site, published)
        # 4
        seen, findings = await self._publisher.read_back(published)
        if seen is PublicStatus.WRONG:
            raise self._told(
                "not-public", f"published at {self._site.place}, but the public URL does not show it: {findings}"
            )
        if seen is PublicStatus.EQUAL:
            self._standing, self._compare_at = keys, self._clock() + _AGAIN
        return seen is PublicStatus.OLDER

    async def failed(self, error: ApiError, failures: int, pause: float) -> None:
        """Take no notice: all that can fail is told where it fails."""

    async def _keys(self) -> tuple[VerifyingKey, ...] | None:
        """Read the cluster's keys; None for one that is another issuer."""
        try:
            return await read_api_server(self._client, self._site.issuer)
        except SourceError as error:
            if error.outcome == "other-issuer":
                self._report.left_alone(self._key, str(error))
                return None
            raise self._told(error.outcome, str(error)) from None

    async def _publish(self, keys: tuple[VerifyingKey, ...]) -> Published:
        site = self._site
        wanted = Desired(
            issuer=site.issuer, jwks_uri=site.jwks_uri, keys=keys, owner=site.folder, max_age=self._max_age
        )
        try:
            return await self._publisher.publish(site, wanted)
        except (PublishError, KeysError, UrlError) as error:
            raise self._told(_outcome(error), f"{site.place}: {error}") from None

    def _told(self, outcome: str, message: str) -> _Told:
        self._report.failed(self._key, outcome, message)
        return _Told(outcome, message)


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
