"""Where a machine's addresses come from, and what else of its cluster they are compared with.

``Machine.status.addresses`` is one source; a cloud's live answer can be another, behind the same one-method seam, so
that an address that moved away is not believed for as long as Cluster API's controllers take to notice.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from nodeattest_controller.authority import SubjectNames
from nodeattest_controller.clusterapi import Member
from nodeattest_controller.inventory import ClusterKey
from nodeattest_controller.management import Management
from nodeattest_controller.serving import Addresses, check_names, is_settled, network_of, of_machine
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import NodeName

__all__ = ["AddressReview", "AddressSource", "StatusAddresses"]


class AddressSource(Protocol):
    """Tells at which names and addresses a machine can be reached."""

    async def addresses(self, member: Member) -> Addresses:
        """Return (type, address) pairs; raises Unavailable when they cannot be had now."""
        ...


class StatusAddresses:
    """What the Machine object lists; as fresh as the object that it is asked about."""

    async def addresses(self, member: Member) -> Addresses:
        """Return ``status.addresses``."""
        return member.addresses


class AddressReview:
    """Checks the names of a serving request against the inventory."""

    def __init__(self, management: Management, source: AddressSource) -> None:
        self._management = management
        self._source = source

    async def check(
        self, cluster: JsonObject, member: Member, wanted: SubjectNames, *, node_name: NodeName, at: datetime
    ) -> None:
        """Let names through that are this machine's alone; raises Denied or Unavailable.

        ``at`` is the request's creation: whether the Machine is young is judged there.
        """
        inventory = self._management.inventory
        key = ClusterKey(f"{member.namespace}/{member.cluster_name}")
        network, rivals = of_machine(
            member, network_of(cluster), lambda place: inventory.rivals(key, place, member.provider_id)
        )
        check_names(
            wanted,
            node_name=node_name,
            listed=await self._source.addresses(member),
            network=network,
            rivals=rivals,
            settled=is_settled(member, at),
        )
