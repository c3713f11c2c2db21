"""What ``explain`` needs of both clusters, fetched with the operator's own rights: the request and its objects.

Of Secrets at most ``<cluster>-kubeconfig`` is read, and none with a kubeconfig of the workload cluster; the cluster's
CA comes out of the kubeconfig, not of the Secret with its key. What may not be read, or is gone, is left out and named:
its checks are then "not checked". Raises ``UserError`` or ``ApiError`` where nothing can be said at all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.explain.replay import first_request_name
from nodeattest_cli.fleet import (
    ATTESTATION,
    POLICY,
    MachineRow,
    list_objects,
    named,
    of_kind,
    read_fleet,
    rows_of,
    workload_endpoint,
)
from nodeattest_controller.model.attestation import Attestation, parse_attestation
from nodeattest_controller.model.csr_request import parse_kubelet_request, parse_request
from nodeattest_controller.model.infrastructure_kinds import known_kind
from nodeattest_controller.model.kubeadm_config import is_kubeadm_config, kept_config, slim_config
from nodeattest_controller.model.machine_record import CLUSTER_KINDS, MACHINE_KINDS, machine_views
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.runtime.references import path_of_reference
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied

_CSRS: Final = ("certificates.k8s.io", "v1", "certificatesigningrequests")
_CSR: Final = "CertificateSigningRequest"
_RESOURCES: Final = (
    *("nodeattestationpolicies", "machineattestations", "machinerecords", "clusterrecords"),
    *("clusters", "machines", "machinepools"),
)
_MAX_LISTED: Final = 10
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
    left_out: list[str] = field(default_factory=list[str])
    """What could not be read, and why."""

    @property
    def attestation(self) -> Attestation | None:
        """The machine's record."""
        name = self.row.attestation if self.row is not None else ""
        record = named(of_kind(self.documents, ATTESTATION), name) if name else None
        return parse_attestation(record) if record is not None else None


def parse_target(words: str) -> Target | None:
    """Read ``machine/NAME``, ``node/NAME`` or ``csr/NAME``; None for anything else, such as a file."""
    kind, slash, name = words.partition("/")
    return Target(TargetKind(kind), name) if slash and name and kind in set(TargetKind) else None


def fetch(
    target: Target,
    connection: Connection,
    *,
    namespace: str | None,
    cluster: str | None,
    workload: Connection | None,
) -> Collected:
    """Fetch everything for a target; ``workload``: where the operator gave a kubeconfig of his own."""
    where = connection.namespace(namespace)
    return run(connection, lambda client: _Collector(client, target, where).collect(cluster, workload))


class _Collector:
    """Fetches a target's objects into ``found``."""

    def __init__(self, management: ApiClient, target: Target, namespace: str) -> None:
        self._management = management
        self._target = target
        self._namespace = namespace
        self.found = Collected()

    async def collect(self, cluster: str | None, workload: Connection | None) -> Collected:
        """Fetch the fleet, the workload cluster's request and Node, and what the machine refers to."""
        found, target = self.found, self._target
        documents = await read_fleet(self._management, self._namespace, *_RESOURCES, cluster=cluster)
        rows = [one for one in rows_of(documents, datetime.now(UTC)) if cluster in {None, one.cluster}]
        if target.kind is TargetKind.CSR:
            where = cluster or _only_cluster(documents, rows)
        else:
            found.row = _only_row(rows, target, self._namespace)
            where = found.row.cluster
        found.documents = [one for one in documents if _is_of(one, where)]
        try:
            if workload is not None:
                endpoint, client = None, workload.client()
            else:
                endpoint = await workload_endpoint(self._management, self._namespace, where)
                client = ApiClient.from_endpoint(endpoint)
            async with client:
                await self._read_workload(client)
        except (ApiError, UserError) as error:
            if target.kind is TargetKind.CSR:
                raise
            found.left_out.append(f"the workload cluster {where}: {error}")
        else:
            found.documents += [_ca_of(endpoint, where)] if endpoint is not None and endpoint.ca_pem else []
        view = self._view() or await self._view_by_token()
        if view is not None:
            await self._read_referenced(view)
        wanted = _provider_id_of(found.csr or {})
        found.row = found.row or next((row for row in rows if wanted and row.provider_id == wanted), None)
        return found

    async def _read_workload(self, client: ApiClient) -> None:
        """Read the request, the first request that it answers, and the Node."""
        found, target = self.found, self._target
        if target.kind is TargetKind.CSR:
            found.csr = await self._get(client, paths.object_path(*_CSRS, target.name), _CSR)
            if found.csr is None:
                raise StateError(
                    f"{client.server} has no {_CSR} {target.name}; decided ones are deleted after an hour: what its "
                    "machine's record says shows nodeattest explain machine/NAME"
                )
        elif found.row is not None and found.row.provider_id:
            everything = [one async for one in list_objects(client, paths.collection_path(*_CSRS))]
            found.csr, *others = newest(everything, found.row.provider_id) or [None]
            for name in (text(one, "metadata", "name") for one in others if one is not None):
                found.left_out.append(
                    f"{_CSR} {name}: filed in the same second; nodeattest explain csr/{name} shows it"
                )
        if found.csr is None:
            return
        first, node = first_request_name(found.csr), _node_of(found.csr)
        reads = [(paths.object_path(*_CSRS, first), _CSR)] if first else []
        reads += [(paths.core_path("nodes", node), "Node")] if node else []
        for path, kind in reads:
            document = await self._get(client, path, kind)
            found.documents += [document] if document is not None else []

    async def _get(self, client: ApiClient, path: str, kind: str) -> JsonObject | None:
        try:
            return {"kind": kind, **await client.get(path)}
        except NotFound:
            return None
        except Forbidden as error:
            self.found.left_out.append(f"{kind} {path.rpartition('/')[2]}: {error}")
            return None

    def _view(self) -> MachineView | None:
        """Return the machine with what it refers to."""
        found = self.found
        wanted = found.row.provider_id if found.row is not None else _provider_id_of(found.csr or {})
        views = (view for one in of_kind(found.documents, *MACHINE_KINDS) for view in machine_views(one))
        return next((view for view in views if wanted and view.provider_id == wanted), None)

    async def _view_by_token(self) -> MachineView | None:
        """Return the machine without a provider ID whose KubeadmConfig names the requester's token."""
        token_id = text(self.found.csr or {}, "spec", "username").removeprefix(USER_PREFIX)
        views = [view for one in of_kind(self.found.documents, "Machine") for view in machine_views(one)]
        for view in views:
            if not view.provider_id and is_kubeadm_config(view):
                config = await self._read(view.bootstrap, view.namespace)
                if config is not None and token_id in (kept_config(slim_config(config)).ids or ()):
                    return view
        return None

    async def _read_referenced(self, view: MachineView) -> None:
        """Read infrastructure object, bootstrap configuration, and the host object that the infrastructure names."""
        for reference in (view.infra, view.pool_infra, view.bootstrap):
            document = await self._read(reference, view.namespace)
            self.found.documents += [document] if document is not None else []
            host = known_kind(view.infra).host if reference is not None and reference == view.infra else None
            key = host.key({"infra": document}, view.namespace) if host is not None and document is not None else None
            if key is not None:
                owner = await self._read(ContractReference(key.group, key.kind, key.name), key.namespace)
                self.found.documents += [owner] if owner is not None else []

    async def _read(self, reference: ContractReference | None, namespace: str) -> JsonObject | None:
        """Read an object that is referred to; one that is not there, or may not be read, is left out."""
        if reference is None:
            return None
        try:
            path = await path_of_reference(self._management, reference, namespace)
            return {"kind": reference.kind, **await self._management.get(path)}
        except (NotFound, Forbidden) as error:
            self.found.left_out.append(f"{reference.kind} {reference.name}: {error}")
            return None


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
        listed = ", ".join(row.provider_id for row in found[:_MAX_LISTED])
        raise UserError(f"{target} is one of {len(found)} machines; name it by its provider ID: {listed}")
    return found[0]


def _only_cluster(documents: Sequence[JsonObject], rows: Sequence[MachineRow]) -> str:
    """Return in which cluster a request is; raises ``UserError``."""
    clusters = {text(one, "metadata", "name") for one in of_kind(documents, *CLUSTER_KINDS)}
    known = sorted(clusters | {row.cluster for row in rows})
    if len(known) != 1:
        raise UserError(f"say --cluster: the namespace has {', '.join(known[:_MAX_LISTED]) or 'no cluster'}")
    return known[0]


def _is_of(document: JsonObject, cluster: str) -> bool:
    """Return whether an object belongs to a cluster, or to all."""
    kind = text(document, "kind")
    if kind in CLUSTER_KINDS:
        return text(document, "metadata", "name") == cluster
    return kind == POLICY or text(document, "spec", "clusterName") in {"", cluster}


def newest(requests: Iterable[JsonObject], provider_id: str) -> list[JsonObject]:
    """Return a machine's newest request: of one second, the answer to the others; several, by name, where none tells.

    A server keeps seconds only, and its resourceVersion is of the last write.
    """

    def age(request: JsonObject) -> tuple[str, bool]:
        return text(request, "metadata", "creationTimestamp"), first_request_name(request) is not None

    own = [request for request in requests if _provider_id_of(request) == provider_id]
    last = max(map(age, own), default=None)
    return sorted((request for request in own if age(request) == last), key=lambda one: text(one, "metadata", "name"))


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


def _ca_of(endpoint: ApiEndpoint, cluster: str) -> JsonObject:
    """Return the CA of a kubeconfig as the Secret would hold it, without its key."""
    data = base64.b64encode((endpoint.ca_pem or "").encode()).decode()
    return {"kind": "Secret", "metadata": {"name": f"{cluster}-ca"}, "data": {"tls.crt": data}}
