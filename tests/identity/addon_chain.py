"""An add-on as its users reach it: kubectl proxy, a real kube-apiserver, gateway, sidecar, and ``echo_upstream``.

All are the real programs. The gateway finds the sidecar by Endpoints, which may not lead to loopback, so the sidecar
listens at another address of this machine.
"""

from __future__ import annotations

import base64
import re
import socket
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from front_ends import FRONT_PROXY, NAMESPACE, PROGRAM, container, started

from nodeattest_controller import manifests
from nodeattest_identity.addon.gateway.target import API_SERVICE, ROOT
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at
from nodeattest_sandbox.child_process import LOOPBACK, wait
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, free_ports, listens, start_real
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_sandbox.pki import ClusterPki

NAME = "addon-gateway"
PATH = f"{ROOT}/namespaces/apps/services/dashboard/proxy"
USERS = "system:masters"


@dataclass(frozen=True, slots=True)
class Chain:
    """Where its beginning is."""

    port: int
    """Of kubectl proxy, plain HTTP."""
    path: str = PATH


def own_address() -> str | None:
    """Return an address of this machine that is not loopback; None if there is none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


@contextmanager
def chain(directory: Path, assets: Path, address: str) -> Generator[Chain]:
    """Run all of it; ``address``: of this machine, for the sidecar."""
    directory.mkdir(parents=True, exist_ok=True)
    front = ClusterPki.make(directory / "front-proxy", "front-proxy")
    certificate, key = front.files(FRONT_PROXY)
    flags = [
        f"--requestheader-client-ca-file={front.ca_certificate}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={certificate}",
        f"--proxy-client-key-file={key}",
    ]
    with ExitStack() as stack:
        plane = stack.enter_context(start_real(directory / "plane", assets, name="uploads", flags=flags))
        admin = plane.client()
        for namespace in (NAMESPACE, "apps"):
            create_namespace(admin, namespace)
        issuer = _gateway(stack, directory, plane, front)
        _serve(admin, address, _sidecar(stack, directory, front, address, issuer))
        yield Chain(_kubectl_proxy(stack, directory, plane, assets / "kubectl"))


def _gateway(stack: ExitStack, directory: Path, plane: ControlPlane, pki: ClusterPki) -> str:
    """Run a gateway that kube-apiserver asks; returns its issuer."""
    [port] = free_ports(1)
    certificate, key = pki.files(NAME, (f"{NAME}.{NAMESPACE}.svc", "localhost"))
    issuer = f"https://{LOOPBACK}:{port}"
    command = [
        *(*PROGRAM, "addon-auth", "gateway", f"--kubeconfig={plane.admin_kubeconfig}", f"--namespace={NAMESPACE}"),
        *(f"--issuer={issuer}", f"--bind-address={LOOPBACK}:{port}", f"--tls-cert-file={certificate}"),
        *(f"--tls-private-key-file={key}", *container(NAME)[0], "--log-level=warning"),
    ]
    process = started(stack, "gateway", command, directory)
    wait(process, lambda: listens(port))
    admin = plane.client()
    aggregate(admin, pki.ca_certificate.read_bytes(), port)
    wait(process, lambda: is_available(admin))
    return issuer


def _sidecar(stack: ExitStack, directory: Path, pki: ClusterPki, address: str, issuer: str) -> int:
    """Run a sidecar and its add-on; returns the sidecar's port."""
    port, upstream = free_ports(2)
    add_on = started(stack, "add-on", [sys.executable, "-m", "echo_upstream", str(upstream)], directory)
    wait(add_on, lambda: listens(upstream))
    command = [
        *(*PROGRAM, "addon-auth", "sidecar", "--plain-http", f"--bind-address={address}:{port}"),
        *(f"--upstream={LOOPBACK}:{upstream}", f"--issuer={issuer}", f"--ca-file={pki.ca_certificate}"),
        *("--audience=apps/dashboard", "--longest-lifetime=60", *container("addon-sidecar")[0], "--log-level=warning"),
    ]
    process = started(stack, "sidecar", command, directory)
    wait(process, lambda: _listens_at(address, port))
    return port


def _listens_at(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def _serve(admin: Client, address: str, port: int) -> None:
    """Make the Service of the sidecar."""
    metadata: JsonMap = {"name": "dashboard"}
    admin.create("/api/v1/namespaces/apps/services", {"metadata": metadata, "spec": {"ports": [{"port": 80}]}})
    pod: JsonMap = {"kind": "Pod", "namespace": "apps", "name": "dashboard"}
    subset: JsonMap = {"addresses": [{"ip": address, "targetRef": pod}], "ports": [{"port": port}]}
    admin.create("/api/v1/namespaces/apps/endpoints", {"metadata": metadata, "subsets": [subset]})


def _kubectl_proxy(stack: ExitStack, directory: Path, plane: ControlPlane, kubectl: Path) -> int:
    kubeconfig = plane.client_kubeconfig("uploader", (USERS,))
    wrapper = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(directory / "kubectl.pid")]
    process = started(
        stack, "kubectl", [*wrapper, str(kubectl), f"--kubeconfig={kubeconfig}", "proxy", "--port=0"], directory
    )
    ready = re.compile(r"Starting to serve on [0-9.]+:([0-9]+)\n")
    wait(process, lambda: ready.search(process.log.read_text()) is not None)
    found = ready.search(process.log.read_text())
    assert found is not None
    return int(found[1])


def aggregate(admin: Client, ca: bytes, port: int) -> None:
    """Let kube-apiserver ask a gateway of this machine: an ExternalName is the only service that leads to loopback."""
    admin.create(
        f"/api/v1/namespaces/{NAMESPACE}/services",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
    )
    [service] = [each for each in manifests.objects(NAME) if each["kind"] == "APIService"]
    wanted = cast("dict[str, object]", service["spec"])
    spec = {
        **wanted,
        "caBundle": base64.b64encode(ca).decode(),
        "service": {"name": NAME, "namespace": NAMESPACE, "port": port},
    }
    admin.create("/apis/apiregistration.k8s.io/v1/apiservices", cast("JsonMap", {**service, "spec": spec}))


def is_available(admin: Client) -> bool:
    """Return whether kube-apiserver hands the gateway's paths over."""
    found = admin.get(f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}")
    conditions = maps_at(found, "status", "conditions")
    if not any(each["type"] == "Available" and each["status"] == "True" for each in conditions):
        return False
    try:
        return admin.send("GET", ROOT)[0] == 200  # the path is handed over a moment later
    except ApiRefusal:
        return False
