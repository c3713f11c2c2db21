"""The issuer of each cluster and the target of its documents, from the controller's settings and the cluster's name.

Promises: no content of a cluster decides where something is written; two clusters never share a target.
Leaves to others: reading keys, writing documents (``controller``).
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.settings import Settings
from nodeattest_identity.issuer.urls import default_jwks_uri
from nodeattest_identity.publish.store import ObjectStore, StoredObject
from nodeattest_identity.publish.store_location import StoreLocation, parse_location

__all__ = ["PrefixedStore", "PublishTarget", "PublishTargets", "publish_targets"]


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """The target of one cluster."""

    issuer: str
    jwks_uri: str
    store: StoreLocation
    """The storage of all clusters."""
    folder: str
    """This cluster's folder in it, ``namespace/name``, which also marks its documents as this cluster's."""
    place: str
    """Storage and folder, for messages."""


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
        return PublishTarget(issuer, default_jwks_uri(issuer), parse_location(self.place), key, f"{self.place}/{key}")


class PrefixedStore:
    """One folder of a store, as a store of its own (``publish.store.ObjectStore``)."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.name = f"{store.name}/{folder}"
        self._store, self._folder = store, folder

    async def read(self, path: str) -> StoredObject | None:
        """Read an object of the folder."""
        return await self._store.read(f"{self._folder}/{path}")

    async def write(
        self, path: str, body: bytes, *, content_type: str, cache_control: str, version: str | None
    ) -> None:
        """Write one."""
        path = f"{self._folder}/{path}"
        await self._store.write(path, body, content_type=content_type, cache_control=cache_control, version=version)

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()


def publish_targets(settings: Settings) -> PublishTargets | None:
    """Read the settings; None where nothing is to be published."""
    if not settings.enabled("issuer") or settings.issuer_base is None or settings.issuer_place is None:
        return None
    return PublishTargets(
        base=settings.issuer_base.removesuffix("/"),
        place=settings.issuer_place.removesuffix("/"),
        max_age=round(settings.issuer_max_age),
    )
