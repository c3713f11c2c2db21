"""The Leases by which members share shards: one a member, one a shard, distinguished by a label.

Promises: names are made of hashes, so that any identity and any shard has one; annotations say who and what a lease is
for. A lease that is not well-formed is no lease of ours.
Leaves to others: what they mean (``shard_placement``) and who writes them when (``shard_elector``).
Source: coordination.k8s.io/v1 (staging/src/k8s.io/api/coordination/v1/types.go); a label's value has 63 characters at
most (apimachinery pkg/util/validation, LabelValueMaxLength).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from nodeattest_kube import paths
from nodeattest_kube.jsontypes import JsonObject, dig, dig_text, version_of

__all__ = ["MemberLease", "ResourceVersion", "ShardGroup", "ShardLease"]

_API: Final = ("coordination.k8s.io", "v1", "leases")
_GROUP_LABEL: Final = "nodeattest.x-k8s.io/shares"
_MEMBER: Final = "nodeattest.x-k8s.io/member"
_SHARD: Final = "nodeattest.x-k8s.io/shard"
_LONGEST_LABEL: Final = 63
_HASH: Final = 32
"""Hexadecimal digits: 128 bits, so that no two names meet."""
_NOBODY: Final = "nobody"
"""Who holds the lease of a member that others have ended; a member itself leaves it to the empty name."""

ResourceVersion = tuple[str, str]


@dataclass(frozen=True, slots=True)
class MemberLease:
    """The lease of one member."""

    identity: str
    version: ResourceVersion
    ended: bool
    """Whether it is held by anybody but the member: then it never will be the member's again."""
    duration: float | None
    """Seconds that it may stay as it is while its member is alive; None where it does not say."""
    found: JsonObject


@dataclass(frozen=True, slots=True)
class ShardLease:
    """The lease of one shard."""

    shard: str
    version: ResourceVersion
    holder: str
    found: JsonObject


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Those that share: their namespace and the name that their leases begin with."""

    namespace: str
    name: str

    def read(self, lease: JsonObject) -> MemberLease | ShardLease | None:
        """Read a lease; None for what is not one of the group's, no matter who put its label on."""
        identity = dig_text(lease, "metadata", "annotations", _MEMBER)
        shard = dig_text(lease, "metadata", "annotations", _SHARD)
        name, version = dig_text(lease, "metadata", "name"), version_of(lease)
        holder = dig_text(lease, "spec", "holderIdentity")
        if shard and name == self.name_of_shard(shard):
            return ShardLease(shard, version, holder, lease)
        if not identity or name != self.name_of_member(identity):
            return None
        seconds = dig(lease, "spec", "leaseDurationSeconds")
        duration = float(seconds) if isinstance(seconds, int) and not isinstance(seconds, bool) else None
        return MemberLease(identity, version, holder != identity, duration, lease)

    @property
    def collection(self) -> str:
        """The path of the leases."""
        return paths.collection_path(*_API, namespace=self.namespace)

    @property
    def labels(self) -> dict[str, str]:
        """The label that distinguishes this group's leases from all others."""
        return {_GROUP_LABEL: self._short}

    @property
    def query(self) -> dict[str, str]:
        """How to list and watch them."""
        return {"labelSelector": ",".join(f"{name}={value}" for name, value in self.labels.items())}

    def member_annotations(self, identity: str) -> dict[str, str]:
        """Say whose a member's lease is."""
        return {_MEMBER: identity}

    def name_of_member(self, identity: str) -> str:
        """Name a member's lease."""
        return f"{self._short}-member-{_hashed(identity)}"

    def name_of_shard(self, shard: str) -> str:
        """Name a shard's lease."""
        return f"{self._short}-shard-{_hashed(shard)}"

    @property
    def _short(self) -> str:
        """The name, or what stands for it where it is longer than a label's value may be."""
        return self.name if len(self.name) <= _LONGEST_LABEL else _hashed(self.name)

    def path(self, name: str) -> str:
        """Return the path of one lease."""
        return paths.object_path(*_API, name, namespace=self.namespace)

    def ended_member(self, identity: str, lease: JsonObject | None) -> JsonObject:
        """End a member's lease, or write one that is ended from the start."""
        spec: JsonObject = {"holderIdentity": _NOBODY, "leaseDurationSeconds": 1}
        return self._document(self.name_of_member(identity), lease, self.member_annotations(identity), spec)

    def held_shard(self, shard: str, lease: JsonObject | None, holder: str, now: datetime) -> JsonObject:
        """Give a shard's lease to somebody, or to nobody.

        It is not renewed: its holder has it as long as the holder's own lease lives.
        """
        moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        moves = dig(lease, "spec", "leaseTransitions")
        count = moves if isinstance(moves, int) and not isinstance(moves, bool) else 0
        moved = lease is not None and bool(holder) and dig_text(lease, "spec", "holderIdentity") != holder
        spec: JsonObject = {
            "holderIdentity": holder,
            "acquireTime": moment,
            "leaseTransitions": count + moved,
        }
        return self._document(self.name_of_shard(shard), lease, {_SHARD: shard}, spec)

    def _document(
        self, name: str, lease: JsonObject | None, annotations: dict[str, str], spec: JsonObject
    ) -> JsonObject:
        """Keep the metadata of one that is there: its resourceVersion makes the write a compare-and-swap."""
        new: JsonObject = {
            "name": name,
            "namespace": self.namespace,
            "labels": dict(self.labels),
            "annotations": dict(annotations),
        }
        metadata = new if lease is None else lease.get("metadata")
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_HASH]
