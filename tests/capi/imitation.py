"""Cluster API's managers, imitated: what node registration sees of them, in the order in which the real ones write it.

Imitated: core (Cluster, Machine, MachineSet, MachineDeployment, MachinePool with Machines, MachineHealthCheck), kubeadm
bootstrap and kubeadm control plane (one replica), ``clusterctl move``, topologies (topology.py). Not imitated: drain,
hooks, availability by a Node's Ready.
Source: cluster-api v1.13 internal/controllers, bootstrap/kubeadm, controlplane/kubeadm, cmd/clusterctl/client/cluster.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import yaml
from cryptography import x509
from kinds import (
    CLUSTER,
    CLUSTER_CLASS,
    CLUSTER_LABEL,
    CONFIG,
    CONFIG_TEMPLATE,
    CONTROL_PLANE,
    CONTROL_PLANE_TEMPLATE,
    DEPLOYMENT,
    HEALTH_CHECK,
    KINDS,
    MACHINE,
    MACHINE_SET,
    POOL,
    PROCESS_MACHINE,
    PROCESS_TEMPLATE,
    SECRET,
    Kind,
    Object,
    condition,
    controller_of,
    has_condition,
    made,
    name_of,
    owner,
    owner_of,
    secret,
)
from kubernetes_assets import extra_arguments, kubeadm_api
from manager import Access, Manager, Reconcile
from topology import apply_topology

from nodeattest_discovery.pins import pin_of
from nodeattest_kube.client import ApiClient, ApiError, NotFound
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_definitions
from nodeattest_sandbox.kubernetes_binaries import version

__all__ = ["Imitation"]

_TOKEN_LIFE: Final = timedelta(minutes=15)
_WAIT: Final = 0.5
"""Seconds until a workload cluster is asked again; the real managers watch it."""
_CONTROL_PLANE_LABEL: Final = "cluster.x-k8s.io/control-plane"
_POOL_LABEL: Final = "cluster.x-k8s.io/pool-name"
_FINALIZER: Final = "machine.cluster.x-k8s.io"
_SUCCESS: Final = "echo success > /run/cluster-api/bootstrap-success.complete"
_OWN_GROUPS: Final = frozenset({CLUSTER.group, CONFIG.group, CONTROL_PLANE.group})
"""Whose definitions clusterctl labels when it installs them."""
_UNTYPED: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class Imitation:
    """Implements ``managers.Managers``."""

    def __init__(self, definitions: Path, assets: Path) -> None:
        self._definitions, self._assets = definitions, assets

    def versions(self) -> dict[str, str]:
        return {"imitation of Cluster API": "v1.13", "kubeadm": version(self._assets / "kubeadm")}

    def install(self, plane: ControlPlane) -> None:
        """Install Cluster API's definitions, and untyped ones in place of those that are not at hand."""
        install_definitions(plane.client(), self._definitions)
        untyped = [_definition(kind) for kind in (HEALTH_CHECK, CLUSTER_CLASS, CONTROL_PLANE_TEMPLATE)]
        install_definitions(plane.client(), [cast("Any", one) for one in untyped])

    @contextmanager
    def running(self, plane: ControlPlane, namespace: str) -> Generator[None]:
        """Run the managers for the length of the block."""
        client = plane.client()

        async def cluster(access: Access, value: Object) -> float | None:
            return await _cluster(access, await _with_topology(access, client, value))

        reconcilers: dict[Kind, Reconcile] = {
            CLUSTER: cluster,
            CONTROL_PLANE: self._control_plane,
            CONFIG: self._config,
            MACHINE: _machine,
            MACHINE_SET: _machine_set,
            DEPLOYMENT: _deployment,
            POOL: _pool,
            HEALTH_CHECK: _health_check,
        }
        with Manager(plane.admin_kubeconfig, namespace, reconcilers):
            yield

    def move(self, source: ControlPlane, target: ControlPlane, namespace: str) -> None:
        """Move all clusters of the namespace as ``clusterctl move`` does: owners first, and no status."""
        _move(source, target, namespace)

    async def _control_plane(self, access: Access, value: Object) -> float | None:
        """Create the first machine, and call the control plane initialized when kubeadm uploaded its ConfigMap."""
        cluster = await access.get(CLUSTER, value["metadata"]["labels"][CLUSTER_LABEL])
        if cluster is None or not _initialization(cluster).get("infrastructureProvisioned"):
            return None
        if not owner_of(value, CLUSTER):
            return None
        name, spec = name_of(cluster), value["spec"]
        labels = {_CONTROL_PLANE_LABEL: "", "cluster.x-k8s.io/control-plane-name": name_of(value)}
        found = await access.list(MACHINE, **{CLUSTER_LABEL: name, _CONTROL_PLANE_LABEL: ""})
        if not found:
            suffix = f"{name_of(value)}-{secrets.token_hex(3)}"
            reference = spec["machineTemplate"]["spec"]["infrastructureRef"]
            await _clone_infrastructure(access, reference["name"], suffix, name, value)
            config = dict(spec["kubeadmConfigSpec"])
            metadata = {"labels": labels, "ownerReferences": [owner(value, controller=False)]}
            await access.create(made(CONFIG, suffix, name, config, **metadata))
            machine = _machine_of(suffix, name, spec["version"], suffix)
            await access.create(made(MACHINE, suffix, name, machine, labels=labels, ownerReferences=[owner(value)]))
        if not _initialization(value).get("controlPlaneInitialized"):
            async with await _workload(access, name) as there:
                try:
                    await there.get("/api/v1/namespaces/kube-system/configmaps/kubeadm-config")
                except NotFound:
                    return _WAIT
            await access.status(value, initialization={"controlPlaneInitialized": True})
        return None

    async def _config(self, access: Access, value: Object) -> float | None:
        """Make bootstrap data: the Secret first, the token into the configuration after it, the status last."""
        cluster = await access.get(CLUSTER, value["metadata"]["labels"][CLUSTER_LABEL])
        owning = await _owner_of_config(access, value)
        if owning is None or cluster is None or not _initialization(cluster).get("infrastructureProvisioned"):
            return None
        bootstrap = _template_of(owning)["spec"].get("bootstrap", {})
        if bootstrap.get("dataSecretName") and not value.get("status", {}).get("dataSecretName"):
            # What a move dropped.
            status = {"dataSecretName": bootstrap["dataSecretName"], "initialization": {"dataSecretCreated": True}}
            await access.status(value, **status)
            return None
        if _initialization(value).get("dataSecretCreated"):
            return await _refresh_token(access, value, owning)
        is_control_plane = _CONTROL_PLANE_LABEL in owning["metadata"]["labels"]
        if not has_condition(cluster, "ControlPlaneInitialized"):
            if not is_control_plane:
                return None
            spec, data = value["spec"], await _init_data(access, cluster, value, self._assets)
        else:
            spec, data = await self._join(access, cluster, value)
        references = [owner(value)]
        kept = secret(name_of(value), name_of(cluster), {"value": data, "format": b"cloud-config"})
        kept["metadata"]["ownerReferences"] = references
        await access.create(kept)
        value = await access.patch(value, spec=spec)
        await access.status(value, dataSecretName=name_of(value), initialization={"dataSecretCreated": True})
        return None

    async def _join(self, access: Access, cluster: Object, value: Object) -> tuple[Object, bytes]:
        """Make a token; returns what is to be written into the configuration, and user data."""
        name = name_of(cluster)
        token = f"{secrets.token_hex(3)}.{secrets.token_hex(8)}"
        async with await _workload(access, name) as there:
            await there.create("/api/v1/namespaces/kube-system/secrets", _token_secret(token))
        authority = cast("Object", await access.get(SECRET, f"{name}-ca"))
        certificate = x509.load_pem_x509_certificate(base64.b64decode(authority["data"]["tls.crt"]))
        endpoint = cluster["spec"]["controlPlaneEndpoint"]
        found = {
            "token": token,
            "apiServerEndpoint": f"{endpoint['host']}:{endpoint['port']}",
            "caCertHashes": [str(pin_of(certificate))],
        }
        join = {**value["spec"].get("joinConfiguration", {}), "discovery": {"bootstrapToken": found}}
        patches = () if kubeadm_api(self._assets).endswith("v1beta2") else ("patches",)
        document = _kubeadm("JoinConfiguration", self._assets, join, ("discovery", "nodeRegistration", *patches))
        path = "/run/kubeadm/kubeadm-join-config.yaml"
        return {"joinConfiguration": join}, _cloud_config(
            value["spec"], path, [document], f"kubeadm join --config {path}", []
        )


# Core


def _definition(kind: Kind) -> Object:
    served = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": _UNTYPED}}
    names = {"kind": kind.kind, "plural": kind.plural}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {"group": kind.group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


async def _with_topology(access: Access, client: Client, value: Object) -> Object:
    return await apply_topology(access, client, value) if "topology" in value["spec"] else value


async def _cluster(access: Access, value: Object) -> float | None:
    """Own what the Cluster refers to, and tell from these objects how far it is."""
    references = [value["spec"]["infrastructureRef"], value["spec"].get("controlPlaneRef")]
    infrastructure, control_plane = [
        await _adopt(access, KINDS[each["kind"]], each["name"], value) if each else None for each in references
    ]
    if infrastructure is None or not _initialization(infrastructure).get("provisioned"):
        return None
    endpoint = infrastructure["spec"]["controlPlaneEndpoint"]
    value = await access.patch(value, spec={"controlPlaneEndpoint": endpoint})
    value = await access.status(value, initialization={"infrastructureProvisioned": True}, phase="Provisioned")
    if control_plane is not None and _initialization(control_plane).get("controlPlaneInitialized"):
        value = await access.status(value, initialization={"controlPlaneInitialized": True})
        await access.condition(value, "ControlPlaneInitialized", "True", "Initialized")
    return None


async def _adopt(access: Access, kind: Kind, name: str, owning: Object) -> Object | None:
    """Make ``owning`` the owner of an object, in place of others; the object gets the cluster's label.

    A Cluster is the controller of what its topology made only (cluster_controller_phases.go, ensureOwnerRefAndLabel).
    """
    found = await access.get(kind, name)
    if found is None:
        return None
    is_cluster = owning["kind"] == CLUSTER.kind
    cluster = name_of(owning) if is_cluster else owning["metadata"]["labels"][CLUSTER_LABEL]
    reference = owner(owning, controller=not is_cluster or "topology" in owning["spec"])
    return await access.patch(found, metadata={"ownerReferences": [reference], "labels": {CLUSTER_LABEL: cluster}})


async def _machine(access: Access, value: Object) -> float | None:
    """Take the phases bootstrap, infrastructure and node in their order (machine_controller_phases.go)."""
    spec = value["spec"]
    if "deletionTimestamp" in value["metadata"]:
        return await _delete_machine(access, value)
    value = await access.patch(value, metadata={"finalizers": [_FINALIZER]})
    reference = spec["bootstrap"].get("configRef")
    config = await _adopt(access, CONFIG, reference["name"], value) if reference else None
    if config is not None and _initialization(config).get("dataSecretCreated"):
        value = await access.patch(value, spec={"bootstrap": {"dataSecretName": config["status"]["dataSecretName"]}})
    phase = "Pending"
    if value["spec"]["bootstrap"].get("dataSecretName"):
        value = await access.status(value, initialization={"bootstrapDataSecretCreated": True})
        value = await access.condition(value, "BootstrapConfigReady", "True", "Ready")
        phase = "Provisioning"
    infrastructure = await _adopt(access, PROCESS_MACHINE, spec["infrastructureRef"]["name"], value)
    if infrastructure is not None and _initialization(infrastructure).get("provisioned"):
        value = await access.patch(value, spec={"providerID": infrastructure["spec"]["providerID"]})
        addresses = infrastructure["status"].get("addresses", [])
        status: Object = {"addresses": addresses, "initialization": {"infrastructureProvisioned": True}}
        value = await access.status(value, **status)
        phase = "Provisioned"
        node = await _node_of(access, value)
        if node:
            value = await access.status(value, nodeRef={"name": node})
            phase = "Running"
    await access.status(value, phase=phase)
    return None if phase == "Running" else _WAIT


async def _delete_machine(access: Access, value: Object) -> float | None:
    """Delete infrastructure, configuration, Node, and then let the Machine go (reconcileDelete)."""
    await access.status(value, phase="Deleting")
    name = value["spec"]["infrastructureRef"]["name"]
    if await access.get(PROCESS_MACHINE, name) is not None:
        await access.delete(PROCESS_MACHINE, name)
        return 0.2
    reference = value["spec"]["bootstrap"].get("configRef")
    if reference:
        await access.delete(CONFIG, reference["name"])
        await access.delete(SECRET, reference["name"])  # the garbage collector's work
    node = value.get("status", {}).get("nodeRef", {}).get("name", "")
    if node:
        async with await _workload(access, value["spec"]["clusterName"]) as there:
            with suppress(NotFound):
                await there.delete(f"/api/v1/nodes/{node}")
    await access.patch(value, metadata={"finalizers": None})
    return None


async def _node_of(access: Access, machine: Object) -> str:
    async with await _workload(access, machine["spec"]["clusterName"]) as there:
        nodes = cast("Object", await there.get("/api/v1/nodes"))["items"]
    wanted = machine["spec"]["providerID"]
    return next((name_of(node) for node in nodes if node["spec"].get("providerID") == wanted), "")


async def _deployment(access: Access, value: Object) -> float | None:
    """Keep one MachineSet for the template, and take the older ones away when the new machines are there."""
    spec, cluster = value["spec"], value["spec"]["clusterName"]
    revision = json.dumps([spec["template"], spec.get("rollout", {}).get("after", "")], sort_keys=True)
    digest = hashlib.sha256(revision.encode()).hexdigest()[:6]
    current = f"{name_of(value)}-{digest}"
    uid = value["metadata"]["uid"]
    of_this = [one for one in await access.list(MACHINE_SET) if controller_of(one).get("uid") == uid]
    new = next((one for one in of_this if name_of(one) == current), None)
    if new is None:
        body = {key: spec[key] for key in ("clusterName", "template", "selector")} | {"replicas": spec["replicas"]}
        await access.create(made(MACHINE_SET, current, cluster, body, ownerReferences=[owner(value)]))
        return _WAIT
    new = await access.patch(new, spec={"replicas": spec["replicas"]})
    if len([one for one in await _machines_of(access, new) if one.get("status", {}).get("nodeRef")]) < spec["replicas"]:
        return _WAIT
    for old in of_this:
        if name_of(old) != current:
            await access.patch(old, spec={"replicas": 0})
    return None


async def _machines_of(access: Access, owning: Object) -> list[Object]:
    uid = owning["metadata"]["uid"]
    return [one for one in await access.list(MACHINE) if controller_of(one).get("uid") == uid]


async def _machine_set(access: Access, value: Object) -> float | None:
    """Create configuration, infrastructure and Machine in this order; delete what is unhealthy, marked or too much."""
    spec, cluster = value["spec"], value["spec"]["clusterName"]
    machines = await _machines_of(access, value)
    for one in machines:
        if has_condition(one, "OwnerRemediated", "False") and "deletionTimestamp" not in one["metadata"]:
            await access.delete(MACHINE, name_of(one))
            return 0.1
    if len(machines) < spec["replicas"]:
        template, name = spec["template"], f"{name_of(value)}-{secrets.token_hex(3)}"
        source = cast("Object", await access.get(CONFIG_TEMPLATE, template["spec"]["bootstrap"]["configRef"]["name"]))
        references = [owner(value, controller=False)]
        labels = template["metadata"].get("labels", {})
        body = source["spec"]["template"]["spec"]
        await access.create(made(CONFIG, name, cluster, body, labels=labels, ownerReferences=references))
        await _clone_infrastructure(access, template["spec"]["infrastructureRef"]["name"], name, cluster, value)
        machine = _machine_of(name, cluster, template["spec"]["version"], name)
        await access.create(made(MACHINE, name, cluster, machine, labels=labels, ownerReferences=[owner(value)]))
        return 0.1
    alive = [one for one in machines if "deletionTimestamp" not in one["metadata"]]
    alive.sort(key=lambda one: "cluster.x-k8s.io/delete-machine" not in one["metadata"].get("annotations", {}))
    for one in alive[: max(len(alive) - spec["replicas"], 0)]:
        await access.delete(MACHINE, name_of(one))
    return None


async def _clone_infrastructure(access: Access, template: str, name: str, cluster: str, owning: Object) -> None:
    source = cast("Object", await access.get(PROCESS_TEMPLATE, template))
    body = source["spec"]["template"].get("spec", {})
    references = [owner(owning, controller=False)]
    await access.create(made(PROCESS_MACHINE, name, cluster, body, ownerReferences=references))


def _machine_of(name: str, cluster: str, version: str, config: str) -> Object:
    return {
        "clusterName": cluster,
        "version": version,
        "bootstrap": {"configRef": {"apiGroup": CONFIG.group, "kind": CONFIG.kind, "name": config}},
        "infrastructureRef": {"apiGroup": PROCESS_MACHINE.group, "kind": PROCESS_MACHINE.kind, "name": name},
    }


async def _pool(access: Access, value: Object) -> float | None:
    """Give the pool bootstrap data, and a Machine to each machine that its infrastructure made.

    Where the first phase fails, those after it run nevertheless (machinepool_controller.go, doReconcile).
    """
    spec, cluster = value["spec"]["template"]["spec"], value["spec"]["clusterName"]
    try:
        config = await _adopt(access, CONFIG, spec["bootstrap"]["configRef"]["name"], value)
    except ApiError:
        await _adopt(access, KINDS[spec["infrastructureRef"]["kind"]], spec["infrastructureRef"]["name"], value)
        raise
    if config is not None and _initialization(config).get("dataSecretCreated"):
        data = {"bootstrap": {"dataSecretName": config["status"]["dataSecretName"]}}
        value = await access.patch(value, spec={"template": {"spec": data}})
        value = await access.status(value, initialization={"bootstrapDataSecretCreated": True})
    reference = spec["infrastructureRef"]
    infrastructure = await _adopt(access, KINDS[reference["kind"]], reference["name"], value)
    if infrastructure is None:
        return _WAIT
    value = await access.patch(value, spec={"providerIDList": infrastructure["spec"].get("providerIDList", [])})
    for one in await access.list(PROCESS_MACHINE, **{_POOL_LABEL: name_of(value)}):
        body = _machine_of(name_of(one), cluster, spec.get("version", ""), "")
        # The real one writes an empty name, which Kubernetes 1.20 built with a newer Go takes for null.
        body["bootstrap"] = {"dataSecretName": spec["bootstrap"]["configRef"]["name"]}
        labels = {_POOL_LABEL: name_of(value)}
        await access.create(made(MACHINE, name_of(one), cluster, body, labels=labels, ownerReferences=[owner(value)]))
    return _WAIT


async def _health_check(access: Access, value: Object) -> float | None:
    """Mark the selected Machines whose conditions are unhealthy; their MachineSet deletes them."""
    spec = value["spec"]
    for machine in await access.list(MACHINE, **spec["selector"]["matchLabels"]):
        for check in spec["checks"]["unhealthyMachineConditions"]:
            if condition(machine, check["type"])[0] == check["status"]:
                marked = await access.condition(machine, "HealthCheckSucceeded", "False", "UnhealthyMachine")
                await access.condition(marked, "OwnerRemediated", "False", "WaitingForRemediation")
    return _WAIT


# Kubeadm's bootstrap provider


def _initialization(value: Object) -> Object:
    return cast("Object", value.get("status", {}).get("initialization", {}))


def _template_of(owning: Object) -> Object:
    return owning["spec"]["template"] if owning["kind"] == POOL.kind else owning


async def _owner_of_config(access: Access, value: Object) -> Object | None:
    reference = controller_of(value)
    kind = KINDS.get(reference.get("kind", ""), CLUSTER)
    return await access.get(kind, reference["name"]) if kind in (MACHINE, POOL) else None


async def _workload(access: Access, cluster: str) -> ApiClient:
    found = cast("Object", await access.api.get(SECRET.path(access.namespace, f"{cluster}-kubeconfig")))
    return ApiClient.from_kubeconfig(base64.b64decode(found["data"]["value"]), request_timeout=30)


async def _refresh_token(access: Access, value: Object, owning: Object) -> float | None:
    """Extend the token of a machine without nodeRef (refreshBootstrapTokenIfNeeded); a lost one is an error."""
    token = value["spec"].get("joinConfiguration", {}).get("discovery", {}).get("bootstrapToken", {}).get("token", "")
    if not token or owning.get("status", {}).get("nodeRef"):
        return None
    path = f"/api/v1/namespaces/kube-system/secrets/bootstrap-token-{token[:6]}"
    async with await _workload(access, value["metadata"]["labels"][CLUSTER_LABEL]) as there:
        found = cast("Object", await there.get(path))
        until = datetime.fromisoformat(base64.b64decode(found["data"]["expiration"]).decode())
        if until < datetime.now(UTC) + _TOKEN_LIFE * 5 / 6:
            await there.merge_patch(path, {"data": {"expiration": _in_base64(_expiration())}})
    return _TOKEN_LIFE.total_seconds() / 3


def _expiration() -> str:
    return (datetime.now(UTC) + _TOKEN_LIFE).isoformat(timespec="seconds").replace("+00:00", "Z")


def _in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _token_secret(token: str) -> Any:
    data = {
        "token-id": token[:6],
        "token-secret": token[7:],
        "expiration": _expiration(),
        "usage-bootstrap-signing": "true",
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        "description": "token generated by cluster-api-bootstrap-provider-kubeadm",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": f"bootstrap-token-{token[:6]}"},
        "data": {key: _in_base64(text) for key, text in data.items()},
    }


async def _init_data(access: Access, cluster: Object, value: Object, assets: Path) -> bytes:
    """Make the first control plane's user data, with the cluster's CA in it."""
    name, endpoint = name_of(cluster), cluster["spec"]["controlPlaneEndpoint"]
    authority = cast("Object", await access.get(SECRET, f"{name}-ca"))["data"]
    files = [
        {"path": f"/etc/kubernetes/pki/ca.{end}", "content": base64.b64decode(authority[f"tls.{end}"]).decode(),
         "permissions": mode}
        for end, mode in (("crt", "0640"), ("key", "0600"))
    ]  # fmt: skip
    of_cluster = {
        **value["spec"].get("clusterConfiguration", {}),
        "clusterName": name,
        "controlPlaneEndpoint": f"{endpoint['host']}:{endpoint['port']}",
        "kubernetesVersion": version(assets / "kubeadm"),
    }
    documents = [
        _kubeadm("ClusterConfiguration", assets, of_cluster, tuple(of_cluster)),
        _kubeadm("InitConfiguration", assets, value["spec"].get("initConfiguration", {}), ("nodeRegistration",)),
    ]
    path = "/run/kubeadm/kubeadm.yaml"
    return _cloud_config(value["spec"], path, documents, f"kubeadm init --config {path}", files)


def _kubeadm(kind: str, assets: Path, spec: Object, fields: tuple[str, ...]) -> Object:
    """Write a document of kubeadm's own API, in the version that this kubeadm reads (bootstrap/kubeadm/types)."""
    body = {field: json.loads(json.dumps(spec[field])) for field in fields if field in spec}
    registration = body.get("nodeRegistration", {})
    if "kubeletExtraArgs" in registration:
        arguments = {each["name"]: each.get("value", "") for each in registration["kubeletExtraArgs"]}
        registration["kubeletExtraArgs"] = extra_arguments(assets, arguments)
    return {"apiVersion": kubeadm_api(assets), "kind": kind, **body}


def _cloud_config(spec: Object, path: str, documents: list[Object], kubeadm: str, files: list[Object]) -> bytes:
    """Write user data as bootstrap/kubeadm/internal/cloudinit does."""
    content = "".join("---\n" + yaml.safe_dump(document) for document in documents)
    placeholder = {"path": "/run/cluster-api/placeholder", "content": "", "permissions": "0640"}
    of_kubeadm = {"path": path, "content": content, "permissions": "0640"}
    commands = [*spec.get("preKubeadmCommands", []), f"{kubeadm} && {_SUCCESS}", *spec.get("postKubeadmCommands", [])]
    data = {"write_files": [*files, *spec.get("files", []), of_kubeadm, placeholder], "runcmd": commands}
    return b"## template: jinja\n#cloud-config\n" + yaml.safe_dump(data, width=sys.maxsize).encode()


# clusterctl


def _move(source: ControlPlane, target: ControlPlane, namespace: str) -> None:
    """Pause, create owners first with new references and no status, delete without finalizers, resume (mover.go)."""
    here, there = source.client(), target.client()
    for cluster in cast("list[Object]", here.list(CLUSTER.path(namespace))):
        here.patch(CLUSTER.path(namespace, name_of(cluster)), {"spec": {"paused": True}})
    objects = _movable(source, namespace)
    uids: dict[str, str] = {}
    for path, value in objects:
        metadata: Object = value["metadata"]
        references = [{**each, "uid": uids[each["uid"]]} for each in metadata.get("ownerReferences", [])]
        kept = {key: metadata[key] for key in ("name", "labels", "annotations", "finalizers") if key in metadata}
        moved = {key: item for key, item in value.items() if key != "status"}
        moved["metadata"] = {**kept, "ownerReferences": references}
        uids[metadata["uid"]] = str(cast("Object", there.create(path, cast("Any", moved)))["metadata"]["uid"])
    for path, value in reversed(objects):
        here.patch(f"{path}/{name_of(value)}", {"metadata": {"finalizers": None}})
        here.delete(f"{path}/{name_of(value)}")
    for cluster in cast("list[Object]", there.list(CLUSTER.path(namespace))):
        there.patch(CLUSTER.path(namespace, name_of(cluster)), {"spec": {"paused": None}})


def _movable(plane: ControlPlane, namespace: str) -> list[tuple[str, Object]]:
    """Return what moves, with its collection, owners first: objects of labelled definitions, and clusters' Secrets."""
    client = plane.client()
    definitions = client.list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    found: list[tuple[str, Object]] = []
    for definition in cast("list[Object]", definitions):
        spec, labels = definition["spec"], definition["metadata"].get("labels", {})
        if "clusterctl.cluster.x-k8s.io" not in labels and spec["group"] not in _OWN_GROUPS:
            continue
        stored = next(each["name"] for each in spec["versions"] if each["storage"])
        path = f"/apis/{spec['group']}/{stored}/namespaces/{namespace}/{spec['names']['plural']}"
        kind = {"apiVersion": f"{spec['group']}/{stored}", "kind": spec["names"]["kind"]}
        found += [(path, {**kind, **cast("Object", value)}) for value in client.list(path)]
    path = SECRET.path(namespace)
    secrets_here = cast("list[Object]", client.list(path))
    of_clusters = [one for one in secrets_here if CLUSTER_LABEL in one["metadata"].get("labels", {})]
    found += [(path, {"apiVersion": "v1", "kind": "Secret", **one}) for one in of_clusters]
    return _owners_first(found)


def _owners_first(objects: list[tuple[str, Object]]) -> list[tuple[str, Object]]:
    ordered: list[tuple[str, Object]] = []
    done: set[str] = set()
    known = {value["metadata"]["uid"] for _, value in objects}
    while len(ordered) < len(objects):
        for path, value in objects:
            owners = {each["uid"] for each in value["metadata"].get("ownerReferences", [])} & known
            if value["metadata"]["uid"] not in done and owners <= done:
                ordered.append((path, value))
                done.add(value["metadata"]["uid"])
    return ordered
