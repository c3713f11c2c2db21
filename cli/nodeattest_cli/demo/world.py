"""The demo's world: a management and a workload cluster, the Cluster API objects between them, and the controller.

Promises: the controller runs as its own process with exactly the rights of the shipped RBAC manifests; what Cluster API
and an infrastructure provider would have written is in the management cluster; everything that was started ends
with the exit stack. Leaves the machines themselves to ``fleet``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import yaml

from nodeattest_cli.demo.automatic_approval import leave_open
from nodeattest_cli.demo.join_info import SIGNING_CONTROLLERS, JoinInfo
from nodeattest_cli.demo.manifests import create_all
from nodeattest_cli.demo.platforms import DemoPlatform
from nodeattest_cli.demo.tools import Tools
from nodeattest_controller import configfile, manifests
from nodeattest_controller.model.objects import mapping, text
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.child_process import Process, wait
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, start_real, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_sandbox.fleet import create_cluster, create_namespace

__all__ = [
    "CLUSTER",
    "CLUSTER_PATH",
    "NAMESPACE",
    "USER",
    "ControlPlanes",
    "World",
    "controller_config",
    "create_world",
    "start_control_planes",
    "start_controller",
]

CLUSTER: Final = "demo"
NAMESPACE: Final = "fleet"
"""Where the Cluster, its Machines and its policy stand."""
CLUSTER_PATH: Final = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters/{CLUSTER}"
_CONTROLLER_NAMESPACE: Final = "nodeattest-system"
USER: Final = "node-attestation-controller"
"""The controller's user in both clusters; the name of a service account would not fit into a certificate."""
_BINDING: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/nodeattest:node-bootstrapper"
_WAIT_LIMIT: Final = "10s"
"""How long a request may wait for its Machine before it is refused: the shortest that the controller takes."""
_PID_FILE_LIMIT: Final = 5.0
_PID_FILE_POLL: Final = 0.02
"""Seconds."""
_NO_SECTIONS: Final[JsonObject] = {}
_NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ControlPlanes:
    """Two running control planes."""

    management: ControlPlane
    workload: ControlPlane


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The two clusters, filled."""

    management: ControlPlane
    workload: ControlPlane
    cluster: JsonObject
    """The Cluster object."""
    version: str
    """Of the workload cluster's API server."""
    join_info: JoinInfo
    """What a machine is told of the workload cluster."""


def start_control_planes(directory: Path, *, assets: Path | None, stack: ExitStack) -> ControlPlanes:
    """Start the management and the workload cluster; real ones need ``assets``."""

    def start(name: str) -> ControlPlane:
        folder = directory / name
        plane = start_sandbox(folder, name=name) if assets is None else start_real(folder, assets, name=name)
        stack.callback(plane.stop)  # by the thread that started it, so that none is forgotten
        return plane

    with ThreadPoolExecutor(1) as aside:
        later = aside.submit(start, "workload")
        return ControlPlanes(start("management"), later.result())


def create_world(
    planes: ControlPlanes, *, provider: str, join_info: JoinInfo, policy: JsonObject = _NO_SECTIONS
) -> World:
    """Install definitions and rights, and create the Cluster with its Secrets and policy; kubeadm's part, too."""
    management, workload = planes.management, planes.workload
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
    _create_policy(here, provider, policy)
    return World(
        management=management,
        workload=workload,
        cluster=cluster,
        version=text(there.get("/version"), "gitVersion"),
        join_info=join_info,
    )


def _create_policy(client: Client, provider: str, sections: JsonObject) -> None:
    """Only this provider, with the section of the platform."""
    body: JsonObject = {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": CLUSTER},
        "spec": {"authorizedAttestors": [provider], "clusterSelector": {}, **sections},
    }
    client.create(f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies", body)


def start_controller(
    world: World, directory: Path, tools: Tools, stack: ExitStack, *, platform: DemoPlatform | None = None
) -> Process:
    """Start ``node-attestation-controller run`` and wait until it serves the workload cluster."""
    directory.mkdir()
    config = directory / "config.yaml"
    config.write_text(yaml.safe_dump(controller_config(world, platform)), encoding="utf-8")
    pid_file = directory / "controller.pid"
    wrapper = [sys.executable, "-m", "nodeattest_sandbox.die_with_parent", str(pid_file)]
    command = [*wrapper, str(tools.controller), "run", "--config", str(config)]
    environment = platform.environment if platform else _NO_VARIABLES
    process = Process("controller", command, directory, pid_file, environment=environment)
    stack.callback(_stop, process, pid_file)
    wait(process, lambda: _is_ready(process))
    admin = world.workload.client()
    wait(process, lambda: _exists(admin, _BINDING))  # from now on bootstrap tokens may ask
    return process


def _stop(process: Process, pid_file: Path) -> None:
    """End the controller. Its wrapper passes signals on only from the moment in which it has written the pid file."""
    end = time.monotonic() + _PID_FILE_LIMIT
    while process.popen.poll() is None and not pid_file.exists() and time.monotonic() < end:
        time.sleep(_PID_FILE_POLL)
    process.stop()


def controller_config(world: World, platform: DemoPlatform | None = None) -> dict[str, object]:
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
        "controllers": list(SIGNING_CONTROLLERS) if world.join_info.pin else ["*"],
        "platforms": platform.platforms if platform else {},
    }


def _is_ready(process: Process) -> bool:
    """Ask /readyz at the port that the controller's log names."""
    port = log_field(process.log, "serving health and metrics", "health_port")
    if port is None:
        return False
    try:
        # Loopback by plain HTTP, and no proxy on the way there.
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return answer.status == HTTPStatus.OK
    except (URLError, OSError):
        return False


def log_field(log: Path, message: str, field: str) -> str | None:
    """Find a field of the first log record with this message."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record: object = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and mapping(record).get("msg") == message:  # pyright: ignore[reportUnknownArgumentType]
            return str(mapping(record).get(field))  # pyright: ignore[reportUnknownArgumentType]
    return None


def _exists(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except ApiRefusal:
        return False
    return True
