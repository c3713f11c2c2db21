"""Machines and clusters as frozen facts: Cluster API's of both contracts, and those that an operator records. Pure.

They are written in the management cluster, so they are trusted; a request never is. A record with a field that nobody
reads, or with a wrong value, still claims its provider ID, name and addresses, and nobody can join as it: a misspelt
restriction must not be silently lost. Sources: cluster-api api/core/v1beta1 and v1beta2, contract documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal

from nodeattest_parsing.objects import condition, dig, flag, items, mapping, moment, strings, text, text_map
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import identifiers
from nodeattest_providers.config_fields import boolean, check_keys, invalid, string_set
from nodeattest_providers.config_fields import items as read_items
from nodeattest_providers.config_fields import mapping as read_mapping
from nodeattest_providers.config_fields import text as read_text
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID
from nodeattest_providers.keys import ENDORSEMENT_FINGERPRINT, FINGERPRINT_FORM
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.verifier_interface import MachineFacts

CLUSTER_LABEL: Final = "cluster.x-k8s.io/cluster-name"
CONTROL_PLANE_LABEL: Final = "cluster.x-k8s.io/control-plane"
"""On the Machines of a control plane, with any value (cluster-api util.IsControlPlaneMachine)."""
PAUSED_ANNOTATION: Final = "cluster.x-k8s.io/paused"
MAX_INSTANCES: Final = 10_000
"""Provider IDs of a MachinePool (cluster-api api/core/v1beta2 machinepool_types.go, MaxItems; v1beta1 has no bound)."""
MAX_ADDRESSES: Final = 1_024
"""Addresses of a Machine, for which Cluster API has no bound; an EC2 instance has at most 15 interfaces of 50."""

MachineResource = Literal["machines", "machinepools", "machinerecords"]
RESOURCES: Final[Mapping[str, MachineResource]] = MappingProxyType(
    {"Machine": "machines", "MachinePool": "machinepools", "MachineRecord": "machinerecords"}
)
"""By kind."""


@dataclass(frozen=True, slots=True)
class ContractReference:
    """The infrastructure object or bootstrap configuration of a Machine, in its namespace."""

    group: str
    kind: str
    name: str
    version: str = ""
    """Empty in v1beta2, where a reference names the group only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """One Machine, or one instance of a MachinePool."""

    kind: str
    """``Machine``, ``MachinePool`` or ``MachineRecord`` (``records``)."""
    api_version: str
    name: str
    namespace: str
    uid: str
    cluster_name: str
    provider_id: ProviderID
    """Empty while neither Cluster API nor a record nor a resolver has given one."""
    provider_id_source: str = ""
    """Where the provider ID was read, such as ``Machine spec.providerID``."""
    is_confirmed: bool = True
    """Whether the provider ID is the object's own; False: another source gives it until Cluster API sets it."""
    provider_id_prefix: str = ""
    """What the infrastructure gives of the provider ID, where the request chose the rest; empty: all of it."""
    node_ref_name: NodeName | None = None
    node_ref_uid: str | None = None
    addresses: tuple[tuple[str, str], ...] = ()
    bootstrap_ready: bool = False
    deleting: bool = False
    paused: bool = False
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    infra: ContractReference | None = None
    bootstrap: ContractReference | None = None
    """The bootstrap configuration; None where the bootstrap data was given without one, or is not Cluster API's."""
    pool_infra: ContractReference | None = None
    """The infrastructure object of a MachinePool, which says whether its instances have Machines."""
    of_pool: bool = False
    """Whether a MachinePool, which has its bootstrap configuration, made this Machine for one of its instances."""
    created: datetime | None = None
    is_control_plane: bool = False
    given_name: NodeName | None = None
    """The node name that an operator gave to a recorded machine; it decides."""
    endorsement_keys: dict[str, str] = field(default_factory=dict[str, str])
    """Fingerprints that a record names itself, by their source."""
    bootstrap_token_id: str = ""
    """The bootstrap token that a record names as this machine's own; that of a Machine is in its KubeadmConfig."""
    flaw: str = ""
    """Why nobody may join as this member until it is corrected; empty where nothing is wrong."""

    @property
    def resource(self) -> MachineResource:
        return RESOURCES[self.kind]

    @property
    def is_pool_instance(self) -> bool:
        return self.kind == "MachinePool"

    def with_provider_id(self, provider_id: str, source: str, *, prefix: str = "") -> MachineView:
        """Return a Machine without a provider ID as one that has it by another source than Cluster API."""
        own = ProviderID(provider_id)
        return replace(self, provider_id=own, provider_id_source=source, is_confirmed=False, provider_id_prefix=prefix)

    def facts(
        self, *, endorsement_keys: Mapping[str, str] = MappingProxyType({}), secret: SecretBytes | Denied | None = None
    ) -> MachineFacts:
        """Make the value that providers see; ``endorsement_keys`` are fingerprints by their source."""
        return MachineFacts(
            uid=self.uid,
            provider_id=self.provider_id,
            name=self.name,
            namespace=self.namespace,
            provider_id_prefix=self.provider_id_prefix,
            annotations=self.annotations,
            endorsement_keys=endorsement_keys or self.endorsement_keys,
            attestation_secret=secret,
        )


def cluster_of(machine: JsonObject) -> str:
    """Name the cluster of a Machine or MachinePool; the label is a copy."""
    return text(machine, "spec", "clusterName")


def instances_have_machines(infra: JsonObject) -> bool:
    """Return whether Cluster API makes a Machine for each instance of a pool (contract for InfraMachinePools)."""
    return bool(text(infra, "status", "infrastructureMachineKind"))


def base_view(obj: JsonObject, kind: str, provider_id_source: str) -> MachineView:
    meta, node_ref = mapping(obj, "metadata"), mapping(obj, "status", "nodeRef")
    return MachineView(
        kind=kind,
        api_version=text(obj, "apiVersion"),
        name=text(meta, "name"),
        namespace=text(meta, "namespace"),
        uid=text(meta, "uid"),
        cluster_name=cluster_of(obj),
        provider_id=ProviderID(text(obj, "spec", "providerID")),
        provider_id_source=provider_id_source,
        node_ref_name=NodeName(text(node_ref, "name")) or None,
        node_ref_uid=text(node_ref, "uid") or None,
        deleting="deletionTimestamp" in meta,
        paused=PAUSED_ANNOTATION in mapping(meta, "annotations"),
        annotations=text_map(meta, "annotations"),
        created=moment(text(meta, "creationTimestamp")),
    )


def view_of_machine(machine: JsonObject) -> MachineView:
    addresses = items(machine, "status", "addresses")
    return replace(
        base_view(machine, "Machine", "Machine spec.providerID"),
        addresses=tuple((text(one, "type"), text(one, "address")) for one in addresses[:MAX_ADDRESSES]),
        bootstrap_ready=_bootstrap_ready(machine),
        infra=contract_reference(mapping(machine, "spec", "infrastructureRef")),
        bootstrap=bootstrap_config_ref(machine),
        of_pool=_is_of_pool(machine),
        is_control_plane=CONTROL_PLANE_LABEL in mapping(machine, "metadata", "labels"),
        flaw=f"status.addresses: expected at most {MAX_ADDRESSES}, got more" if len(addresses) > MAX_ADDRESSES else "",
    )


@dataclass(frozen=True, slots=True)
class PoolView:
    """A MachinePool: each provider ID is a member with the pool's name and UID, and without a node name of its own.

    Nobody joins by one that lists more than ``MAX_INSTANCES``.
    """

    pool: MachineView
    """What its members have in common; without a provider ID."""
    provider_ids: frozenset[str]

    def lists(self, provider_id: str) -> bool:
        return provider_id in self.provider_ids or bool(self.pool.flaw)

    def member(self, provider_id: str) -> MachineView:
        return replace(self.pool, provider_id=ProviderID(provider_id))


def pool_view(pool: JsonObject) -> PoolView:
    listed = mapping(pool, "spec").get("providerIDList")
    too_many = isinstance(listed, list) and len(listed) > MAX_INSTANCES
    flaw = f"spec.providerIDList: expected at most {MAX_INSTANCES} provider IDs, got more" if too_many else ""
    common = replace(
        base_view(pool, "MachinePool", "MachinePool spec.providerIDList"),
        provider_id=ProviderID(""),
        bootstrap_ready=_bootstrap_ready(pool),
        bootstrap=bootstrap_config_ref(pool),
        pool_infra=contract_reference(mapping(pool, "spec", "template", "spec", "infrastructureRef")),
        flaw=flaw,
    )
    return PoolView(common, frozenset() if too_many else frozenset(strings(pool, "spec", "providerIDList")))


def views_of_pool(pool: JsonObject) -> list[MachineView]:
    view = pool_view(pool)
    return [view.member(provider_id) for provider_id in sorted(view.provider_ids)]


def bootstrap_config_ref(owner: JsonObject) -> ContractReference | None:
    """Read the reference of a Machine to its bootstrap configuration, or of a MachinePool, in its template."""
    template = mapping(owner, "spec", "template")
    return contract_reference(mapping(template or owner, "spec", "bootstrap", "configRef"))


def _is_of_pool(machine: JsonObject) -> bool:
    """Cluster API gives these the pool as owner (machinepool_controller_phases.go, computeDesiredMachine)."""
    owners = items(machine, "metadata", "ownerReferences")
    kinds = {(text(owner, "apiVersion").partition("/")[0], text(owner, "kind")) for owner in owners}
    return ("cluster.x-k8s.io", "MachinePool") in kinds


def _bootstrap_ready(machine: JsonObject) -> bool:
    """Read the condition of v1beta2 or v1beta1, else the contract's plain fields."""
    status = mapping(machine, "status")
    current = items(status, "conditions") + items(status, "v1beta2", "conditions")
    for kind in ("BootstrapConfigReady", "BootstrapReady"):
        found = condition(current, kind)
        if found is not None:
            return found.get("status") == "True"
    return flag(status, "bootstrapReady") or flag(status, "initialization", "bootstrapDataSecretCreated")


def contract_reference(reference: JsonObject) -> ContractReference | None:
    """Read a reference: v1beta1 names an apiVersion, v1beta2 an apiGroup. None where it names no object (yet)."""
    name, kind, api_version = text(reference, "name"), text(reference, "kind"), text(reference, "apiVersion")
    group, version = text(reference, "apiGroup"), ""
    if "/" in api_version:
        group, version = api_version.split("/", 1)
    return ContractReference(group, kind, name, version) if name and kind and group else None


# Records of an operator, and the views of every kind

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
MAX_RECORD_ADDRESSES: Final = 64
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
    if len(addresses) > MAX_RECORD_ADDRESSES:
        raise invalid("spec.addresses", f"at most {MAX_RECORD_ADDRESSES}", "more")
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
    """Read the members of an object of one of ``MACHINE_KINDS``; ``kind``: the object's, if it may not have one."""
    read = _READERS.get(kind or text(obj, "kind"))
    return read(obj) if read is not None else []


def machine_view(obj: JsonObject, kind: str, provider_id: str) -> MachineView | None:
    """Read the member of an object with a provider ID; a Machine that has none yet is the member of any."""
    if kind == "MachinePool":
        pool = pool_view(obj)
        return pool.member(provider_id) if pool.lists(provider_id) else None
    return next((view for view in machine_views(obj, kind) if view.provider_id in {provider_id, ""}), None)
