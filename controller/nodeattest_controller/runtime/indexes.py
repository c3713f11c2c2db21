"""Indexes Machines, pool instances and records of all clusters by what a request can claim. In memory, no I/O.

Watches, answers to our writes and single reads show the same records over different connections, so an earlier state
may arrive later and would hide a new record. So an answer counts only if the index is as it was when the question was
sent, and an event only if no answer showed a later version (``AttestationOrder``; versions compare by KEP-5504).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, Generic, NewType, TypeVar

from nodeattest_controller.model import machine_view
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_controller.model.node_names import claimed_names
from nodeattest_controller.model.serving_names import san_candidates
from nodeattest_kube.answers import is_before, version_of
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.config_fields import split_pin

RecordState = tuple[str, str] | None
"""UID and resourceVersion of the record that the index has; None where it has none."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """An answer that the watch has not shown yet."""

    version: str
    is_new: bool
    """Whether the watch has not shown this object at all; a deletion that it shows is an earlier object's."""


class AttestationOrder:
    """Indexes states of records in the order in which they were written."""

    def __init__(self, put: Callable[[str, JsonObject | None], None]) -> None:
        self._put = put
        self._known: dict[str, tuple[str, str]] = {}
        self._ahead: dict[str, _Ahead] = {}

    def known(self, key: str) -> RecordState:
        """Return the indexed state of a record; call it before a write or read is sent."""
        return self._known.get(key)

    def shown(self, key: str, attestation: JsonObject | None) -> None:
        """Index what the watch shows of a record: a state, or None for its deletion."""
        ahead = self._ahead.get(key)
        if ahead is not None:
            if ahead.is_new if attestation is None else is_before(version_of(attestation)[1], ahead.version):
                return
            del self._ahead[key]
        self._take_in(key, attestation)

    def answered(self, key: str, before: RecordState, attestation: JsonObject | None) -> None:
        """Index the answer to a write or read that was sent when the index had ``before``."""
        if self._known.get(key) != before:
            return  # the watch or another answer was faster
        if attestation is None:
            self._ahead.pop(key, None)
        elif (now := version_of(attestation)) != before:
            earlier = self._ahead.get(key)
            is_new = before is None or before[0] != now[0] or (earlier is not None and earlier.is_new)
            self._ahead[key] = _Ahead(now[1], is_new)
        self._take_in(key, attestation)

    def _take_in(self, key: str, attestation: JsonObject | None) -> None:
        if attestation is None:
            self._known.pop(key, None)
        else:
            self._known[key] = version_of(attestation)
        self._put(key, attestation)


ClusterKey = NewType("ClusterKey", str)
"""``namespace/name`` of a Cluster object."""

MAX_CLAIMS: Final = 8
"""Pools that are named as claimants of one provider ID; two are enough to refuse it."""
T = TypeVar("T")


def cluster_key(namespace: str, name: str) -> ClusterKey:
    return ClusterKey(sys.intern(f"{namespace}/{name}"))  # each of its objects is kept under it


class _Index(Generic[T]):
    """Values by derived keys, each from one source object."""

    def __init__(self, derive: Callable[[T], Iterable[tuple[str, ...]]]) -> None:
        self._derive = derive
        self._of_source: dict[str, tuple[ClusterKey, tuple[T, ...]]] = {}
        self._single: dict[Hashable, T] = {}
        """By key, if the key has one value, as most have: saves the memory of a dict each."""
        self._shared: dict[Hashable, dict[int, T]] = {}
        """By key and identity, if the key has several values: each is removed in one step."""

    def put(self, source: str, cluster: ClusterKey, values: Iterable[T]) -> tuple[T, ...]:
        self.remove(source)
        taken = tuple(values)
        self._of_source[source] = cluster, taken
        for value in taken:
            for key in self._derive(value):
                whole = (cluster, *key)
                if whole in self._shared:
                    self._shared[whole][id(value)] = value
                elif whole in self._single:
                    first = self._single.pop(whole)
                    self._shared[whole] = {id(first): first, id(value): value}
                else:
                    self._single[whole] = value
        return taken

    def remove(self, source: str) -> None:
        if source not in self._of_source:
            return
        cluster, values = self._of_source.pop(source)
        for old in values:
            for key in self._derive(old):
                whole = (cluster, *key)
                self._single.pop(whole, None)
                shared = self._shared.get(whole, {})
                shared.pop(id(old), None)
                if not shared:
                    self._shared.pop(whole, None)

    def find(self, cluster: ClusterKey, *key: str, most: int | None = None) -> list[T]:
        whole = (cluster, *key)
        if whole in self._single:
            return [self._single[whole]]
        return list(islice(self._shared.get(whole, {}).values(), most))

    def first(self, cluster: ClusterKey, *key: str) -> T | None:
        return next(iter(self.find(cluster, *key, most=1)), None)


class Inventory:
    """Members and ledgers of all clusters."""

    def __init__(self) -> None:
        self._members: _Index[machine_view.MachineView] = _Index(_member_keys)
        self._pools: _Index[machine_view.PoolView] = _Index(_pool_keys)
        self._attestations: _Index[Attestation] = _Index(_attestation_keys)

    def put_machine(self, key: str, machine: JsonObject | None) -> tuple[machine_view.MachineView, ...]:
        return _put(self._members, f"machine:{key}", machine, lambda obj: (machine_view.view_of_machine(obj),))

    def put_pool(self, key: str, pool: JsonObject | None) -> tuple[machine_view.PoolView, ...]:
        return _put(self._pools, key, pool, lambda obj: (machine_view.pool_view(obj),))

    def put_record(self, key: str, record: JsonObject | None) -> tuple[machine_view.MachineView, ...]:
        return _put(self._members, f"record:{key}", record, machine_view.views_of_record)

    def put_attestation(self, key: str, attestation: JsonObject | None) -> None:
        _put(self._attestations, key, attestation, lambda obj: (parse_attestation(obj),))

    def members(self, cluster: ClusterKey, provider_id: str) -> list[machine_view.MachineView]:
        """Return the members of a cluster with this provider ID; none for an empty one.

        1. A Machine without a provider ID has that of its MachineAttestation. 2. A pool does not count beside the
        Machine of its instance. 3. A Machine and a record with one provider ID are two members. 4. If a pool is not
        read, it alone is the member, because it may list any machine.
        """
        if not provider_id:
            return []
        found = self._members.find(cluster, "id", provider_id)
        for attestation in self._attestations.find(cluster, "id", provider_id):
            owner = self.machine_by_uid(cluster, attestation.owner_uid)
            if owner is not None and not owner.is_confirmed and owner.provider_id == provider_id:
                found.append(owner)
        if any(member.kind == "Machine" for member in found):
            return found
        unread = self._pools.first(cluster, "unread")
        listed = self._pools.find(cluster, "id", provider_id, most=MAX_CLAIMS) if unread is None else [unread]
        return (found if unread is None else []) + [pool.member(provider_id) for pool in listed]

    def machine_by_uid(self, cluster: ClusterKey, uid: str) -> machine_view.MachineView | None:
        found = self._members.first(cluster, "uid", uid)
        return self._recorded(cluster, found) if found is not None else None

    def _recorded(self, cluster: ClusterKey, machine: machine_view.MachineView) -> machine_view.MachineView:
        """Give a Machine without a provider ID the one that it joined with."""
        if machine.provider_id:
            return machine
        for attestation in self.attestations_of_owner(cluster, machine.uid):
            if attestation.has_joined or attestation.was_reset:
                return machine.with_provider_id(attestation.provider_id, attestation.provider_id_source)
        return machine

    def machines_of_config(self, cluster: ClusterKey, config: str) -> list[machine_view.MachineView]:
        """Return the Machines of a cluster whose bootstrap configuration is the KubeadmConfig of this name."""
        return [self._recorded(cluster, machine) for machine in self._members.find(cluster, "config", config)]

    def records_of_token(self, cluster: ClusterKey, token_id: str) -> list[machine_view.MachineView]:
        """Return the MachineRecords of a cluster that name a bootstrap token, by its id."""
        return self._members.find(cluster, "token", token_id)

    def attestations_of_owner(self, cluster: ClusterKey, uid: str) -> list[Attestation]:
        """Return the ledgers that a Machine owns; more than one only if its provider ID changed."""
        return self._attestations.find(cluster, "owner", uid)

    def bootstrap_owner(self, cluster: ClusterKey, member: machine_view.MachineView) -> machine_view.MachineView:
        """Return who has a machine's bootstrap configuration: itself, or the one pool that lists it."""
        if member.kind != "Machine" or member.bootstrap is not None:
            return member
        pools = self._pools.find(cluster, "id", member.provider_id, most=MAX_CLAIMS)
        unread = self._pools.first(cluster, "unread") is not None
        return pools[0].member(member.provider_id) if len(pools) == 1 and not unread else member

    def is_owner(self, cluster: ClusterKey, provider_id: str, uid: str) -> bool:
        """Return whether an object is a machine, or a pool that lists it."""
        pool = self._pools.first(cluster, "uid", uid)
        if pool is not None and pool.lists(provider_id):
            return True
        return any(member.uid == uid for member in self.members(cluster, provider_id))

    def members_of(self, cluster: ClusterKey) -> Iterator[machine_view.MachineView]:
        """Yield every member of a cluster once; a pool's instance with a Machine is the Machine."""
        everyone = [self._recorded(cluster, machine) for machine in self._members.find(cluster, "all")]
        found, pools = [machine for machine in everyone if machine.provider_id], self._pools.find(cluster, "all")
        yield from found
        machines = {member.provider_id for member in found}
        for pool in pools:
            yield from (pool.member(each) for each in pool.provider_ids if each not in machines)

    def machines_under(self, cluster: ClusterKey, policy: str, now: datetime) -> int:
        """Count the machines of a cluster whose newest client certificate is valid and of a policy, by its name."""
        return sum(one.policy_at(now) == policy for one in self._attestations.find(cluster, "policy", policy))

    def members_by_node_name(self, cluster: ClusterKey, node_name: str) -> list[machine_view.MachineView]:
        """Return the members of a cluster whose own sources give this node name."""
        return [self._recorded(cluster, machine) for machine in self._members.find(cluster, "name", node_name)]

    def members_by_short_name(self, cluster: ClusterKey, label: str) -> list[machine_view.MachineView]:
        """Return the members of a cluster with a fully qualified name whose first label this is."""
        return [self._recorded(cluster, machine) for machine in self._members.find(cluster, "label", label)]

    def machines_of(self, cluster: ClusterKey) -> Iterator[machine_view.MachineView]:
        """Yield every Machine of a cluster, with a provider ID or without."""
        yield from self._members.find(cluster, "all")

    def members_of_node(self, cluster: ClusterKey, node_name: str) -> list[machine_view.MachineView]:
        """Return the members of a cluster that claim a node's name or are bound to it, each once."""
        found = [machine for machine in self.members_by_node_name(cluster, node_name) if machine.provider_id]
        for holder in self.attestations_by_node_name(cluster, node_name):
            found += self.members(cluster, holder.provider_id)
        return list({member.provider_id: member for member in found}.values())

    def conflicting_members(self, cluster: ClusterKey, place: str, provider_id: str) -> list[machine_view.MachineView]:
        """Return the other members of a cluster that list a name or address, claim it, or are bound to it."""
        listing = [self._recorded(cluster, machine) for machine in self._members.find(cluster, "place", place)]
        bound = [
            member
            for holder in self.attestations_by_node_name(cluster, place)
            for member in self.members(cluster, holder.provider_id)
        ]
        found = listing + self.members_by_node_name(cluster, place) + bound
        distinct = {(member.uid, member.provider_id): member for member in found}
        return [member for member in distinct.values() if member.provider_id != provider_id]

    def attestation(self, cluster: ClusterKey, provider_id: str) -> Attestation | None:
        return self._attestations.first(cluster, "id", provider_id)

    def own_attestation(self, cluster: ClusterKey, provider_id: str) -> Attestation | None:
        """Return the ledger of one machine, unless its owner is a predecessor that is gone."""
        attestation = self.attestation(cluster, provider_id)
        known = attestation is not None and self.is_owner(cluster, provider_id, attestation.owner_uid)
        return attestation if known else None

    def attestations_by_node_name(self, cluster: ClusterKey, node_name: str) -> list[Attestation]:
        """Return the ledgers of a cluster that bound this node name."""
        return self._attestations.find(cluster, "name", node_name)

    def key_holders(self, cluster: ClusterKey, spki: str) -> list[Attestation]:
        """Return the ledgers of a cluster with a certificate for this key, past or present."""
        return self._attestations.find(cluster, "spki", spki)

    def fingerprint_holders(self, cluster: ClusterKey, kind: str, value: str) -> list[Attestation]:
        """Return the ledgers of a cluster that pin this fingerprint, by whichever provider or part of a composite."""
        return self._attestations.find(cluster, "fingerprint", kind, value)


def _put(
    index: _Index[T], source: str, obj: JsonObject | None, read: Callable[[JsonObject], Iterable[T]]
) -> tuple[T, ...]:
    if obj is None:
        index.remove(source)
        return ()
    return index.put(source, cluster_key(text(obj, "metadata", "namespace"), machine_view.cluster_of(obj)), read(obj))


def _member_keys(member: machine_view.MachineView) -> Iterable[tuple[str, ...]]:
    yield ("all",)
    yield ("uid", member.uid)
    if member.provider_id:
        yield ("id", member.provider_id)
    if member.bootstrap is not None:
        yield ("config", member.bootstrap.name)
    if member.bootstrap_token_id:
        yield ("token", member.bootstrap_token_id)
    names = dict.fromkeys(claimed_names(member))
    for name in names:
        yield ("name", name)
    for label in {name.partition(".")[0] for name in names if "." in name}:
        yield ("label", label)
    for place in san_candidates(member):
        yield ("place", place)


def _pool_keys(pool: machine_view.PoolView) -> Iterable[tuple[str, ...]]:
    """As a list, which costs no call for each provider ID."""
    unread = [("unread",)] if pool.pool.flaw else []
    return [("all",), ("uid", pool.pool.uid), *unread, *[("id", provider_id) for provider_id in pool.provider_ids]]


def _attestation_keys(attestation: Attestation) -> Iterable[tuple[str, ...]]:
    yield ("all",)
    yield ("id", attestation.provider_id)
    yield ("owner", attestation.owner_uid)
    if attestation.node_name:
        yield ("name", attestation.node_name)
    if (newest := attestation.newest_client) is not None:
        yield ("policy", newest.policy)
    for key in (*attestation.issued, *attestation.retired):
        yield ("spki", key.spki)
    for pin, value in attestation.fingerprints.items():
        yield ("fingerprint", split_pin(pin)[1], value)
