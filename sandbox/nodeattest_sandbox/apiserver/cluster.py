"""The parts of one cluster that every request needs, and how a fresh one is filled.

Promises: after ``Cluster.boot`` the cluster is as kube-apiserver leaves it after its first start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from nodeattest_sandbox.apiserver import crd
from nodeattest_sandbox.apiserver.admission import NodeAuthorizer
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.apiserver.kinds import Kinds
from nodeattest_sandbox.apiserver.rbac import Rbac
from nodeattest_sandbox.apiserver.store import Store
from nodeattest_sandbox.apiserver.strategies import default_objects
from nodeattest_sandbox.apiserver.users import Authenticator


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster; ``now`` and ``random`` (which gives so many bytes) come from main."""

    store: Store
    kinds: Kinds
    authenticator: Authenticator
    authorizer: NodeAuthorizer
    now: Callable[[], datetime]
    random: Callable[[int], bytes]

    @classmethod
    def boot(
        cls, store: Store, *, now: Callable[[], datetime], random: Callable[[int], bytes], snapshot: JsonValue = None
    ) -> Cluster:
        """Make a cluster over the store: from the snapshot, or with the objects of a first start."""
        cluster = cls(store, Kinds(), Authenticator(store, now), NodeAuthorizer(Rbac(store)), now, random)
        if snapshot is None:
            for collection, value in default_objects(cluster.new_metadata):
                store.put(collection, value)
        else:
            store.restore(snapshot)
        for stored in store.list(crd.COLLECTION):
            crd.register(cluster.kinds, stored.value)
        return cluster

    def timestamp(self) -> str:
        """Return the server's time as objects carry it: whole seconds."""
        return self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def new_uid(self) -> str:
        """Return a fresh UID."""
        return str(UUID(bytes=self.random(16), version=4))

    def new_metadata(self) -> JsonMap:
        """Return what the server puts into the metadata of every new object."""
        return {"uid": self.new_uid(), "creationTimestamp": self.timestamp()}
