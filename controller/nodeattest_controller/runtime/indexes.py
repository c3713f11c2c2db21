"""Who is in which cluster: Machines, pool instances and records, by what a request can claim. In memory, no I/O.

Fed by reflectors object by object; reads cost the same for one machine or ten thousand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NewType, TypeVar

from nodeattest_controller.model.attestation import Attestation, parse_attestation
from nodeattest_controller.model.identity_rules import allowed_node_names
from nodeattest_controller.model.machine_record import views_of_record
from nodeattest_controller.model.machine_view import MachineView, views_of_machine, views_of_pool
from nodeattest_controller.model.serving_names import san_candidates
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.pins import split_pin

__all__ = ["ClusterKey", "Inventory", "cluster_key"]

ClusterKey = NewType("ClusterKey", str)
"""``namespace/name`` of a Cluster object."""

T = TypeVar("T")


def cluster_key(namespace: str, name: str) -> ClusterKey:
    """Name a cluster."""
    return ClusterKey(f"{namespace}/{name}")


class _Index(Generic[T]):
    """Values of one source object each, found again by derived keys."""

    def __init__(self, derive: Callable[[T], Iterable[Hashable]]) -> None:
        self._derive = derive
        self._of_source: dict[str, tuple[T, ...]] = {}
        self._by_key: dict[Hashable, dict[int, T]] = defaultdict(dict)

    def put(self, source: str, values: Iterable[T]) -> None:
        """Replace all that came from a source."""
        for old in self._of_source.pop(source, ()):
            for key in self._derive(old):
                found = self._by_key[key]
                found.pop(id(old), None)
                if not found:
                    del self._by_key[key]
        kept = tuple(values)
        if kept:
            self._of_source[source] = kept
        for value in kept:
            for key in self._derive(value):
                self._by_key[key][id(value)] = value

    def find(self, key: Hashable) -> list[T]:
        """Return what has a key."""
        return list(self._by_key.get(key, {}).values())


class Inventory:
    """Members and ledgers of all clusters."""

    def __init__(self) -> None:
        self._members: _Index[MachineView] = _Index(_member_keys)
        self._attestations: _Index[Attestation] = _Index(_attestation_keys)

    def put_machine(self, key: str, machine: JsonObject | None) -> None:
        """Take in a Machine, or forget it."""
        self._members.put(f"machine:{key}", views_of_machine(machine) if machine else ())

    def put_pool(self, key: str, pool: JsonObject | None) -> None:
        """Take in a MachinePool, or forget it."""
        self._members.put(f"pool:{key}", views_of_pool(pool) if pool else ())

    def put_record(self, key: str, record: JsonObject | None) -> None:
        """Take in a MachineRecord, or forget it."""
        self._members.put(f"record:{key}", views_of_record(record) if record else ())

    def put_attestation(self, key: str, attestation: JsonObject | None) -> None:
        """Take in a MachineAttestation, or forget it."""
        self._attestations.put(key, (parse_attestation(attestation),) if attestation else ())

    def members(self, cluster: ClusterKey, provider_id: str) -> list[MachineView]:
        """Return the members of a cluster with this provider ID; a pool that lists its Machines counts once.

        A Machine or a pool does not answer for a record: two sources that claim one machine are two members.
        """
        found = self._members.find((cluster, "id", provider_id))
        if any(member.kind == "Machine" for member in found):
            return [member for member in found if not member.is_pool_instance]
        return found

    def bootstrap_owner(self, cluster: ClusterKey, member: MachineView) -> MachineView:
        """Return who has a machine's bootstrap configuration: itself, or the one pool that lists a Machine without."""
        if member.kind != "Machine" or member.bootstrap is not None:
            return member
        listed = self._members.find((cluster, "id", member.provider_id))
        pools = [one for one in listed if one.is_pool_instance]
        return pools[0] if len(pools) == 1 else member

    def owners(self, cluster: ClusterKey, provider_id: str) -> frozenset[str]:
        """Return the UIDs of the objects that list a machine: a pool's instance may be a Machine besides."""
        return frozenset(member.uid for member in self._members.find((cluster, "id", provider_id)))

    def members_of(self, cluster: ClusterKey) -> list[MachineView]:
        """Return every member of a cluster, each once; a pool's instances that are Machines are those Machines."""
        found = self._members.find((cluster, "all"))
        machines = {member.provider_id for member in found if not member.is_pool_instance}
        return [member for member in found if not member.is_pool_instance or member.provider_id not in machines]

    def attestations_of(self, cluster: ClusterKey) -> list[Attestation]:
        """Return every ledger of a cluster."""
        return self._attestations.find((cluster, "all"))

    def members_by_node_name(self, cluster: ClusterKey, node_name: str) -> list[MachineView]:
        """Return the members of a cluster whose own name sources give this name."""
        return self._members.find((cluster, "name", node_name))

    def members_of_node(self, cluster: ClusterKey, node_name: str) -> list[MachineView]:
        """Return the members of a cluster that claim a node's name or are bound to it, each once."""
        found = self.members_by_node_name(cluster, node_name)
        for holder in self.attestations_by_node_name(cluster, node_name):
            found += self.members(cluster, holder.provider_id)
        return list({member.provider_id: member for member in found}.values())

    def conflicting_members(self, cluster: ClusterKey, place: str, provider_id: str) -> list[MachineView]:
        """Return the other members of a cluster that list a name or address, claim it, or are bound to it."""
        found = self._members.find((cluster, "place", place)) + self.members_of_node(cluster, place)
        return [member for member in found if member.provider_id != provider_id]

    def attestation(self, cluster: ClusterKey, provider_id: str) -> Attestation | None:
        """Return the ledger of one machine."""
        return next(iter(self._attestations.find((cluster, "id", provider_id))), None)

    def own_attestation(self, cluster: ClusterKey, provider_id: str) -> Attestation | None:
        """Return the ledger of one machine, unless it is a predecessor's that is about to be collected."""
        attestation = self.attestation(cluster, provider_id)
        return (
            attestation
            if attestation is not None and attestation.owner_uid in self.owners(cluster, provider_id)
            else None
        )

    def attestations_by_node_name(self, cluster: ClusterKey, node_name: str) -> list[Attestation]:
        """Return the ledgers of a cluster that bound this node name."""
        return self._attestations.find((cluster, "name", node_name))

    def key_holders(self, cluster: ClusterKey, spki: str) -> list[Attestation]:
        """Return the ledgers of a cluster that issued for this key, ever as far as is known."""
        return self._attestations.find((cluster, "spki", spki))

    def fingerprint_holders(self, cluster: ClusterKey, kind: str, value: str) -> list[Attestation]:
        """Return the ledgers of a cluster that pin this fingerprint, by whichever provider or part of a composite."""
        return self._attestations.find((cluster, "fingerprint", kind, value))


def _member_keys(member: MachineView) -> Iterable[Hashable]:
    cluster = cluster_key(member.namespace, member.cluster_name)
    yield (cluster, "all")
    yield (cluster, "id", member.provider_id)
    for name in dict.fromkeys(allowed_node_names(member)):
        yield (cluster, "name", name)
    for place in san_candidates(member):
        yield (cluster, "place", place)


def _attestation_keys(attestation: Attestation) -> Iterable[Hashable]:
    cluster = cluster_key(attestation.namespace, attestation.cluster_name)
    yield (cluster, "all")
    yield (cluster, "id", attestation.provider_id)
    if attestation.node_name:
        yield (cluster, "name", attestation.node_name)
    for key in (*attestation.issued, *attestation.retired):
        yield (cluster, "spki", key.spki)
    for pin, value in attestation.fingerprints.items():
        for kind in {pin, split_pin(pin)[1]}:  # a record of an earlier version has the kind alone, maybe with a dot
            yield (cluster, "fingerprint", kind, value)
