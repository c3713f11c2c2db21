"""One story for each provider: a machine joins, serves and renews, and a thief does not. Every part is a process."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

import pytest
from cloud_fleets import CLOUDS, CloudInstances, cloud_instances
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from filing_requests import Wanted, ends, file_request
from polling import eventually
from world import NAMESPACE, Agent, Controller, World

from clouds.aws import SandboxAws
from nodeattest_controller import configfile
from nodeattest_providers.errors import Reason
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at

pytestmark = pytest.mark.swtpm


# These run before the module's controller does.


def test_a_second_replica_takes_over_when_the_leader_is_killed(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    with ExitStack() as stack:
        first, second = (world.controller(log=f"replica-{n}.log") for n in range(2))
        stack.enter_context(first)
        world.await_service(first)
        stack.enter_context(second)
        world.machine("before")
        assert ends(file_request(world, Wanted(node="before"))) == "issued"
        assert second.said("connected") is None
        first.kill()
        world.machine("after")
        assert ends(file_request(world, Wanted(node="after"))) == "issued"
        assert len(list(maps_at(world.ledger("before"), "spec", "issued"))) == 1


def test_a_denial_is_told_to_operators_with_what_was_expected_and_found(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    world.machine("told")
    with world.controller("--leader-elect", "false", log="told.log") as running:
        world.await_service(running)
        filed = file_request(world, Wanted(node="somebody", provider_id="sandbox://told"))
        assert ends(filed) == "Denied:NodeNameMismatch"
        events = f"/api/v1/namespaces/{NAMESPACE}/events"
        event = eventually(
            lambda: next((e for e in world.admin.list(events) if filed.name in text_at(e, "message")), None),
            what="the Event",
        )
    subject = text_at(event, "involvedObject", "kind"), text_at(event, "involvedObject", "name")
    assert (text_at(event, "reason"), subject) == ("NodeNameMismatch", ("Machine", "told"))
    assert "expected told" in text_at(event, "message")
    assert "told" not in text_at(next(maps_at(filed.read(), "status", "conditions")), "message")


# The stories


@pytest.fixture(scope="module")
def clouds(world: World, aws: SandboxAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudInstances]:
    with cloud_instances(world, aws, tmp_path_factory.mktemp("clouds")) as running:
        yield running


@pytest.fixture(scope="module")
def controller(world: World, clouds: CloudInstances) -> Iterator[Controller]:
    composite: JsonMap = {"anyOf": [{"allOf": ["tpm", "challenge"]}]}
    attestors = ["tpm", "challenge", "composite", *CLOUDS]
    world.set_policy(authorizedAttestors=[*attestors], composite=composite, **clouds.sections())
    head = {"apiVersion": configfile.API_VERSION, "kind": configfile.KIND}
    path = world.directory / "clouds.json"
    path.write_text(json.dumps({**head, "platforms": clouds.platforms()}))
    with world.controller("--config", str(path), "--leader-elect", "false", log="join.log") as running:
        world.await_service(running)
        yield running


@dataclass(frozen=True)
class Enrolled:
    """A machine's agent, its address, and what a thief has in place of its proofs."""

    agent: Agent
    address: str
    thiefs: Mapping[str, str]


def with_proofs(world: World, name: str, provider: str, *, tpm: bool, secret: bool) -> Enrolled:
    """Make a Machine whose TPM or secret the management cluster knows."""
    address = f"10.7.0.{len(world.requests()) % 200 + 1}"
    addresses = [("Hostname", name), ("InternalIP", address)]
    world.machine(name, tpm=world.tpm(name) if tpm else None, addresses=addresses)
    proofs: list[dict[str, str]] = []
    for owner in (name, f"{name}-thief"):
        path = world.directory / f"{owner}.secret"
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
        found = {"tpm.tcti": world.tpm(owner).tcti} if tpm else {}
        proofs.append(found | ({"challenge.secretFile": str(path)} if secret else {}))
    if secret:
        world.keep_secret(f"{name}-attestation", secret=(world.directory / f"{name}.secret").read_bytes())
    own, thiefs = ({key.removeprefix(f"{provider}."): value for key, value in each.items()} for each in proofs)
    return Enrolled(world.agent(name, provider, **own), address, thiefs)


def of_a_cloud(clouds: CloudInstances, name: str, provider: str, **changes: str) -> Enrolled:
    instance, agent = clouds.enrolled(provider, name, **changes)
    thief = clouds.launch(provider, f"{name}-thief", **changes)
    return Enrolled(agent, instance.address, thief.settings)


Story = Callable[[CloudInstances, str], Enrolled]
STORIES: Final[Mapping[str, tuple[Story, Reason]]] = {
    "tpm": (lambda c, n: with_proofs(c.world, n, "tpm", tpm=True, secret=False), Reason.ENDORSEMENT_KEY_UNTRUSTED),
    "challenge": (lambda c, n: with_proofs(c.world, n, "challenge", tpm=False, secret=True), Reason.PROOF_INVALID),
    "composite": (
        lambda c, n: with_proofs(c.world, n, "composite", tpm=True, secret=True),
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
    ),
    "aws": (lambda c, n: of_a_cloud(c, n, "aws"), Reason.PLATFORM_INSTANCE_MISMATCH),
    "azure": (lambda c, n: of_a_cloud(c, n, "azure"), Reason.PLATFORM_INSTANCE_MISMATCH),
    "scale-set": (lambda c, n: of_a_cloud(c, n, "azure", scale_set="Pool"), Reason.PLATFORM_INSTANCE_MISMATCH),
    "gcp": (lambda c, n: of_a_cloud(c, n, "gcp"), Reason.ENDORSEMENT_KEY_UNTRUSTED),
    "oci": (lambda c, n: of_a_cloud(c, n, "oci"), Reason.PLATFORM_INSTANCE_MISMATCH),
}
"""How a machine of each kind is enrolled, and why a thief is refused."""


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize("story", STORIES)
def test_a_machine_joins_serves_and_renews_and_a_thief_does_not(
    world: World, clouds: CloudInstances, story: str
) -> None:
    enroll, reason = STORIES[story]
    name = f"{story}-whole"
    enrolled = enroll(clouds, name)
    agent = enrolled.agent
    path = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines/{name}"
    provider_id = text_at(world.admin.get(path), "spec", "providerID")
    directory = agent.directory / "thief"
    thief = replace(agent, directory=directory, settings=enrolled.thiefs, provider_id=provider_id)
    refused = thief.join(world.token())
    assert refused.returncode == 1
    assert reason in refused.stderr
    assert world.ledger(name) == {}

    serving = ["--serving-ip-address", enrolled.address] if enrolled.address else []
    joined = agent.join(world.token(), *serving)
    assert joined.returncode == 0, joined.stderr
    ledger = world.ledger(name)
    assert text_at(ledger, "spec", "nodeName") == agent.node_name
    assert text_at(ledger, "spec", "providerID") == provider_id
    if agent.provider == "composite":
        assert set(map_at(ledger, "spec", "fingerprints")) == {"tpm.ek", "tpm.ak", "challenge.secret"}
    if serving:
        check_serving(world, agent, enrolled.address)
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    issued = {text_at(one, "serial") for one in maps_at(world.ledger(name), "spec", "issued")}
    assert len(issued) == (3 if serving else 2)
    assert thief.join(world.token()).returncode == 1


def check_serving(world: World, agent: Agent, address: str) -> None:
    """Require that kubelet's serving certificate has the node's name, its one address, and nothing else."""
    certificate = x509.load_pem_x509_certificate((agent.directory / "cache" / "serving.pem").read_bytes())
    ca = x509.load_pem_x509_certificate(world.workload.ca_certificate.read_bytes())
    assert certificate.subject.rfc4514_string() == f"CN=system:node:{agent.node_name},O=system:nodes"
    extensions = certificate.extensions
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [agent.node_name]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address(address)]
    verifier = PolicyBuilder().store(Store([ca])).build_server_verifier(x509.IPAddress(ip_address(address)))
    assert verifier.verify(certificate, []) == [certificate, ca]
