"""Publishes the keys of each connected cluster, and reads them back through the public URL.

A cluster is published only if its API server names the issuer that our configuration has for it, byte for byte. Its
keys are read from itself, and none of its content decides where something is written. After a kill the next run
finishes. Source: Kubernetes pkg/routes/openidmetadata.go, pkg/serviceaccount/openidmetadata.go.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from nodeattest_controller.runtime.cluster_controller import ClusterReconciler, ReconcilerDeps
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.settings import Settings
from nodeattest_identity.issuer import documents
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, read_jwks
from nodeattest_identity.publish import store
from nodeattest_identity.publish.plan import Desired, Plan
from nodeattest_identity.publish.publisher import check_public, open_store, publish
from nodeattest_identity.tokens.relying_party import HttpsFetcher
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound, Unreachable
from nodeattest_kube.periodic import ResyncConfig

PUBLISHED: Final = "IssuerPublished"
NOT_PUBLISHED: Final = "IssuerNotPublished"
_DAY: Final = 24 * 3600.0
_MAX_CONFIGURATION: Final = 64 * 1024
_COMPARE_PERIOD: Final = 1800.0
"""Seconds after which the published documents are compared again though no key changed: another writer may have
changed them."""
_CONCURRENT: Final = 4
"""Publications at a time: each opens a storage client, which costs some tenths of a second of CPU."""
_READ_AGAIN: Final = 30.0
"""Seconds until the public URL is read again where a cache still has the older document."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """Where the documents of all clusters go, and what publishing them shares."""

    base: str
    """Without a slash at the end."""
    place: str
    max_age: int
    https: HttpsFetcher = field(default_factory=HttpsFetcher)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT))


def publish_targets(settings: Settings) -> Publishing | None:
    """Read the settings; None where nothing is to be published."""
    if not settings.enabled("issuer") or settings.issuer_base is None or settings.issuer_place is None:
        return None
    return Publishing(
        base=settings.issuer_base.removesuffix("/"),
        place=settings.issuer_place.removesuffix("/"),
        max_age=round(settings.issuer_max_age),
    )


class IssuerReconciler(ClusterReconciler):
    """One cluster's documents."""

    resync = ResyncConfig(period=60.0, min_interval=30.0)
    """A key set has no watch."""

    def __init__(
        self,
        deps: ReconcilerDeps,
        publishing: Publishing,
        key: ClusterKey,
        client: ApiClient,
        resync: ResyncConfig | None = None,
    ) -> None:
        super().__init__(deps, key, client, resync)
        self._publishing = publishing
        # The key is two Kubernetes names, so it needs no quoting anywhere.
        self._issuer = f"{publishing.base}/{key}"
        self._location = store.parse_location(publishing.place).below(key)
        self._published: tuple[VerifyingKey, ...] = ()
        """Keys of the last publication that the public URL shows."""
        self._compare_at = float("-inf")

    async def reconcile(self) -> float | None:
        """Bring the documents up to date, where this replica may act.

        1. Read the keys from the cluster's API server. 2. Nothing to do where they are published, and were compared
        lately. 3. Publish. 4. Read back through the public URL; caches may hold the older one for a while, which is no
        failure.
        """
        if self._guard.active_cluster(self._key) is None:
            return None
        # 1
        keys = await self._keys()
        # 2
        is_published = keys == self._published and self._clock() < self._compare_at
        if keys is None or is_published or self._guard.active_cluster(self._key) is None:
            return None
        # 3
        published = await self._publish(keys)
        self._report(published)
        # 4
        now, max_age = int(self._seconds()), self._publishing.max_age
        seen = await check_public(self._publishing.https, published, max_age=max_age, now=now)
        if seen.is_wrong:
            findings = "; ".join(seen.findings)
            message = f"published at {self._location}, but the public URL does not show it: {findings}"
            raise ApiError(0, "not-public", message)
        if not seen.findings:
            self._published, self._compare_at = keys, self._clock() + _COMPARE_PERIOD
        return _READ_AGAIN if seen.findings else None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        self._metrics.issuer_publication(error.reason)
        what = "cannot publish an issuer's documents"
        if self._events.warn(error.reason, what, outcome=error.reason, error=error.message):
            self._events.event("Warning", NOT_PUBLISHED, error.message)

    async def _keys(self) -> tuple[VerifyingKey, ...] | None:
        try:
            return await read_api_server(self._client, self._issuer)
        except OtherIssuerError as error:
            self._metrics.issuer_publication("other-issuer")
            if self._events.allow("other-issuer", _DAY):
                self._events.info("not publishing a cluster of another issuer", why=str(error))
            return None

    async def _publish(self, keys: tuple[VerifyingKey, ...]) -> Plan:
        wanted = Desired(
            issuer=self._issuer,
            jwks_uri=documents.default_jwks_uri(self._issuer),
            keys=keys,
            owner=self._key,
            max_age=self._publishing.max_age,
        )
        try:
            async with self._publishing.gate:
                return await publish(open_store(self._location, store.StoreAccess()), wanted, clock=self._seconds)
        except (store.PublishError, KeysError, documents.UrlError) as error:
            raise ApiError(0, _outcome(error), f"{self._location}: {error}") from None

    def _seconds(self) -> float:
        return self._now().timestamp()

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
        case store.ForeignIssuerError():
            return "foreign-issuer"
        case store.StoreUnavailableError() | store.WriteConflictError():
            return "place-unavailable"
        case store.PublishError():
            return "place-refused"
        case _:
            return "unusable"


class OtherIssuerError(Exception):
    """An API server is of another issuer than the expected one."""


async def read_api_server(client: ApiClient, issuer: str) -> tuple[VerifyingKey, ...]:
    """Read the keys of a cluster's service accounts: all or none.

    1. Its configuration names this issuer. 2. Its own key set can be published as it is. Raises ``OtherIssuerError``,
    or ``ApiError`` with the metric's outcome as its reason.
    """
    try:
        # 1
        document = await client.document(
            documents.CONFIGURATION_PATH, accept=documents.CONFIGURATION_TYPE, limit=_MAX_CONFIGURATION
        )
        found = documents.parse_configuration(document).issuer
        if found != issuer:
            raise OtherIssuerError(
                f"expected an API server with --service-account-issuer={issuer} as its first, got {found[:200]!a}"
            )
        # 2
        return read_jwks(await client.document(documents.JWKS_PATH, accept=documents.JWKS_TYPE, limit=MAX_SIZE))
    except (documents.DocumentError, KeysError) as error:
        raise ApiError(0, "unusable", f"its API server: {error}") from None
    except Forbidden as error:
        remedy = "apply manifests/workload-issuer in the workload cluster"
        raise ApiError(0, "forbidden", f"{error}; {remedy}") from None
    except NotFound as error:
        raise ApiError(
            0,
            "absent",
            f"{error}; expected an API server whose --service-account-issuer is an https URL without query and "
            "fragment, and whose keys of --service-account-key-file are all RSA, P-256, P-384 or P-521: for any "
            "other issuer, and with any other key among them, it serves no documents, and its log says why",
        ) from None
    except Unreachable as error:
        raise ApiError(0, "unreachable", str(error)) from None
    except ApiError as error:
        raise ApiError(0, "refused", str(error)) from None
