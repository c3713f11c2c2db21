"""A Shielded VM joins, and the rules that keep others out, against a cloud that really answers; the attacks are D6."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from gcp_world import (
    CSR,
    MACHINE_ID,
    NAME,
    NUMBER,
    PROJECT,
    SIGNER,
    ZONE,
    Joining,
    challenge_from,
    cloud_in,
    instance_of,
    joining,
    node_facts,
    node_request,
    platform_of,
    rsa_tpm,
    verified,
)
from tpm_world import PIN, SoftTpm, parsed, published

from clouds.gcp.cloud import GoogleCloud
from clouds.gcp.instances import CloudInstance
from nodeattest_authenticator.enrollment.provider_id import KnowsProviderId
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.gcp.attestor import GcpAttestor
from nodeattest_providers.gcp.verifier import GcpSigner
from nodeattest_providers.identifiers import EvidenceBlock
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, Platform
from nodeattest_providers.tpm.protocol import FirstEvidence, SecondEvidence, parse_evidence
from nodeattest_sandbox.swtpm import SoftwareTpm


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return rsa_tpm()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[GoogleCloud]:
    with cloud_in(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def cloud(running: GoogleCloud, tpm: SoftTpm) -> GoogleCloud:
    running.instances = [instance_of(tpm)]
    return running


@pytest.fixture(scope="module")
def platform(running: GoogleCloud) -> Platform:
    return platform_of(running)


@pytest.fixture
def sound(cloud: GoogleCloud, platform: Platform, tpm: SoftTpm) -> Joining:
    assert cloud.instances
    return joining(platform, tpm)


def changed(cloud: GoogleCloud, **changes: object) -> CloudInstance:
    return cloud.add(replace(cloud.instances[0], **changes))


def test_a_shielded_vm_joins_and_its_instance_is_pinned(sound: Joining, tpm: SoftTpm) -> None:
    node = sound.verify()
    assert node.provider == "gcp"
    assert node.provider_id == MACHINE_ID
    assert node.proven_node_name == NAME
    assert node.fingerprints == {"ek": tpm.fingerprint, "ak": parsed(tpm.ak_public).name.hex(), "instance": NUMBER}
    assert node.boot is not None
    assert all(check.passed for check in node.checks)
    assert {"project", "instance runs", "endorsement key: the instance's", "quote binding"} <= {
        check.name for check in node.checks
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"zones": ["europe-west4-b"], "regions": ["europe-west4"]},
        {"labels": {"role": "node"}},
        {"serviceAccounts": ["nodes@fleet-project.iam.gserviceaccount.com"]},
        {"requireSecureBoot": True, "requireIntegrityMonitoring": True},
        {"pcrs": {"selection": [0, 7]}},
    ],
)
def test_an_instance_that_the_policy_wants_joins(
    cloud: GoogleCloud, platform: Platform, tpm: SoftTpm, settings: dict[str, JsonValue]
) -> None:
    account = "nodes@fleet-project.iam.gserviceaccount.com"
    changed(cloud, labels={"role": "node", "team": "a"}, service_account=account)
    assert joining(platform, tpm, {"projects": [PROJECT], **settings}).verify().checks


# Order and offline


def test_offline_the_platform_is_not_asked(tpm: SoftTpm) -> None:
    with pytest.raises(Unavailable) as caught:
        verified(OFFLINE, node_request(tpm.first()), node_facts())
    assert caught.value.reason is Reason.PLATFORM_UNAVAILABLE
    with pytest.raises(Unavailable):
        asyncio.run(GcpSigner(platform=OFFLINE).addresses(node_facts()))


def test_the_names_and_addresses_are_those_of_the_instance_now(cloud: GoogleCloud, platform: Platform) -> None:
    changed(cloud, internal_ip="10.0.0.9", external_ip="198.51.100.4")

    async def ask() -> tuple[tuple[str, str], ...]:
        signer = GcpSigner(platform=platform)
        try:
            return await signer.addresses(node_facts())
        finally:
            await signer.aclose()

    assert set(asyncio.run(ask())) == {
        ("InternalIP", "10.0.0.9"),
        ("ExternalIP", "198.51.100.4"),
        ("Hostname", NAME),
        ("InternalDNS", f"{NAME}.{ZONE}.c.{PROJECT}.internal"),
    }


BINDING = Binding(EvidenceBlock("gcp/v1"), PIN, SIGNER, CSR.sha256)


@pytest.fixture(scope="module")
def attestor_cloud(tmp_path_factory: pytest.TempPathFactory) -> Generator[GoogleCloud]:
    with cloud_in(tmp_path_factory.mktemp("cloud")) as running:
        yield running


def pem_of_tpm(tpm: SoftwareTpm) -> str:
    key = tpm.endorsement_certificate("rsa2048").public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@pytest.mark.swtpm
def test_a_node_joins_with_its_vtpm_and_knows_its_provider_id(
    attestor_cloud: GoogleCloud, real_tpm: SoftwareTpm
) -> None:
    instance = attestor_cloud.add(instance_of(SoftTpm(), keys={"encryptionKey": pem_of_tpm(real_tpm)}))
    platform, facts = platform_of(attestor_cloud), node_facts()
    settings = {"tcti": real_tpm.tcti, "metadataEndpoint": attestor_cloud.metadata_endpoint(instance)}
    with GcpAttestor(settings) as attestor:
        assert isinstance(attestor, KnowsProviderId)
        assert attestor.provider_id() == MACHINE_ID
        evidence = attestor.attest(BINDING)
        assert set(evidence.data) == {"phase", "ekPub", "akPub"}
        first = node_request(attestor_parsed(evidence.data), evidence=evidence)
        challenge = challenge_from(platform, first, facts)
        answer = attestor.attest(BINDING, published(first, challenge))
        assert attestor.endorsement_fingerprint() == real_tpm.endorsement_fingerprint("rsa2048")
    second = node_request(attestor_parsed(answer.data), evidence=answer)
    node = verified(platform, second, replace(facts, first_request=first))
    assert node.fingerprints["ek"] == real_tpm.endorsement_fingerprint("rsa2048")
    assert node.boot is not None


def attestor_parsed(data: dict[str, JsonValue]) -> FirstEvidence | SecondEvidence:
    return parse_evidence(data)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tcit": "x"}, "did you mean 'tcti'"),
        ({"metadataEndpoint": 7}, "gcp.metadataEndpoint"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, JsonValue], words: str) -> None:
    with pytest.raises(Denied) as caught:
        GcpAttestor(settings)
    assert caught.value.reason is Reason.POLICY_INVALID
    assert words in f"{caught.value.expected} {caught.value.got}"


@pytest.mark.parametrize("name", ["Node-7", "no de", "node/7", ""])
def test_what_is_no_instances_name_makes_no_provider_id(attestor_cloud: GoogleCloud, name: str) -> None:
    odd = instance_of(SoftTpm(), name=name, number=f"5{sum(name.encode())}")
    with pytest.raises(Unavailable):
        GcpAttestor({"metadataEndpoint": attestor_cloud.metadata_endpoint(odd)}).provider_id()
