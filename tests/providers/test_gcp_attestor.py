"""The node half: the vTPM's evidence under its own name, and the provider ID from the metadata server."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from gcp_world import (
    CSR,
    MACHINE_ID,
    SIGNER,
    challenge_from,
    cloud_in,
    instance_of,
    node_facts,
    node_request,
    platform_of,
    verified,
)
from tpm_world import PIN, SoftTpm, published

from nodeattest_authenticator.enrollment.provider_id import KnowsProviderId
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.gcp.attestor import GcpAttestor
from nodeattest_providers.names import EvidenceBlock, ProviderName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.registry import make_attestor as attestor_by_name
from nodeattest_providers.tpm.attestor import TpmAttestor
from nodeattest_providers.tpm.protocol import FirstEvidence, SecondEvidence, parse_evidence
from nodeattest_sandbox.clouds.gcp.cloud import GoogleCloud
from nodeattest_sandbox.swtpm import SoftwareTpm

BINDING = Binding(EvidenceBlock("gcp/v1"), PIN, SIGNER, CSR.sha256)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Generator[GoogleCloud]:
    with cloud_in(tmp_path_factory.mktemp("cloud")) as running:
        yield running


def pem_of_tpm(tpm: SoftwareTpm) -> str:
    key = tpm.endorsement_certificate("rsa2048").public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@pytest.mark.swtpm
def test_a_node_joins_with_its_vtpm_and_knows_its_provider_id(cloud: GoogleCloud, real_tpm: SoftwareTpm) -> None:
    instance = cloud.add(instance_of(SoftTpm(), keys={"encryptionKey": pem_of_tpm(real_tpm)}))
    platform, facts = platform_of(cloud), node_facts()
    settings = {"tcti": real_tpm.tcti, "metadataEndpoint": cloud.metadata_endpoint(instance)}
    with GcpAttestor(settings) as attestor:
        assert isinstance(attestor, KnowsProviderId)
        assert attestor.provider_id() == MACHINE_ID
        evidence = attestor.attest(BINDING)
        assert set(evidence.data) == {"phase", "ekPub", "akPub"}
        first = node_request(parsed(evidence.data), evidence=evidence)
        challenge = challenge_from(platform, first, facts)
        answer = attestor.attest(BINDING, published(first, challenge))
        assert attestor.endorsement_fingerprint() == real_tpm.endorsement_fingerprint("rsa2048")
    second = node_request(parsed(answer.data), evidence=answer)
    node = verified(platform, second, replace(facts, first_request=first))
    assert node.fingerprints["ek"] == real_tpm.endorsement_fingerprint("rsa2048")
    assert node.boot is not None


def parsed(data: dict[str, JsonValue]) -> FirstEvidence | SecondEvidence:
    return parse_evidence(data)


@pytest.mark.swtpm
def test_another_instances_vtpm_attests_to_nobody(
    cloud: GoogleCloud, real_tpm: SoftwareTpm, other_real_tpm: SoftwareTpm
) -> None:
    cloud.add(instance_of(SoftTpm(), keys={"encryptionKey": pem_of_tpm(real_tpm)}))
    with GcpAttestor({"tcti": other_real_tpm.tcti}) as attestor:
        evidence = attestor.attest(BINDING)
    with pytest.raises(Denied) as caught:
        verified(platform_of(cloud), node_request(parsed(evidence.data), evidence=evidence), node_facts())
    assert caught.value.reason is Reason.ENDORSEMENT_KEY_UNTRUSTED


@pytest.mark.swtpm
def test_the_tpm_provider_still_sends_its_certificate(real_tpm: SoftwareTpm) -> None:
    with TpmAttestor({"tcti": real_tpm.tcti, "endorsementKey": "rsa2048"}) as attestor:
        assert "ekCert" in attestor.attest(BINDING).data


def test_the_catalogue_makes_it() -> None:
    made = attestor_by_name(ProviderName("gcp"), {})
    assert made.two_step
    assert made.versions == (1,)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tcit": "x"}, "did you mean 'tcti'"),
        ({"tcti": ""}, "gcp.tcti"),
        ({"endorsementKey": "rsa1024"}, "gcp.endorsementKey"),
        ({"metadataEndpoint": "https://169.254.169.254"}, "metadata"),
        ({"metadataEndpoint": 7}, "gcp.metadataEndpoint"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, JsonValue], words: str) -> None:
    with pytest.raises(Denied) as caught:
        GcpAttestor(settings)
    assert caught.value.reason is Reason.POLICY_INVALID
    assert words in f"{caught.value.expected} {caught.value.got}"


def test_a_metadata_server_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(Unavailable) as caught:
        GcpAttestor({"metadataEndpoint": "http://127.0.0.1:1"}).provider_id()
    assert "Google Cloud's metadata service at 127.0.0.1:1" in caught.value.detail
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["Node-7", "no de", "node/7", ""])
def test_what_is_no_instances_name_makes_no_provider_id(cloud: GoogleCloud, name: str) -> None:
    odd = instance_of(SoftTpm(), name=name, number=f"5{sum(name.encode())}")
    with pytest.raises(Unavailable):
        GcpAttestor({"metadataEndpoint": cloud.metadata_endpoint(odd)}).provider_id()
