"""The demo's world: a management and a workload cluster, the Cluster API objects between them, and the controller.

Promises: the controller runs as its own process with exactly the rights of the shipped RBAC manifests; what
Cluster API, kubeadm and an infrastructure provider would have written is there; everything ends with the exit stack.
"""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import yaml

from nodeattest_cli.output import UserError
from nodeattest_controller import configfile, manifests
from nodeattest_controller.controllers.auto_approval.decide import (
    CLOSED_REASONS,
    CONDITION,
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    NODE_CLIENT_ROLE,
    Permission,
)
from nodeattest_demo.machines import (
    PLATFORMS,
    AttestorSettings,
    Children,
    ClaimedIdentity,
    DemoFailure,
    DemoMachine,
    Finished,
    node_kubeconfig,
    write_private_file,
)
from nodeattest_discovery.secret import DEFAULT_GROUP
from nodeattest_discovery.token import generate
from nodeattest_kube import paths
from nodeattest_parsing.objects import condition, flag, items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.child_process import LOOPBACK, Process, free_ports, wait
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, start_real, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_sandbox.fleet import create_bootstrap_token, create_cluster, create_machine, create_namespace

CLUSTER: Final = "demo"
NAMESPACE: Final = "fleet"
"""Where the Cluster, its Machines and its policy stand."""
USER: Final = "node-attestation-controller"
"""The controller's user in both clusters; the name of a service account would not fit into a certificate."""
_CONTROLLER_NAMESPACE: Final = "nodeattest-system"
_RBAC: Final = "rbac.authorization.k8s.io"
_BINDING: Final = f"/apis/{_RBAC}/v1/clusterrolebindings/nodeattest:node-bootstrapper"
_SELF_NODE_CLIENT_ROLE: Final = NODE_CLIENT_ROLE.removesuffix(Permission.NODE_CLIENT) + Permission.SELF_NODE_CLIENT
_WAIT_LIMIT: Final = "10s"
"""How long a request may wait for its Machine before it is refused: the shortest that the controller takes."""
_JOIN_LIMIT: Final = 90.0
"""Seconds; the agent itself gives up after 60."""
_LIMIT: Final = 60.0
_POLL: Final = 0.1
_PLURALS: Final = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Namespace": "namespaces",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ServiceAccount": "serviceaccounts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs that the demo runs."""

    agent: Path
    controller: Path
    command: Path
    """``nodeattest`` itself, as a process of its own."""
    assets: Path | None
    """The folder with etcd and kube-apiserver; None: the sandbox's own API server."""


def find_tools(own: Path, *, provider: str, assets: Path | None) -> Tools:
    """Find every program, first in ``own``, the folder of our commands; ``UserError`` names all that are missing."""
    missing = list(PLATFORMS[provider].missing())
    absent = [name for name in ("etcd", "kube-apiserver") if assets is not None and not (assets / name).exists()]
    if absent:
        missing.append(f"{' and '.join(absent)} in {assets} (KUBEBUILDER_ASSETS)")

    def find(name: str) -> Path:
        found = own / name if (own / name).exists() else shutil.which(name)
        if found is None:
            missing.append(f"{name}, a command of this package (install it again)")
        return Path(found or name)

    tools = Tools(
        agent=find("kubelet-authenticator"),
        controller=find("node-attestation-controller"),
        command=find("nodeattest"),
        assets=assets,
    )
    if missing:
        raise UserError(f"missing on this machine: {'; '.join(missing)}")
    return tools


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The two clusters, filled."""

    management: ControlPlane
    workload: ControlPlane
    cluster: JsonObject
    """The Cluster object."""
    version: str
    """Of the workload cluster's API server."""


def start_control_planes(
    directory: Path, *, assets: Path | None, stack: ExitStack
) -> tuple[ControlPlane, ControlPlane]:
    """Start the management and the workload cluster; real ones need ``assets``."""

    def start(name: str) -> ControlPlane:
        folder = directory / name
        plane = start_sandbox(folder, name=name) if assets is None else start_real(folder, assets, name=name)
        stack.callback(plane.stop)  # by the thread that started it, so that none is forgotten
        return plane

    with ThreadPoolExecutor(1) as aside:
        later = aside.submit(start, "workload")
        return start("management"), later.result()


def create_all(client: Client, objects: Iterable[JsonObject], *, user: str) -> None:
    """Create each shipped object unless it is there; bindings are made for the user, who has a certificate."""
    for shipped in objects:
        kind = text(shipped, "kind")
        subjects: JsonObject = {"subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}]}
        body = {**shipped, **subjects} if kind.endswith("Binding") else shipped
        group, _, version = text(body, "apiVersion").rpartition("/")
        namespace = text(mapping(body, "metadata"), "namespace") or None
        client.ensure(paths.collection_path(group, version, _PLURALS[kind], namespace=namespace), body)


def create_world(management: ControlPlane, workload: ControlPlane, *, provider: str) -> World:
    """Install definitions and rights, and create the Cluster with its Secrets and policy; kubeadm's part, too."""
    here, there = management.client(), workload.client()
    install_cluster_api(here)
    install_definitions(here, manifests.crds())
    for namespace in (_CONTROLLER_NAMESPACE, NAMESPACE):
        create_namespace(here, namespace)
    create_all(here, manifests.objects("rbac"), user=USER)
    for rights in ("workload-rbac", "workload-bootstrap-token", "workload-hardening"):
        create_all(there, manifests.objects(rights), user=USER)
    leave_open(there)
    cluster = create_cluster(
        here,
        CLUSTER,
        kubeconfig=workload.client_kubeconfig(USER).read_bytes(),
        ca_certificate=workload.ca_certificate.read_bytes(),
        ca_key=workload.ca_key.read_bytes(),
        namespace=NAMESPACE,
    )
    body: JsonObject = {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": CLUSTER},
        "spec": {"authorizedAttestors": [provider], "clusterSelector": {}},
    }
    here.create(f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies", body)
    return World(
        management=management,
        workload=workload,
        cluster=cluster,
        version=text(there.get("/version"), "gitVersion"),
    )


def leave_open(workload: Client) -> None:
    """Create what kubeadm creates: two bindings that make the in-tree signer approve, and then cluster-info."""
    for name, role, group in (
        (KUBEADM_BOOTSTRAP, NODE_CLIENT_ROLE, DEFAULT_GROUP),
        (KUBEADM_ROTATION, _SELF_NODE_CLIENT_ROLE, "system:nodes"),
    ):
        binding: JsonObject = {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group}],
        }
        workload.create(paths.collection_path(_RBAC, "v1", "clusterrolebindings"), binding)
    info: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": {}}
    workload.ensure(paths.core_path("configmaps", namespace="kube-public"), info)


def is_open(workload: Client) -> bool:
    """Ask the API server whether the in-tree signer would approve what a bootstrap token asks for."""
    review: JsonObject = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": "system:bootstrap:abcdef",
            "groups": ["system:bootstrappers", DEFAULT_GROUP],
            "resourceAttributes": {
                "group": "certificates.k8s.io",
                "resource": "certificatesigningrequests",
                "subresource": "nodeclient",
                "verb": "create",
            },
        },
    }
    path = paths.collection_path("authorization.k8s.io", "v1", "subjectaccessreviews")
    return flag(workload.create(path, review), "status", "allowed")


def await_closed(world: World) -> str:
    """Wait until the controller reports that automatic approval is closed, and return its reason."""
    management, workload = world.management.client(), world.workload.client()
    cluster = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters/{CLUSTER}"
    end = time.monotonic() + _LIMIT
    while True:
        found = condition(items(management.get(cluster), "status", "conditions"), CONDITION) or {}
        reason = str(found.get("reason", "nothing is reported"))
        if reason in CLOSED_REASONS and not is_open(workload):
            return reason
        if time.monotonic() > end:
            raise DemoFailure(f"automatic approval was not closed: {reason}: {found.get('message')}")
        time.sleep(_POLL)


def new_token() -> str:
    """Draw a bootstrap token."""
    return generate().reveal()


def provision(world: World, number: int, new: DemoMachine) -> DemoMachine:
    """Do what Cluster API and an infrastructure provider do for a new machine."""
    token = world.workload.await_token(create_bootstrap_token(world.workload.client(), new_token()))
    machine = replace(new, machine=f"{CLUSTER}-md-{number}", token=token)
    client = world.management.client()
    create_machine(
        client,
        machine.machine,
        cluster=world.cluster,
        provider_id=machine.identity.provider_id,
        addresses=[("Hostname", machine.identity.node)],
        infrastructure_annotations=machine.annotations,
        bootstrap_token=machine.token,
    )
    if machine.secret is not None:  # where the controller looks for the challenge provider's
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{machine.machine}-attestation"},
            "data": {"secret": base64.b64encode(machine.secret).decode()},
        }
        client.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
    return machine


def run_join(
    world: World,
    children: Children,
    agent: Path,
    root: Path,
    *,
    identity: ClaimedIdentity,
    attestor: AttestorSettings,
    token: str,
) -> Finished:
    """Prepare a machine's root as cloud-init does, and run ``kubelet-authenticator join`` in it."""
    token_file = root / "etc/bootstrap-token"
    write_private_file(token_file, token + "\n")
    (root / "var/lib").mkdir(parents=True, exist_ok=True)
    flags = {
        "server": world.workload.server,
        "ca-file": world.workload.ca_certificate,
        "token-file": token_file,
        "provider": attestor.provider,
        "node-name": identity.node,
        "provider-id": identity.provider_id,
        "config": root / "etc/kubernetes/kubelet-authenticator.json",
        "cache-dir": root / "var/lib/kubelet-authenticator",
        "kubeconfig": node_kubeconfig(root),
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += [f"--set={name}={value}" for name, value in attestor.settings.items()]
    return children.run([agent, "join", *words], limit=_JOIN_LIMIT)


def start_controller(world: World, directory: Path, tools: Tools, stack: ExitStack) -> Process:
    """Start ``node-attestation-controller run`` and wait until it serves the workload cluster."""
    directory.mkdir()
    config, (port,) = directory / "config.yaml", free_ports(1)
    settings = {**controller_config(world), "healthBindAddress": f"{LOOPBACK}:{port}"}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    process = Process.of_program("controller", [str(tools.controller), "run", "--config", str(config)], directory)
    stack.callback(process.stop)
    wait(process, lambda: _is_ready(port))
    admin = world.workload.client()
    wait(process, lambda: admin.find(_BINDING) is not None)  # from now on bootstrap tokens may ask
    return process


def controller_config(world: World) -> dict[str, object]:
    """Return the controller's configuration file."""
    return {
        "apiVersion": configfile.API_VERSION,
        "kind": configfile.KIND,
        "kubeconfig": str(world.management.client_kubeconfig(USER)),
        "namespace": _CONTROLLER_NAMESPACE,
        "healthBindAddress": "127.0.0.1:0",
        "metricsBindAddress": "127.0.0.1:0",
        "waitLimit": _WAIT_LIMIT,
        "allowedAddresses": ["127.0.0.0/8"],  # where the demo's API servers are
    }


def _is_ready(port: int) -> bool:
    """Ask /readyz: loopback by plain HTTP, and no proxy on the way."""
    try:
        with build_opener(ProxyHandler({})).open(f"http://{LOOPBACK}:{port}/readyz", timeout=2) as answer:
            return answer.status == HTTPStatus.OK
    except (URLError, OSError):
        return False
