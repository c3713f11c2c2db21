"""The agent keeps the certificate that kubelet serves: real agent, real TPM, real controller, real API server."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cryptography import x509
from kubernetes_assets import KUBELET_SETTINGS, kubelet_command
from needs import ONLY_ROOT, kubernetes_folder, kubernetes_program, not_possible
from polling import eventually
from runtime_stub import RuntimeStub
from world import NAMESPACE, Agent, Controller, World

from nodeattest_authenticator import kubelet_config
from nodeattest_providers.node_interface import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.control_plane import controller_manager

pytestmark = pytest.mark.swtpm

HIDE: Final = 'for i in /var/lib /var/log /usr/libexec; do mount -t tmpfs none "$i"; done; exec "$@"'
ELSEWHERE: Final = ["unshare", "--mount", "sh", "-c", HIDE, "sh"]
"""What kubelet makes in fixed places of the machine, it makes in memory, and it ends with the process."""

KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"
NO_CERTIFICATE: Final = "TLSV1_ALERT_INTERNAL_ERROR"
"""What a kubelet answers that waits for its certificate (crypto/tls)."""


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["tpm"], serving={"kubelet": "Approve"})
    with world.controller("--leader-elect", "false", log="serving-agent.log") as running:
        world.await_service(running)
        yield running


def enrolled(world: World, name: str, *addresses: str) -> Agent:
    """Make a Machine with a TPM and addresses, and its agent."""
    tpm = world.tpm(name)
    listed = [("Hostname", name), *(("InternalIP", address) for address in addresses)]
    world.machine(name, tpm=tpm, addresses=listed)
    return world.agent(name, "tpm", tcti=tpm.tcti)


def file(agent: Agent) -> Path:
    return agent.directory / "cache" / "serving.pem"


def certificate(agent: Agent) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file(agent).read_bytes())


@contextmanager
def kubelet(program: Path, folder: Path, configuration: bytes, *flags: str) -> Generator[None]:
    """Run a kubelet that has no containers, and no folder of this machine."""
    folder.joinpath("kubelet.json").write_bytes(configuration)
    runtime = folder / "runtime.sock"
    command = [*ELSEWHERE, *kubelet_command(program, folder / "kubelet.json", folder / "kubelet", runtime), *flags]
    with (
        RuntimeStub(runtime),
        folder.joinpath("kubelet.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            yield
        finally:
            process.kill()


def shown(world: World, port: int, name: str) -> x509.Certificate | None:
    """Return the certificate that a kubelet shows to a client of the cluster; None while it shows none."""
    trust = ssl.create_default_context(cafile=str(world.workload.ca_certificate))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            trust.wrap_socket(plain, server_hostname=name) as tls,
        ):
            return x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
    except ConnectionError:
        return None
    except ssl.SSLError as error:
        if error.reason != NO_CERTIFICATE:
            raise
        return None


def obeyed(world: World, port: int, name: str) -> dict[str, Any]:
    """Ask a kubelet for its configuration, as a client whom its CA file alone vouches for."""
    trust = ssl.create_default_context(cafile=str(world.workload.ca_certificate))
    trust.load_cert_chain(*world.workload.pki.files("operator"))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        trust.wrap_socket(plain, server_hostname=name) as tls,
    ):
        tls.sendall(b"GET /configz HTTP/1.0\r\nHost: kubelet\r\n\r\n")
        answer = b"".join(iter(lambda: tls.recv(65536), b""))
    return json.loads(answer.partition(b"\r\n\r\n")[2])["kubeletconfig"]


@pytest.mark.usefixtures("controller")
@ONLY_ROOT
def test_a_real_kubelet_serves_the_one_file_by_the_configuration_that_join_writes(world: World, tmp_path: Path) -> None:
    program = kubernetes_program("kubelet")
    agent = enrolled(world, "serving-3", "10.7.1.4")
    joined = agent.join(world.token(), "--serving-ip-address", "10.7.1.4")
    assert joined.returncode == 0, joined.stderr
    pair, (port,) = tmp_path / "serving.pem", free_ports(1)
    shutil.copy(file(agent), pair)
    kept = kubelet_config.parse({"data": {"kubelet": yaml.safe_dump({**KUBELET_SETTINGS, "port": port, "maxPods": 7})}})
    configuration = kubelet_config.render(kept, ca_file=str(world.workload.ca_certificate), serving_file=str(pair))
    with kubelet(program, tmp_path, configuration):
        found = eventually(lambda: shown(world, port, "serving-3"), seconds=40, what="kubelet's answer")
        runs = obeyed(world, port, "serving-3")
    assert runs["maxPods"] == 7
    assert runs["authentication"]["x509"]["clientCAFile"] == str(world.workload.ca_certificate)
    assert found == certificate(agent)
    before = len(world.requests())
    again = agent.run("serving", *agent.files())
    assert again.returncode == 0, again.stderr
    assert len(world.requests()) == before


@pytest.mark.usefixtures("controller")
@ONLY_ROOT
def test_a_real_kubelet_serves_what_it_asked_for_itself(world: World, control_plane_kind: str, tmp_path: Path) -> None:
    if control_plane_kind != "real":
        not_possible("signing for this signer is the work of kube-controller-manager")
    name = "serving-own"
    world.machine(name)
    kubeconfig = world.workload.client_kubeconfig(f"system:node:{name}", ["system:nodes"])
    flags = (f"--kubeconfig={kubeconfig}", f"--hostname-override={name}")
    [port] = free_ports(1)
    own: JsonObject = {"port": port, "serverTLSBootstrap": True, "providerID": f"sandbox://{name}"}
    configuration: JsonObject = {**KUBELET_SETTINGS, **own}
    with (
        controller_manager(world.workload, kubernetes_folder(), ["csrsigning"]),
        kubelet(kubernetes_program("kubelet"), tmp_path, json.dumps(configuration).encode(), *flags),
    ):
        node = eventually(lambda: registered(world, name), seconds=60, what="the Node with its addresses")
        # As an infrastructure provider and Cluster API report them.
        status: JsonMap = {
            "nodeRef": {"name": name, "uid": text_at(node, "metadata", "uid")},
            "addresses": list(maps_at(node, "status", "addresses")),
        }
        path = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines/{name}/status"
        world.admin.patch(path, {"status": status})
        eventually(lambda: shown(world, port, name), seconds=60, what="the certificate")
    requests = [one for one in world.requests_of(name) if text_at(one, "spec", "signerName") == KUBELET_SERVING]
    conditions = [one for request in requests for one in maps_at(request, "status", "conditions")]
    assert {(text_at(one, "type"), text_at(one, "reason")) for one in conditions} == {("Approved", "AddressesVerified")}


def registered(world: World, name: str) -> JsonMap | None:
    """Return a Node that its kubelet has registered with an address."""
    nodes = [one for one in world.workload_admin.list("/api/v1/nodes") if text_at(one, "metadata", "name") == name]
    kinds = {text_at(one, "type") for node in nodes for one in maps_at(node, "status", "addresses")}
    return nodes[0] if "InternalIP" in kinds else None
