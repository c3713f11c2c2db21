"""Machines and clusters that an operator writes down, where Cluster API does not: MachineRecord, ClusterRecord. Pure.

A record with a field that nobody reads, or with a wrong value, still claims its provider ID, name and addresses, and
nobody can join as it until it is corrected: a misspelt restriction must not be silently lost. ``machine_views`` reads
the objects of every kind that machines are read from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.machine_view import (
    PAUSED_ANNOTATION,
    MachineView,
    base_view,
    pool_view,
    view_of_machine,
    views_of_pool,
)
from nodeattest_parsing.objects import dig, flag, items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import identifiers
from nodeattest_providers.config_fields import boolean, check_keys, invalid, string_set
from nodeattest_providers.config_fields import items as read_items
from nodeattest_providers.config_fields import mapping as read_mapping
from nodeattest_providers.config_fields import text as read_text
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName
from nodeattest_providers.keys import ENDORSEMENT_FINGERPRINT, FINGERPRINT_FORM

MACHINE_RECORD: Final = "MachineRecord"
CLUSTER_RECORD: Final = "ClusterRecord"

_FIELDS: Final = frozenset(
    {
        "addresses",
        "bootstrapTokenID",
        "clusterName",
        "controlPlane",
        "endorsementKeyHash",
        "nodeName",
        "paused",
        "providerID",
    }
)
_CLUSTER_FIELDS: Final = frozenset({"clusterNetwork", "controlPlaneEndpoint", "paused"})
ADDRESS_TYPES: Final = frozenset({"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"})
"""Those of a Machine and of a Node (core/v1 NodeAddressType)."""
MAX_ADDRESSES: Final = 64
_SPELLINGS: Final = (
    ("endorsementKeyHash", ENDORSEMENT_FINGERPRINT, FINGERPRINT_FORM),
    ("bootstrapTokenID", re.compile(r"[a-z0-9]{6}", re.ASCII), "the six characters before the token's dot"),
)


def views_of_record(record: JsonObject) -> list[MachineView]:
    spec, base = mapping(record, "spec"), base_view(record, MACHINE_RECORD, f"{MACHINE_RECORD} spec.providerID")
    if not base.provider_id:
        return []
    key_hash = text(spec, "endorsementKeyHash")
    view = replace(
        base,
        given_name=NodeName(text(spec, "nodeName")),
        addresses=tuple((text(one, "type"), text(one, "address")) for one in items(spec, "addresses")),
        bootstrap_ready=True,
        paused=flag(spec, "paused") or base.paused,
        endorsement_keys={f"{MACHINE_RECORD} spec.endorsementKeyHash": key_hash} if key_hash else {},
        bootstrap_token_id=text(spec, "bootstrapTokenID"),
        is_control_plane=flag(spec, "controlPlane"),
        flaw=_flaw(_check_machine, spec),
    )
    return [view]


def cluster_flaw(cluster: JsonObject) -> str:
    if text(cluster, "kind") != CLUSTER_RECORD:
        return ""
    return _flaw(_check_cluster, mapping(cluster, "spec"))


def cluster_paused(cluster: JsonObject) -> bool:
    return flag(cluster, "spec", "paused") or PAUSED_ANNOTATION in mapping(cluster, "metadata", "annotations")


def cluster_active(cluster: JsonObject) -> bool:
    """Return whether a Cluster is neither paused nor being deleted; one that cannot be read whole is paused."""
    return not ("deletionTimestamp" in mapping(cluster, "metadata") or cluster_paused(cluster) or cluster_flaw(cluster))


def check_cluster_active(key: str, cluster: JsonObject | None) -> JsonObject:
    """Identity rule 1: the Cluster is there, not paused and not being deleted; raises Unavailable."""
    flaw = cluster_flaw(cluster) if cluster is not None else ""
    if flaw:
        raise Unavailable(Reason.RECORD_INVALID, f"ClusterRecord {key}: {flaw}", remedy="correct the ClusterRecord")
    if cluster is None or not cluster_active(cluster):
        raise Unavailable(Reason.MACHINE_NOT_READY, "the Cluster is paused or going away", remedy="resume the Cluster")
    return cluster


def _flaw(check: Callable[[JsonObject], None], spec: JsonObject) -> str:
    try:
        check(spec)
    except Denied as denied:
        return f"expected {denied.expected}, got {denied.got}"
    return ""


def _check_cluster(spec: JsonObject) -> None:
    check_keys(spec, "spec", _CLUSTER_FIELDS)
    boolean(spec.get("paused", False), "spec.paused")


def _check_machine(spec: JsonObject) -> None:
    check_keys(spec, "spec", _FIELDS)
    read_text(spec.get("clusterName"), "spec.clusterName")
    for name, read in (("providerID", identifiers.provider_id), ("nodeName", identifiers.node_name)):
        try:
            read(text(spec, name))
        except Denied as denied:
            raise invalid(f"spec.{name}", denied.expected, denied.got) from None
    for name, pattern, expected in _SPELLINGS:
        if name in spec:
            string_set([spec[name]], f"spec.{name}", pattern, expected)
    boolean(spec.get("paused", False), "spec.paused")
    boolean(spec.get("controlPlane", False), "spec.controlPlane")
    addresses = read_items(spec.get("addresses", []), "spec.addresses")
    if len(addresses) > MAX_ADDRESSES:
        raise invalid("spec.addresses", f"at most {MAX_ADDRESSES}", "more")
    for address in addresses:
        check_keys(read_mapping(address, "spec.addresses"), "spec.addresses", ("type", "address"))
        read_text(dig(address, "address"), "spec.addresses")
        if text(address, "type") not in ADDRESS_TYPES:
            raise invalid("spec.addresses", f"a type of {', '.join(sorted(ADDRESS_TYPES))}", "another")


_READERS: Final[Mapping[str, Callable[[JsonObject], list[MachineView]]]] = MappingProxyType(
    {"Machine": lambda obj: [view_of_machine(obj)], "MachinePool": views_of_pool, MACHINE_RECORD: views_of_record}
)
MACHINE_KINDS: Final = frozenset(_READERS)
CLUSTER_KINDS: Final = frozenset({"Cluster", CLUSTER_RECORD})


def machine_views(obj: JsonObject, kind: str = "") -> list[MachineView]:
    """Read the members of an object of one of ``MACHINE_KINDS``; any other has none.

    ``kind`` says what it is where the object itself may not.
    """
    read = _READERS.get(kind or text(obj, "kind"))
    return read(obj) if read is not None else []


def machine_view(obj: JsonObject, kind: str, provider_id: str) -> MachineView | None:
    """Read one member of an object of these kinds; None where the object has none of this provider ID.

    A Machine to which Cluster API has given no provider ID yet is the member of any.
    """
    if kind == "MachinePool":
        pool = pool_view(obj)
        return pool.member(provider_id) if pool.lists(provider_id) else None
    return next((view for view in machine_views(obj, kind) if view.provider_id in {provider_id, ""}), None)
