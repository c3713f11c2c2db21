"""The management cluster's machines, as commands read and show them: objects, rows, and one machine by its name.

A row's state is what the condition NodeAttested says (``conditions.condition_of_machine``). Refused requests that claim
a machine which has not joined are known by the condition that the controller wrote, and by nothing else. A collection
that the server does not have is empty, but for MachineAttestations: without them it is no management cluster of ours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nodeattest_cli.output import AccessError, StateError
from nodeattest_controller.controllers.node_attested.conditions import (
    CONDITION,
    condition_of_machine,
    parse_refused_claim,
)
from nodeattest_controller.model.attestation_object import owner_of, parse_attestation
from nodeattest_controller.model.machine_view import (
    CLUSTER_KINDS,
    MACHINE_KINDS,
    MachineView,
    cluster_of,
    machine_views,
)
from nodeattest_controller.model.policy import Policy, policy_for
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError, NotFound
from nodeattest_kube.kubeconfig import parse_kubeconfig
from nodeattest_parsing.objects import condition, items, key_of, mapping, metadata, moment, rfc3339, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import ProviderID

CLUSTER_API: Final = "cluster.x-k8s.io"
OWN: Final = ("attestation.cluster.x-k8s.io", "v1alpha1")
POLICY: Final = "NodeAttestationPolicy"
ATTESTATION: Final = "MachineAttestation"
MACHINE_GONE: Final = "MachineGone"
_ATTESTATIONS: Final = "machineattestations"
_OWN_RESOURCES: Final = frozenset({"nodeattestationpolicies", "clusterrecords", "machinerecords", _ATTESTATIONS})


async def cluster_api_version(client: ApiClient, group: str = CLUSTER_API) -> str:
    """Return the version of Cluster API, or of a provider's group, that a server prefers; empty where it has none."""
    try:
        return text(await client.get(paths.api_group(group)), "preferredVersion", "version")
    except NotFound:
        return ""


async def list_objects(
    client: ApiClient, path: str, query: Mapping[str, str] | None = None
) -> AsyncGenerator[JsonObject]:
    """Yield the objects of a collection; what a list leaves out of each (its kind) is put back."""
    async for page in client.pages(path, query):
        kind = text(page, "kind").removesuffix("List")
        for item in items(page, "items"):
            yield {"apiVersion": text(page, "apiVersion"), "kind": kind, **item}


async def list_served(
    client: ApiClient, group: tuple[str, str], resource: str, namespace: str | None, selector: str | None = None
) -> list[JsonObject]:
    """List a namespace's collection, or all of them; one that the server does not have is empty."""
    path = paths.collection_path(*group, resource, namespace=namespace)
    query = {"labelSelector": selector} if selector else None
    try:
        return [found async for found in list_objects(client, path, query)]
    except NotFound:
        return []


async def read_fleet(
    client: ApiClient,
    namespace: str | None,
    *resources: str,
    cluster: str | None = None,
    selector: str | None = None,
) -> list[JsonObject]:
    """Read our resources and Cluster API's of a namespace, or of all; raises ``StateError``.

    ``cluster``: the one that must be there. ``selector``: of the labels of machines.
    """
    needs_version = cluster is not None or not _OWN_RESOURCES.issuperset(resources)
    version = await cluster_api_version(client) if needs_version else ""
    found: list[JsonObject] = []
    for resource in resources:
        group = OWN if resource in _OWN_RESOURCES else (CLUSTER_API, version)
        labels = selector if resource.startswith("machine") and resource != _ATTESTATIONS else None
        found += await list_served(client, group, resource, namespace, labels) if group[1] else []
    if _ATTESTATIONS in resources and not of_kind(found, ATTESTATION):
        await _require_ours(client)
    mentioned = {text(one, "spec", "clusterName") for one in found}
    mentioned |= {text(one, "metadata", "name") for one in of_kind(found, *CLUSTER_KINDS)}
    if cluster is not None and cluster not in mentioned:
        group = (CLUSTER_API, version)
        clusters = await list_served(client, OWN, "clusterrecords", namespace)
        clusters += await list_served(client, group, "clusters", namespace) if version else []
        if not named(clusters, cluster):
            raise no_cluster(cluster, namespace)
    return found


async def _require_ours(client: ApiClient) -> None:
    """Check that the server has our resources; raises ``StateError``."""
    try:
        await client.get(paths.api_group(OWN[0]))
    except NotFound:
        raise StateError(
            f"{client.server} knows no MachineAttestation; if this is a workload cluster, point --kubeconfig "
            "at the management cluster; if it is that one, install manifests/crd there"
        ) from None


def no_cluster(name: str | None, namespace: str | None) -> StateError:
    """Make the error for a cluster that is not there, or for none at all."""
    what = f"Cluster or ClusterRecord {name}" if name else "Cluster or ClusterRecord"
    return StateError(f"no {what} in {f'namespace {namespace}' if namespace else 'any namespace'}")


def of_kind(documents: Iterable[JsonObject], *kinds: str) -> list[JsonObject]:
    """Return the objects of some kinds."""
    return [document for document in documents if text(document, "kind") in kinds]


def named(documents: Iterable[JsonObject], name: str) -> JsonObject | None:
    """Return the first object of a name."""
    return next((document for document in documents if text(document, "metadata", "name") == name), None)


def index(documents: Iterable[JsonObject], key: ClusterKey | None = None) -> Inventory:
    """Put machines and attestations into the controller's indexes; ``key``: of those that name no cluster."""
    inventory = Inventory()
    puts = {
        "Machine": inventory.put_machine,
        "MachinePool": inventory.put_pool,
        "MachineRecord": inventory.put_record,
        ATTESTATION: inventory.put_attestation,
    }
    namespace, _, name = (key or "").partition("/")
    for number, document in enumerate(documents):
        put = puts.get(text(document, "kind"))
        if put is not None:
            meta: JsonObject = {"namespace": namespace, **metadata(document)}
            spec: JsonObject = {"clusterName": name, **mapping(document, "spec")}
            put(str(number), {**document, "metadata": meta, "spec": spec})
    return inventory


def cluster_policy(cluster: JsonObject, documents: Iterable[JsonObject], inventory: Inventory, now: datetime) -> Policy:
    """Return a cluster's one policy, as the controller chooses it; raises ``Denied`` or ``Unavailable``."""
    key = ClusterKey(key_of(cluster))
    return policy_for(
        cluster, of_kind(documents, POLICY), recorded=lambda name: inventory.machines_under(key, name, now)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """One machine as ``machines list`` and ``explain`` show it."""

    namespace: str
    cluster: str
    machine: str
    kind: str
    """``Machine``, ``MachinePool`` or ``MachineRecord``."""
    node: str = ""
    provider: str = ""
    provider_id: str = ""
    expires: datetime | None = None
    """End of the newest certificate."""
    attested: bool = False
    state: str = ""
    """The reason of the condition, or why there is none."""
    message: str = ""
    refused: str = ""
    """Reason of the last refused request, where that counts or claims a machine which has not joined."""
    resets: int = 0
    """How often an operator reset it, as far as the ledger remembers."""
    verdict: str = ""
    """``spec.lastVerdict`` of the MachineAttestation."""
    attestation: str = ""
    """Name of the MachineAttestation; empty where there is none."""

    @property
    def names(self) -> frozenset[str]:
        """What an operator may call it."""
        return frozenset({self.machine, self.node, self.provider_id, self.attestation} - {""})

    def to_json(self) -> JsonObject:
        """Return the entry of ``machines``."""
        return {
            "namespace": self.namespace,
            "cluster": self.cluster,
            "node": self.node,
            "machine": self.machine,
            "kind": self.kind,
            "provider": self.provider,
            "providerID": self.provider_id,
            "attested": self.attested,
            "state": self.state,
            "message": self.message,
            "refused": self.refused or None,
            "expires": rfc3339(self.expires) if self.expires else None,
            "lastVerdict": self.verdict,
            "resets": self.resets,
            "attestation": self.attestation or None,
        }


def rows_of(documents: Sequence[JsonObject], now: datetime) -> Iterator[MachineRow]:
    """Yield every Machine, pool instance and MachineRecord, then the MachineAttestations whose machine is gone."""
    attestations = of_kind(documents, ATTESTATION)
    by_machine = {
        (text(one, "metadata", "namespace"), text(one, "spec", "clusterName"), text(one, "spec", "providerID")): one
        for one in attestations
    }
    by_owner = {uid: one for one in attestations if (uid := text(owner_of(one), "uid"))}
    for machine in of_kind(documents, *MACHINE_KINDS):
        for view in machine_views(machine):
            recorded = by_owner.get(view.uid) if not view.provider_id else None
            provider_id = text(recorded, "spec", "providerID") if recorded is not None else view.provider_id
            found = by_machine.pop((view.namespace, view.cluster_name, provider_id), None)
            if provider_id:
                known = view if view.provider_id else view.with_provider_id(provider_id, ATTESTATION)
                yield _row(known, machine, found, now)
            else:
                yield MachineRow(
                    namespace=view.namespace,
                    cluster=cluster_of(machine),
                    machine=view.name,
                    kind=view.kind,
                    state="NoProviderID",
                    message="its infrastructure has not given it a provider ID yet",
                )
    for left in by_machine.values():
        spec = mapping(left, "spec")
        gone = MachineView(
            kind="Machine",
            api_version="",
            name=text(spec, "machineName"),
            namespace=text(left, "metadata", "namespace"),
            uid="",
            cluster_name=text(spec, "clusterName"),
            provider_id=ProviderID(text(spec, "providerID")),
        )
        row = _row(gone, {}, left, now)
        yield replace(row, state=MACHINE_GONE, message=f"its Machine is gone; its record says: {row.message}")


def _row(view: MachineView, machine: JsonObject, attestation: JsonObject | None, now: datetime) -> MachineRow:
    known = parse_attestation(attestation) if attestation is not None else None
    state = condition_of_machine(view, known, now)
    written = condition(items(machine, "status", "conditions"), CONDITION)
    said = text(dict(written), "message") if written is not None else ""
    claim = parse_refused_claim(said)
    message, refused = state.message, ""
    if known is not None and known.issued:
        if state.status is ConditionStatus.FALSE and known.verdict is not None and known.verdict.verdict == "Denied":
            refused = known.verdict.reason
    elif claim is not None:
        message, refused = said, claim.reason
    spec = mapping(attestation or JsonObject(), "spec")
    return MachineRow(
        namespace=view.namespace,
        cluster=view.cluster_name,
        machine=view.name,
        kind=view.kind,
        node=text(spec, "nodeName") or view.node_ref_name or "",
        provider=text(spec, "provider"),
        provider_id=view.provider_id,
        expires=moment(text(spec, "expires")),
        attested=state.status is ConditionStatus.TRUE,
        state=state.reason,
        message=message,
        refused=refused,
        resets=len(items(spec, "resets")),
        verdict=text(spec, "lastVerdict", "verdict"),
        attestation=known.name if known is not None else "",
    )


async def workload_client(management: ApiClient, namespace: str, cluster: str) -> ApiClient:
    """Make a client for a workload cluster, as the controller reaches it; raises ``UserError``."""
    return (await workload_access(management, namespace, cluster))[0]


async def workload_access(management: ApiClient, namespace: str, cluster: str) -> tuple[ApiClient, str | None]:
    """Make a client by a workload cluster's Secret; returns it and the CAs that it trusts; raises ``UserError``."""
    name = f"{cluster}-kubeconfig"
    try:
        secret = await management.get(paths.core_path("secrets", name, namespace=namespace))
        endpoint = parse_kubeconfig(decode_base64(text(secret, "data", "value")))
        return ApiClient.from_endpoint(endpoint), endpoint.ca_pem
    except NotFound:
        raise AccessError(f"the Secret {namespace}/{name} is not there, so the cluster is out of reach") from None
    except ValueError as error:
        said = str(error) if isinstance(error, KubeconfigError) else "no base64"
        raise AccessError(f"the Secret {namespace}/{name}: {said}") from None
