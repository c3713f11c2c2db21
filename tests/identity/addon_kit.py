"""The example's dashboard as users reach it, by kubectl proxy, kube-apiserver, gateway and sidecar.

The gateway runs in this process, because kube-apiserver's and its own idea of where Pods are leads nowhere on one
machine; kube-apiserver, kubectl, sidecar and dashboard are the real programs, with the arguments and rights of the
manifests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import yaml
from addon_chain import aggregate, is_available
from aggregation_kit import apply_rights, token_kubeconfig
from front_kit import LOOPBACK, Authority
from gateway_kit import NAME, NAMESPACE, FixedEndpoints, LoopThread, certify, front_proxy_flags
from polling import eventually

from nodeattest_identity.addon.gateway import app
from nodeattest_identity.addon.gateway.endpoints import ServiceEndpoint
from nodeattest_identity.addon.gateway.service import GatewaySettings, UserLimits
from nodeattest_identity.addon.gateway.target import API_SERVICE, ROOT
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.child_process import Process, wait
from nodeattest_sandbox.control_plane import ControlPlane, free_ports, listens, start_real
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_serving.bounded_server import BindAddress
from nodeattest_serving.program import Ports

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "dashboard"
PATH: Final = f"{ROOT}/namespaces/apps/services/dashboard/proxy"
USERS: Final = "dashboard-users"
"""The group that may look at the dashboard."""


@dataclass(frozen=True)
class DashboardWorld:
    """A cluster with a dashboard in it."""

    plane: ControlPlane
    kubectl: Path
    directory: Path
    sidecar: int
    """Where the sidecar listens."""

    @contextmanager
    def proxied(self, user: str, *groups: str) -> Generator[str]:
        """Run ``kubectl proxy`` as a user, for the dashboard and nothing else; gives its URL."""
        kubeconfig = self.plane.client_kubeconfig(user, groups)
        directory = self.directory / user
        directory.mkdir()
        wrapper = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(directory / "pid")]
        command = [*wrapper, str(self.kubectl), f"--kubeconfig={kubeconfig}", "proxy", "--port=0"]
        process = Process("kubectl", [*command, f"--accept-paths=^{re.escape(PATH)}(/.*)?$"], directory)
        try:
            started = re.compile(r"Starting to serve on ([0-9.:]+)\n")
            wait(process, lambda: started.search(process.log.read_text()) is not None)
            found = started.search(process.log.read_text())
            assert found is not None
            yield f"http://{found[1]}"
        finally:
            process.stop()


def documents() -> list[JsonObject]:
    """Return the example's manifests."""
    text = (EXAMPLE / "manifests.yaml").read_text(encoding="utf-8")
    return cast("list[JsonObject]", list(yaml.safe_load_all(text)))


def sidecar_arguments(**here: object) -> list[str]:
    """Return the sidecar's arguments as they stand in the manifests, with some values of this machine."""
    [deployment] = [each for each in documents() if each["kind"] == "Deployment"]
    spec = cast("dict[str, dict[str, dict[str, list[dict[str, list[str]]]]]]", deployment["spec"])
    [sidecar] = [each for each in spec["template"]["spec"]["containers"] if cast("str", each["name"]) == "sidecar"]
    changed = {f"--{name.replace('_', '-')}": str(value) for name, value in here.items()}
    given = [argument.partition("=") for argument in sidecar["args"]]
    assert set(changed) <= {name for name, _, _ in given}
    return [f"{name}={changed[name]}" if name in changed else f"{name}{mark}{value}" for name, mark, value in given]


@contextmanager
def built_world(directory: Path, assets: Path) -> Generator[DashboardWorld]:
    """Start everything; it ends with the block."""
    front, serving = Authority("front-proxy-ca"), Authority("gateway-ca")
    kubectl = assets / "kubectl"
    flags = front_proxy_flags(front, directory / "front")
    with (
        start_real(directory / "plane", assets, name="dashboard", flags=flags) as plane,
        _dashboard(directory) as dashboard,
        gateway(plane, directory, serving) as (issuer, resolver),
        _sidecar(directory, dashboard, issuer, administrator(plane, kubectl)) as sidecar,
    ):
        resolver.known["apps", "dashboard"] = ServiceEndpoint(LOOPBACK, sidecar)
        run = administrator(plane, kubectl)
        run("apply", "-f", EXAMPLE / "manifests.yaml")
        files = [f"--from-file={EXAMPLE / name}" for name in ("dashboard.py", "allowed.json")]
        run("-n", "apps", "create", "configmap", "dashboard", *files)
        run("-n", "apps", "create", "configmap", "addon-gateway-ca", f"--from-file=ca.crt={directory / 'ca.crt'}")
        yield DashboardWorld(plane, kubectl, directory, sidecar)


def administrator(plane: ControlPlane, kubectl: Path) -> Callable[..., str]:
    """Return kubectl as the administrator's hand."""

    def run(*words: str | Path) -> str:
        command = [kubectl, f"--kubeconfig={plane.admin_kubeconfig}", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    return run


@contextmanager
def _dashboard(directory: Path) -> Generator[int]:
    (port,) = free_ports(1)
    words = ["-I", str(EXAMPLE / "dashboard.py"), str(port), str(EXAMPLE / "allowed.json")]
    with _running("dashboard", [sys.executable, *words], directory, port):
        yield port


@contextmanager
def _sidecar(directory: Path, dashboard: int, issuer: str, kubectl: Callable[..., str]) -> Generator[int]:
    port, health = free_ports(2)
    ca = directory / "ca.crt"
    ca.write_text(kubectl("get", "apiservice", API_SERVICE, "-o", "go-template={{base64decode .spec.caBundle}}"))
    arguments = sidecar_arguments(
        upstream=f"{LOOPBACK}:{dashboard}",
        bind_address=f"{LOOPBACK}:{port}",
        health_bind_address=f"{LOOPBACK}:{health}",
        issuer=issuer,
        ca_file=ca,
    )
    with _running("sidecar", [sys.executable, "-m", "nodeattest_cli.main", *arguments], directory, port):
        yield port


@contextmanager
def _running(name: str, command: Sequence[str], directory: Path, port: int) -> Generator[None]:
    process = Process(name, command, directory)
    try:
        wait(process, lambda: listens(port))
        yield
    finally:
        process.stop()


@contextmanager
def gateway(
    plane: ControlPlane, directory: Path, serving: Authority, limits: UserLimits | None = None
) -> Generator[tuple[str, FixedEndpoints]]:
    """Run a gateway behind kube-apiserver in this process; gives its issuer's URL and the services that it knows."""
    admin, loop, resolver = plane.client(), LoopThread(), FixedEndpoints()
    create_namespace(admin, NAMESPACE)
    apply_rights(admin)
    certificate, key = certify(serving, directory, "gateway", hosts=(f"{NAME}.{NAMESPACE}.svc", "localhost"))
    (port,) = free_ports(1)
    settings = GatewaySettings(
        address=BindAddress(LOOPBACK, port),
        certificate=certificate,
        key=key,
        issuer=f"https://{LOOPBACK}:{port}",
        namespace=NAMESPACE,
        limits=limits or UserLimits(),
    )
    kubeconfig = token_kubeconfig(plane, NAMESPACE, NAME, directory / "gateway.kubeconfig")
    ports: list[Ports] = []
    client = ApiClient.from_kubeconfig_file(kubeconfig)
    task = loop.start(app.run(settings, client, started=ports.append, resolver=resolver))
    try:
        eventually(lambda: bool(ports) or task.done(), "the gateway listens")
        aggregate(admin, serving.pem, port)
        eventually(lambda: task.done() or is_available(admin), "kube-apiserver finds the gateway available")
        assert not task.done(), task.exception()
        yield settings.issuer, resolver
    finally:
        loop.end(task)
        loop.close()
