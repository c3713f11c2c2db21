"""Add-ons as their users reach them: kubectl proxy, a real kube-apiserver, the gateway, and sidecars.

All are the real programs, with the rights and arguments of the manifests. Endpoints may not lead to loopback, so what
the gateway forwards to listens at another address of this machine.
"""

from __future__ import annotations

import base64
import re
import socket
import ssl
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from front_ends import FRONT_PROXY, NAMESPACE, PROGRAM, container, started
from polling import eventually

from nodeattest_controller import manifests
from nodeattest_identity.addon.gateway.target import API_SERVICE, GROUP, ROOT
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.child_process import LOOPBACK, free_ports, listens, wait
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, start_real
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_sandbox.pki import ClusterPki

NAME: Final = "addon-gateway"
RBAC: Final = "rbac.authorization.k8s.io"
APPS: Final = f"{ROOT}/namespaces/apps/services"
_RIGHTS: Final = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/roles",
    "RoleBinding": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/rolebindings",
    "ClusterRole": f"/apis/{RBAC}/v1/clusterroles",
    "ClusterRoleBinding": f"/apis/{RBAC}/v1/clusterrolebindings",
}


@dataclass(frozen=True)
class Chain:
    """A cluster with a gateway; its add-ons are in the namespace ``apps``."""

    stack: ExitStack
    directory: Path
    address: str
    """Of this machine, for add-ons."""
    plane: ControlPlane
    front: ClusterPki
    """Of the front proxy and of the gateway's certificate."""
    gateway: int
    """The gateway's port."""

    @property
    def issuer(self) -> str:
        return f"https://{LOOPBACK}:{self.gateway}"

    def serve(self, name: str, port: int) -> None:
        """Make the Service of an add-on that listens on a port of ``address``."""
        admin, metadata = self.plane.client(), JsonMap(name=name)
        admin.create("/api/v1/namespaces/apps/services", {"metadata": metadata, "spec": {"ports": [{"port": 80}]}})
        pod: JsonMap = {"kind": "Pod", "namespace": "apps", "name": name}
        subset: JsonMap = {"addresses": [{"ip": self.address, "targetRef": pod}], "ports": [{"port": port}]}
        admin.create("/api/v1/namespaces/apps/endpoints", {"metadata": metadata, "subsets": [subset]})

    def run_sidecar(self, name: str, add_on: list[str], *flags: str) -> int:
        """Run an add-on, whose last argument is its port, and its sidecar; returns the sidecar's port."""
        port, upstream = free_ports(2)
        behind = started(self.stack, name, [sys.executable, *add_on, str(upstream)], self.directory)
        wait(behind, lambda: listens(upstream))
        command = [
            *(*PROGRAM, "addon-auth", "sidecar", "--plain-http", f"--bind-address={self.address}:{port}"),
            *(f"--upstream={LOOPBACK}:{upstream}", f"--issuer={self.issuer}", f"--ca-file={self.front.ca_certificate}"),
            *(f"--audience=apps/{name}", "--longest-lifetime=60", "--log-level=warning", *flags),
        ]
        process = started(self.stack, f"{name}-sidecar", command, self.directory)
        wait(process, lambda: _listens_at(self.address, port))
        self.serve(name, port)
        return port

    def grant(self, name: str, group: str) -> None:
        """Let a group get one add-on."""
        rule: JsonMap = {
            "apiGroups": [GROUP], "resources": ["services/proxy"], "verbs": ["get"], "resourceNames": [name],
        }  # fmt: skip
        metadata: JsonMap = {"name": group, "namespace": "apps"}
        binding: JsonMap = {
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": group},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
        }
        _apply(self.plane.client(), "Role", {"metadata": metadata, "rules": [rule]})
        _apply(self.plane.client(), "RoleBinding", binding)

    @contextmanager
    def proxied(self, user: str, *groups: str) -> Generator[int]:
        """Run ``kubectl proxy`` as a user; gives its port."""
        kubeconfig = self.plane.client_kubeconfig(user, groups)
        kubectl = [str((self.directory / "kubectl").readlink()), f"--kubeconfig={kubeconfig}", "proxy", "--port=0"]
        kubectl.append(f"--accept-paths=^{re.escape(APPS)}/.*$")
        wrapper = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(self.directory / f"{user}.pid")]
        with ExitStack() as stack:
            process = started(stack, f"kubectl-{user}", [*wrapper, *kubectl], self.directory)
            ready = re.compile(r"Starting to serve on [0-9.]+:([0-9]+)\n")
            wait(process, lambda: ready.search(process.log.read_text()) is not None)
            found = ready.search(process.log.read_text())
            assert found is not None
            yield int(found[1])

    def direct(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Go to the gateway without kube-apiserver."""
        context = ssl.create_default_context(cafile=self.front.ca_certificate)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


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
    """Run kube-apiserver and a gateway that it asks."""
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
    (directory / "kubectl").symlink_to(assets / "kubectl")
    with ExitStack() as stack:
        plane = stack.enter_context(start_real(directory / "plane", assets, name="chain", flags=flags))
        admin = plane.client()
        for namespace in (NAMESPACE, "apps"):
            create_namespace(admin, namespace)
        yield Chain(stack, directory, address, plane, front, _gateway(stack, directory, plane, front))


def _gateway(stack: ExitStack, directory: Path, plane: ControlPlane, pki: ClusterPki) -> int:
    [port] = free_ports(1)
    admin = plane.client()
    for document in manifests.objects(NAME):
        if document["kind"] in _RIGHTS:
            _apply(admin, str(document["kind"]), cast("JsonMap", document))
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    answer = admin.create(f"{accounts}/{NAME}/token", {"apiVersion": "authentication.k8s.io/v1", "spec": {}})
    token = text_at(answer, "status", "token")
    kubeconfig = plane.pki.token_kubeconfig(directory / "gateway.kubeconfig", plane.server, token)
    certificate, key = pki.files(NAME, (f"{NAME}.{NAMESPACE}.svc", "localhost"))
    command = [
        *(*PROGRAM, "addon-auth", "gateway", f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}"),
        *(f"--issuer=https://{LOOPBACK}:{port}", f"--bind-address={LOOPBACK}:{port}", f"--tls-cert-file={certificate}"),
        *(f"--tls-private-key-file={key}", *container(NAME)[0], "--log-level=warning"),
    ]
    process = started(stack, "gateway", command, directory)
    wait(process, lambda: listens(port))
    _aggregate(admin, pki.ca_certificate.read_bytes(), port)
    eventually(lambda: process.has_ended() or _is_available(admin), "kube-apiserver finds the gateway available")
    return port


def _apply(admin: Client, kind: str, document: JsonMap) -> None:
    admin.create(_RIGHTS[kind].format(namespace=text_at(document, "metadata", "namespace")), document)


def _listens_at(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def _aggregate(admin: Client, ca: bytes, port: int) -> None:
    """Let kube-apiserver ask a gateway of this machine: an ExternalName is the only service that leads to loopback."""
    spec: JsonMap = {"type": "ExternalName", "externalName": "localhost"}
    admin.create(f"/api/v1/namespaces/{NAMESPACE}/services", {"metadata": {"name": NAME}, "spec": spec})
    [service] = [each for each in manifests.objects(NAME) if each["kind"] == "APIService"]
    wanted = {
        **cast("dict[str, object]", service["spec"]),
        "caBundle": base64.b64encode(ca).decode(),
        "service": {"name": NAME, "namespace": NAMESPACE, "port": port},
    }
    admin.create("/apis/apiregistration.k8s.io/v1/apiservices", cast("JsonMap", {**service, "spec": wanted}))


def _is_available(admin: Client) -> bool:
    """Return whether kube-apiserver hands the gateway's paths over."""
    found = admin.get(f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}")
    conditions = maps_at(found, "status", "conditions")
    if not any(each["type"] == "Available" and each["status"] == "True" for each in conditions):
        return False
    try:
        return admin.send("GET", ROOT)[0] == 200  # the path is handed over a moment later
    except ApiRefusal:
        return False
