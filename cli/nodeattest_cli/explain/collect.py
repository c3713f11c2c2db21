"""What ``explain`` needs of both clusters, read with the operator's own rights: the request and its objects.

Of Secrets at most ``<cluster>-kubeconfig`` is read, and none with a kubeconfig of the workload cluster; the cluster's
CA comes out of the kubeconfig, not of the Secret with its key. What may not be read, or is gone, is named, and its
checks are "not checked". Raises ``UserError`` or ``ApiError`` where nothing can be said at all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from nodeattest_cli.connection import Connection, run
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
    workload_access,
)
from nodeattest_cli.output import StateError, UserError, listed
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_controller.model.csr_request import parse_kubelet_request, parse_request
from nodeattest_controller.model.infrastructure_kinds import known_kind
from nodeattest_controller.model.kubeadm_config import is_kubeadm_config, read_config
from nodeattest_controller.model.machine_view import (
    CLUSTER_KINDS,
    MACHINE_KINDS,
    ContractReference,
    MachineView,
    machine_views,
)
from nodeattest_controller.runtime.references import path_of_reference
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied

CSR: Final = "CertificateSigningRequest"
_CSRS: Final = ("certificates.k8s.io", "v1", "certificatesigningrequests")
_RESOURCES: Final = (
    *("nodeattestationpolicies", "machineattestations", "machinerecords", "clusterrecords"),
    *("clusters", "machines", "machinepools"),
)


class Target(NamedTuple):
    """What is to be explained."""

    kind: str
    """``machine``, ``node`` or ``csr``."""
    name: str


@dataclass(slots=True, kw_only=True)
class Collected:
    """What was found."""

    csr: JsonObject | None = None
    """The request; None where the workload cluster has none of the machine any more, or could not be read."""
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
    kind, _, name = words.partition("/")
    return Target(kind, name) if name and kind in {"machine", "node", "csr"} else None


def fetch(
    target: Target, connection: Connection, *, namespace: str | None, cluster: str | None, workload: Connection | None
) -> Collected:
    """Read everything for a target; ``workload``: the kubeconfig that the operator gave for the workload cluster."""
    where = connection.namespace(namespace)
    return run(connection, lambda client: _Collector(client, target, where).collect(cluster, workload))


class _Collector:
    """Reads a target's objects into ``found``."""

    def __init__(self, management: ApiClient, target: Target, namespace: str) -> None:
        self._management = management
        self._target = target
        self._namespace = namespace
        self.found = Collected()

    async def collect(self, cluster: str | None, workload: Connection | None) -> Collected:
        """Read the fleet, the workload cluster's request and Node, and what the machine refers to."""
        found, target = self.found, self._target
        documents = await read_fleet(self._management, self._namespace, *_RESOURCES, cluster=cluster)
        rows = [one for one in rows_of(documents, datetime.now(UTC)) if cluster in {None, one.cluster}]
        found.row = _only_row(rows, target, self._namespace) if target.kind != "csr" else None
        where = found.row.cluster if found.row is not None else cluster or _only_cluster(documents, rows)
        found.documents = [one for one in documents if _is_of(one, where)]
        try:
            if workload is not None:
                await self._read_workload(workload.client())
            else:
                client, ca_pem = await workload_access(self._management, self._namespace, where)
                await self._read_workload(client)
                found.documents += [_authority(ca_pem, where)] if ca_pem else []
        except (ApiError, UserError) as error:
            if target.kind == "csr":
                raise
            found.left_out.append(f"the workload cluster {where}: {error}")
        wanted = found.row.provider_id if found.row is not None else _provider_id_of(found.csr)
        view = self._view_of(wanted) or await self._view_by_token()
        if view is not None:
            await self._read_referenced(view)
        found.row = found.row or next((row for row in rows if wanted and row.provider_id == wanted), None)
        return found

    async def _read_workload(self, client: ApiClient) -> None:
        """Read the request, the first request that it answers, and the Node."""
        found, target = self.found, self._target
        async with client:
            if target.kind == "csr":
                found.csr = await self._get(client, paths.object_path(*_CSRS, target.name), CSR)
                if found.csr is None:
                    raise StateError(
                        f"{client.server} has no {CSR} {target.name}; decided ones are deleted after an hour: what the "
                        "machine's record says shows nodeattest explain machine/NAME"
                    )
            elif found.row is not None and found.row.provider_id:
                everything = [one async for one in list_objects(client, paths.collection_path(*_CSRS))]
                found.csr = newest(everything, found.row.provider_id)
            if found.csr is None:
                return
            first, node = first_request_name(found.csr), _node_of(found.csr)
            reads = [(paths.object_path(*_CSRS, first), CSR)] if first else []
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

    def _view_of(self, provider_id: str) -> MachineView | None:
        """Return the machine with what it refers to."""
        views = (view for one in of_kind(self.found.documents, *MACHINE_KINDS) for view in machine_views(one))
        return next((view for view in views if provider_id and view.provider_id == provider_id), None)

    async def _view_by_token(self) -> MachineView | None:
        """Return the machine without a provider ID whose KubeadmConfig names the requester's token."""
        token_id = text(self.found.csr or {}, "spec", "username").removeprefix(USER_PREFIX)
        views = [view for one in of_kind(self.found.documents, "Machine") for view in machine_views(one)]
        for view in views:
            if not view.provider_id and is_kubeadm_config(view):
                config = await self._read(view.bootstrap, view.namespace)
                if config is not None and token_id in read_config(config).ids:
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
        """Read an object that is referred to; one that does not exist, or may not be read, is left out."""
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
    by_node = target.kind == "node"
    found = [row for row in rows if target.name in ({row.node, row.machine} if by_node else row.names)]
    found = [row for row in found if row.node == target.name] or found
    if not found:
        raise StateError(
            f"no {target.kind} {target.name} in namespace {namespace}; nodeattest machines list -A has all"
        )
    if len(found) > 1:
        names = listed(row.provider_id for row in found)
        raise UserError(f"{target.name} is one of {len(found)} machines; name it by its provider ID: {names}")
    return found[0]


def _only_cluster(documents: Sequence[JsonObject], rows: Sequence[MachineRow]) -> str:
    """Return in which cluster a request is; raises ``UserError``."""
    clusters = {text(one, "metadata", "name") for one in of_kind(documents, *CLUSTER_KINDS)}
    known = sorted(clusters | {row.cluster for row in rows})
    if len(known) != 1:
        raise UserError(f"set --cluster: the namespace has {listed(known) or 'no cluster'}")
    return known[0]


def _is_of(document: JsonObject, cluster: str) -> bool:
    """Return whether an object belongs to a cluster, or to all."""
    kind = text(document, "kind")
    if kind in CLUSTER_KINDS:
        return text(document, "metadata", "name") == cluster
    return kind == POLICY or text(document, "spec", "clusterName") in {"", cluster}


def newest(requests: Iterable[JsonObject], provider_id: str) -> JsonObject | None:
    """Return a machine's newest request; of one second, for which servers keep no order, the answer to the others."""

    def age(request: JsonObject) -> tuple[str, bool, str]:
        created, name = (text(request, "metadata", field) for field in ("creationTimestamp", "name"))
        return created, first_request_name(request) is not None, name

    return max((request for request in requests if _provider_id_of(request) == provider_id), key=age, default=None)


def _provider_id_of(csr: JsonObject | None) -> str:
    try:
        return parse_request(csr or {}).csr.provider_id
    except Denied:
        return ""


def _node_of(csr: JsonObject) -> str:
    """Return which node asks; empty where that cannot be read."""
    for read in (lambda: parse_request(csr).csr.node_name, lambda: parse_kubelet_request(csr).node_name):
        try:
            return read()
        except Denied:
            continue
    return ""


def _authority(ca_pem: str, cluster: str) -> JsonObject:
    """Return the CA of a kubeconfig as its Secret would hold it, without its key."""
    data = base64.b64encode(ca_pem.encode()).decode()
    return {"kind": "Secret", "metadata": {"name": f"{cluster}-ca"}, "data": {"tls.crt": data}}
