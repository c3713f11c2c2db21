"""What ``explain`` needs of both clusters, fetched with the operator's own rights: the request and its objects.

Promises: of Secrets at most ``<cluster>-kubeconfig`` is read, and none with a kubeconfig of the workload cluster; the
cluster's CA comes out of the kubeconfig, not of the Secret with its key. What may not be read, or is gone, is left out
and named: its checks are then "not checked". Raises ``UserError`` or ``ApiError`` where nothing can be said at all.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.explain.replay import first_request_name
from nodeattest_cli.machines.rejoin import workload_endpoint
from nodeattest_cli.machines.row import MachineRow, rows_of
from nodeattest_cli.management import CLUSTER_API, OWN, cluster_api_version, list_objects, no_cluster
from nodeattest_controller.model.attestation import Attestation, parse_attestation
from nodeattest_controller.model.csr_request import parse_request
from nodeattest_controller.model.infrastructure_kinds import known_kind
from nodeattest_controller.model.kubeadm_config import kept_config, slim_config
from nodeattest_controller.model.kubelet_csr import parse_kubelet_request
from nodeattest_controller.model.machine_kinds import MACHINE_KINDS, machine_views
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.objects import text
from nodeattest_controller.model.token_binding import is_kubeadm_config
from nodeattest_controller.runtime.restmapper import path_of_reference
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_providers.errors import Denied

__all__ = ["Collected", "Target", "TargetKind", "collect", "newest", "parse_target"]

_CSRS: Final = ("certificates.k8s.io", "v1", "certificatesigningrequests")
_CSR: Final = "CertificateSigningRequest"
_OWN: Final = ("nodeattestationpolicies", "machineattestations", "machinerecords", "clusterrecords")
_CLUSTER_API: Final = ("clusters", "machines", "machinepools")
_SHOWN: Final = 10
"""Names that an error lists."""


class TargetKind(StrEnum):
    """What an operator may name."""

    MACHINE = "machine"
    NODE = "node"
    CSR = "csr"


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be explained."""

    kind: TargetKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(slots=True, kw_only=True)
class Collected:
    """What was found."""

    csr: JsonObject | None = None
    """The request; None where the workload cluster has none of the machine any more, or could not be asked."""
    row: MachineRow | None = None
    """The machine as ``machines list`` shows it; None where no machine has the request's provider ID."""
    documents: list[JsonObject] = field(default_factory=list[JsonObject])
    attestation: Attestation | None = None
    """The machine's record."""
    left_out: list[str] = field(default_factory=list[str])
    """What could not be read, and why."""

    def named(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind, in order."""
        return sorted(text(one, "metadata", "name") for one in self.documents if text(one, "kind") == kind)


def parse_target(words: str) -> Target | None:
    """Read ``machine/NAME``, ``node/NAME`` or ``csr/NAME``; None for anything else, such as a file."""
    kind, slash, name = words.partition("/")
    return Target(TargetKind(kind), name) if slash and name and kind in set(TargetKind) else None


async def collect(
    management: ApiClient,
    target: Target,
    *,
    namespace: str,
    cluster: str | None,
    workload: Callable[[], ApiClient] | None,
    now: datetime,
) -> Collected:
    """Fetch everything for a target; ``workload`` makes a client where the operator gave a kubeconfig of his own."""
    found = Collected()
    await _read_collections(management, namespace, found)
    rows = [one for one in _rows(found.documents, now) if cluster in {None, one.cluster}]
    if cluster is not None and not rows and cluster not in {*found.named("Cluster"), *found.named("ClusterRecord")}:
        raise no_cluster(cluster, namespace)
    if target.kind is TargetKind.CSR:
        where = _only_cluster(found, rows, cluster)
    else:
        found.row = _only_row(rows, target, namespace)
        where = found.row.cluster
    found.documents[:] = [one for one in found.documents if _is_of(one, where)]
    try:
        if workload is not None:
            client, endpoint = workload(), None
        else:
            endpoint = await workload_endpoint(management, namespace, where)
            client = ApiClient.from_endpoint(endpoint, trust_env=True)
        async with client:
            await _read_workload(client, target, found)
    except (ApiError, UserError) as error:
        if target.kind is TargetKind.CSR:
            raise
        found.left_out.append(f"the workload cluster {where}: {error}")
    else:
        found.documents += [_ca_of(endpoint, where)] if endpoint is not None and endpoint.ca_pem else []
    view = _view(found) or await _view_by_token(management, found)
    await _read_referenced(management, view, found)
    await _read_host(management, view, found)
    found.row = found.row or _row_of_request(found.csr, rows)
    found.attestation = _attestation_of(found)
    return found


def _attestation_of(found: Collected) -> Attestation | None:
    name = found.row.attestation if found.row is not None else ""
    records = (one for one in found.documents if text(one, "kind") == "MachineAttestation")
    record = next((one for one in records if name and text(one, "metadata", "name") == name), None)
    return parse_attestation(record) if record is not None else None


async def _read_collections(client: ApiClient, namespace: str, found: Collected) -> None:
    """Read the collections of a namespace; those that the server does not have are none."""
    version = await cluster_api_version(client)
    wanted = [paths.collection_path(*OWN, resource, namespace=namespace) for resource in _OWN]
    if version:
        wanted += [paths.collection_path(CLUSTER_API, version, one, namespace=namespace) for one in _CLUSTER_API]
    for path in wanted:
        try:
            found.documents += [one async for one in list_objects(client, path)]
        except NotFound:
            continue


def _rows(documents: Sequence[JsonObject], now: datetime) -> list[MachineRow]:
    machines = [one for one in documents if text(one, "kind") in MACHINE_KINDS]
    return list(rows_of(machines, [one for one in documents if text(one, "kind") == "MachineAttestation"], now))


def _only_row(rows: Sequence[MachineRow], target: Target, namespace: str) -> MachineRow:
    """Find the one machine of a name; raises ``UserError``."""
    by_node = target.kind is TargetKind.NODE
    found = [row for row in rows if target.name in ({row.node, row.machine} if by_node else row.names)]
    found = [row for row in found if row.node == target.name] or found
    if not found:
        raise StateError(
            f"no {target.kind} {target.name} in namespace {namespace}; nodeattest machines list -A has all"
        )
    if len(found) > 1:
        listed = ", ".join(row.provider_id for row in found[:_SHOWN])
        raise UserError(f"{target} is one of {len(found)} machines; name it by its provider ID: {listed}")
    return found[0]


def _only_cluster(found: Collected, rows: Sequence[MachineRow], cluster: str | None) -> str:
    """Tell in which cluster a request is; raises ``UserError``."""
    if cluster is not None:
        return cluster
    known = sorted({*found.named("Cluster"), *found.named("ClusterRecord"), *(row.cluster for row in rows)})
    if len(known) != 1:
        raise UserError(f"say --cluster: the namespace has {', '.join(known[:_SHOWN]) or 'no cluster'}")
    return known[0]


def _is_of(document: JsonObject, cluster: str) -> bool:
    """Tell what belongs to a cluster, or to all."""
    match text(document, "kind"):
        case "Cluster" | "ClusterRecord":
            return text(document, "metadata", "name") == cluster
        case "NodeAttestationPolicy":
            return True
        case _:
            return text(document, "spec", "clusterName") in {"", cluster}


async def _read_workload(client: ApiClient, target: Target, found: Collected) -> None:
    """Read the request, the first request that it answers, and the Node."""
    if target.kind is TargetKind.CSR:
        found.csr = await _get(client, paths.object_path(*_CSRS, target.name), found)
        if found.csr is None:
            raise StateError(
                f"{client.server} has no {_CSR} {target.name}; decided ones are deleted after an hour: what its "
                "machine's record says shows nodeattest explain machine/NAME"
            )
    elif found.row is not None and found.row.provider_id:
        everything = [one async for one in list_objects(client, paths.collection_path(*_CSRS))]
        found.csr, *others = newest(everything, found.row.provider_id) or [None]
        for name in (text(one, "metadata", "name") for one in others if one is not None):
            found.left_out.append(f"{_CSR} {name}: filed in the same second; nodeattest explain csr/{name} shows it")
    if found.csr is None:
        return
    first = first_request_name(found.csr)
    names = [paths.object_path(*_CSRS, first)] if first else []
    node = _node_of(found.csr)
    names += [paths.core_path("nodes", node)] if node else []
    for path in names:
        document = await _get(client, path, found)
        found.documents += [document] if document is not None else []


def newest(requests: Iterable[JsonObject], provider_id: str) -> list[JsonObject]:
    """Return a machine's newest request: of one second, the answer to the others; several, by name, where none tells.

    A server keeps seconds only, and its resourceVersion is of the last write.
    """

    def age(one: JsonObject) -> tuple[str, bool]:
        return text(one, "metadata", "creationTimestamp"), first_request_name(one) is not None

    own = [one for one in requests if _provider_id_of(one) == provider_id]
    last = max(map(age, own), default=None)
    return sorted((one for one in own if age(one) == last), key=lambda one: text(one, "metadata", "name"))


def _provider_id_of(csr: JsonObject) -> str:
    try:
        return parse_request(csr).csr.provider_id
    except Denied:
        return ""


def _node_of(csr: JsonObject) -> str:
    """Return which node asks; empty where that cannot be read."""
    try:
        return parse_request(csr).csr.node_name
    except Denied:
        pass
    try:
        return parse_kubelet_request(csr).node_name
    except Denied:
        return ""


def _view(found: Collected) -> MachineView | None:
    """Return the machine with what it refers to."""
    wanted = found.row.provider_id if found.row is not None else _provider_id_of(found.csr or {})
    kinds = (one for one in found.documents if text(one, "kind") in MACHINE_KINDS)
    return next((view for one in kinds for view in machine_views(one) if wanted and view.provider_id == wanted), None)


async def _view_by_token(client: ApiClient, found: Collected) -> MachineView | None:
    """Return the machine without a provider ID whose KubeadmConfig names the requester's token."""
    token_id = text(found.csr or {}, "spec", "username").removeprefix(USER_PREFIX)
    machines = (view for one in found.documents if text(one, "kind") == "Machine" for view in machine_views(one))
    for view in [machine for machine in machines if not machine.provider_id and is_kubeadm_config(machine)]:
        config: list[JsonObject] = []
        await _read(client, view.bootstrap, view.namespace, config, found)
        if any(token_id in (kept_config(slim_config(one)).ids or ()) for one in config):
            return view
    return None


async def _read_host(client: ApiClient, view: MachineView | None, found: Collected) -> None:
    """Read the host object that the infrastructure machine names."""
    host = known_kind(view.infra).host if view is not None else None
    if host is None or view is None or view.infra is None:
        return
    infra = next((one for one in found.documents if text(one, "kind") == view.infra.kind), None)
    key = host.key({"infra": infra}, view.namespace) if infra is not None else None
    if key is not None:
        await _read(client, ContractReference(key.group, key.kind, key.name), key.namespace, found.documents, found)


def _row_of_request(csr: JsonObject | None, rows: Sequence[MachineRow]) -> MachineRow | None:
    wanted = _provider_id_of(csr or {})
    return next((row for row in rows if wanted and row.provider_id == wanted), None)


async def _read_referenced(client: ApiClient, view: MachineView | None, found: Collected) -> None:
    """Read the infrastructure object of a machine or of its pool, and its bootstrap configuration."""
    for reference in (view.infra, view.pool_infra, view.bootstrap) if view is not None else ():
        if view is not None:
            await _read(client, reference, view.namespace, found.documents, found)


async def _read(
    client: ApiClient,
    reference: ContractReference | None,
    namespace: str,
    into: list[JsonObject],
    found: Collected,
) -> None:
    """Read an object that is referred to; one that is not there, or may not be read, is left out."""
    if reference is None:
        return
    try:
        path = await path_of_reference(client, reference, namespace)
        into.append({"kind": reference.kind, **await client.get(path)})
    except (NotFound, Forbidden) as error:
        found.left_out.append(f"{reference.kind} {reference.name}: {error}")


async def _get(client: ApiClient, path: str, found: Collected) -> JsonObject | None:
    kind = _CSR if "/certificatesigningrequests/" in path else "Node"
    try:
        return {"kind": kind, **await client.get(path)}
    except NotFound:
        return None
    except Forbidden as error:
        found.left_out.append(f"{kind} {path.rpartition('/')[2]}: {error}")
        return None


def _ca_of(endpoint: ApiEndpoint, cluster: str) -> JsonObject:
    """Return the CA of a kubeconfig as the Secret would hold it, without its key."""
    data = base64.b64encode((endpoint.ca_pem or "").encode()).decode()
    return {"kind": "Secret", "metadata": {"name": f"{cluster}-ca"}, "data": {"tls.crt": data}}
