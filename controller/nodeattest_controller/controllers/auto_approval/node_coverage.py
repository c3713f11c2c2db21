"""Counts the Nodes of a workload cluster that need no in-tree signer, because they are in the ledger. Pure.

A Node counts when exactly its machine joined attested and has a client certificate that is still valid. Nothing that
the node itself may write (labels, annotations, its status) takes it out of the count. Errs on the side of "not": what
is missing here, for whatever reason, leaves the rotation as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.objects import text
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import NodeName

__all__ = ["NAMED", "NodeCoverage", "is_attested"]

NAMED: Final = 10
"""Nodes that a message names."""


@dataclass(slots=True)
class NodeCoverage:
    """The Nodes of one cluster, counted."""

    nodes: int = 0
    unattested: int = 0
    names: tuple[str, ...] = ()
    """The first of those that are not in the ledger."""
    created: dict[str, datetime | None] = field(default_factory=dict[str, "datetime | None"])
    """When each was."""

    def count(self, name: str, *, attested: bool, created: datetime | None = None) -> None:
        """Count one Node."""
        self.nodes += 1
        self.created[name] = created
        if not attested:
            self.unattested += 1
            if len(self.names) < NAMED:
                self.names = (*self.names, name)

    @property
    def is_complete(self) -> bool:
        """Whether there are Nodes, and each is attested; no Node at all is no proof of anything."""
        return self.nodes > 0 and not self.unattested

    def __str__(self) -> str:
        """Say how many are not in the ledger, and the first of them by name."""
        if not self.nodes:
            return "the cluster has no Node yet"
        more = f" and {self.unattested - len(self.names)} more" if self.unattested > len(self.names) else ""
        return f"{self.unattested} of {self.nodes} Nodes are not in the ledger: {', '.join(self.names)}{more}"


def is_attested(node: JsonObject, cluster: ClusterKey, inventory: Inventory, now: datetime) -> bool:
    """Return whether a Node's machine joined attested and has a valid client certificate.

    1. One attestation record is bound to the Node's name, and its certificate lives. 2. Its machine is one Machine or
    pool instance of this cluster, which owns the record. 3. The Node has that machine's provider ID, or has none and is
    the Machine's nodeRef.
    """
    name, provider_id = text(node, "metadata", "name"), text(node, "spec", "providerID")
    holders = inventory.attestations_by_node_name(cluster, NodeName(name))
    if len(holders) != 1 or holders[0].live(now) is None:  # 1
        return False
    [attestation] = holders
    members = inventory.members(cluster, attestation.provider_id)
    if len(members) != 1 or not _owns(members[0].uid, attestation):  # 2
        return False
    if provider_id:  # 3
        return provider_id == attestation.provider_id
    return members[0].node_ref_uid is not None and members[0].node_ref_uid == text(node, "metadata", "uid")


def _owns(uid: str, attestation: Attestation) -> bool:
    return bool(uid) and uid == attestation.owner_uid
