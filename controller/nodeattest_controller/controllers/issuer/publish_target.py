"""The issuer of each cluster and the target of its documents, from the controller's settings and the cluster's name.

Promises: no content of a cluster decides where something is written; two clusters never share a target.
Leaves to others: reading keys, writing documents (``controller``).
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.settings import Settings
from nodeattest_identity.issuer.documents import default_jwks_uri
from nodeattest_identity.publish.store import StoreLocation, parse_location

__all__ = ["PublishTarget", "PublishTargets", "publish_targets"]


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
