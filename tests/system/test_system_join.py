"""A machine joins, serves and renews, another one is refused: real processes over TLS, on sandbox and real servers."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address
from types import FunctionType

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from world import NAMESPACE, Agent, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.swtpm import SoftwareTpm

ADDRESSES = {"with-a-tpm": "10.7.0.1", "with-a-secret": "10.7.0.2"}


def machine(world: World, name: str, tpm: SoftwareTpm | None = None) -> None:
    world.machine(name, tpm=tpm, addresses=[("Hostname", name), ("InternalIP", ADDRESSES[name])])


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["tpm", "challenge"])
    with world.controller("--leader-elect", "false", log="join.log") as running:
        world.await_service(running)
        yield running


def with_a_tpm(world: World, name: str) -> tuple[Agent, Mapping[str, str]]:
    """Make a Machine and its agent, and return the settings of a thief, too."""
    tpm = world.tpm(name)
    machine(world, name, tpm)
    return world.agent(name, "tpm", tcti=tpm.tcti), {"tcti": world.tpm("a-thiefs").tcti}


def with_a_secret(world: World, name: str) -> tuple[Agent, Mapping[str, str]]:
    value = secrets.token_hex(32)
    machine(world, name)
    body: JsonMap = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-attestation"},
        "data": {"secret": base64.b64encode(value.encode()).decode()},
    }
    world.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
    paths = {of: world.directory / f"{of}.secret" for of in (name, "a-thiefs")}
    for of, path in paths.items():
        path.touch(mode=0o600)
        path.write_text(value if of == name else secrets.token_hex(32))
    own, thiefs = ({"secretFile": str(path)} for path in paths.values())
    return world.agent(name, "challenge", **own), thiefs


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize("made", [with_a_tpm, with_a_secret])
def test_a_machine_joins_serves_and_renews_and_a_thief_does_not(world: World, made: FunctionType) -> None:
    name = made.__name__.replace("_", "-")
    agent, thiefs = made(world, name)
    thief = replace(agent, directory=agent.directory / "thief", settings=thiefs)
    assert thief.join(world.token()).returncode == 1
    assert world.ledger(name) == {}
    joined = agent.join(world.token(), "--serving-ip-address", ADDRESSES[name])
    assert joined.returncode == 0, joined.stderr
    ledger = world.ledger(name)
    assert text_at(ledger, "spec", "nodeName") == name
    if agent.provider == "tpm":
        assert text_at(ledger, "spec", "fingerprints", "tpm.ek") == world.tpm(name).endorsement_fingerprint()
    check_serving(world, agent)
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    assert len({text_at(one, "serial") for one in maps_at(world.ledger(name), "spec", "issued")}) == 3
    assert thief.join(world.token()).returncode == 1


def check_serving(world: World, agent: Agent) -> None:
    """The certificate that kubelet serves has the node's name and address, and no others."""
    certificate = x509.load_pem_x509_certificate((agent.directory / "cache" / "serving.pem").read_bytes())
    ca = x509.load_pem_x509_certificate(world.workload.ca_certificate.read_bytes())
    assert certificate.subject.rfc4514_string() == f"CN=system:node:{agent.node_name},O=system:nodes"
    extensions = certificate.extensions
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [agent.node_name]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address(ADDRESSES[agent.node_name])]
    verifier = (
        PolicyBuilder().store(Store([ca])).build_server_verifier(x509.IPAddress(ip_address(ADDRESSES[agent.node_name])))
    )
    assert verifier.verify(certificate, []) == [certificate, ca]
