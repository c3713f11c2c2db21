"""Instances of Oracle Cloud: certificates as Oracle's SDKs read them, a metadata service on loopback, the verifier."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from oci_world import OracleCloud, facts_for, issue, metadata_service, ocid, request_of, subject
from worlds import PIN, denied_for

from clouds.authority import Extension, constraint, named, purposes
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import EvidenceBlock, SignerName
from nodeattest_providers.node_interface import Binding
from nodeattest_providers.oci.attestor import OciAttestor
from nodeattest_providers.oci.protocol import parse_identity_certificate
from nodeattest_providers.oci.verifier import OciSigner
from nodeattest_providers.platform import OFFLINE

BINDING = Binding(
    EvidenceBlock("oci/v1"), PIN, SignerName("cluster.x-k8s.io/kube-apiserver-client-kubelet-oci"), bytes(32)
)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> OracleCloud:
    return OracleCloud(tmp_path_factory.mktemp("oci"))


# Names, settings, certificates


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(3, 2048)])
def test_a_certificate_of_another_key_is_denied(cloud: OracleCloud, key: rsa.RSAPrivateKey) -> None:
    made = issue(cloud.issuing, subject(ocid("a")), key.public_key())
    with pytest.raises(Denied, match="another key"):
        parse_identity_certificate(made.public_bytes(Encoding.DER))


def test_a_certificate_that_can_be_read_in_part_only_is_denied(cloud: OracleCloud) -> None:
    key = rsa.generate_private_key(65537, 2048).public_key()
    issued = issue(cloud.issuing, subject(ocid("a")), key).public_bytes(Encoding.DER)
    begin = datetime(2050, 1, 1, tzinfo=UTC)
    late = cloud.issuing.issue(named("instance", *subject(ocid("a"))), key, begin=begin, end=begin + timedelta(days=1))
    for spoilt in (
        issued[:-1],
        issued.replace(b"PKISVC Identity Intermediate", b"\xff" * 28),
        late.public_bytes(Encoding.DER).replace(b"20500101000000Z", b"00000101000000Z"),
    ):
        with pytest.raises(Denied, match="cannot be read"):
            parse_identity_certificate(spoilt)


@pytest.mark.parametrize(
    "extension", [constraint(0), (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b""), True)]
)
async def test_a_ca_or_a_certificate_with_an_unknown_critical_extension_is_no_instances(
    cloud: OracleCloud, extension: Extension
) -> None:
    instance, begin = cloud.launch("a"), datetime.now(UTC) - timedelta(minutes=5)
    usage, name = purposes(ExtendedKeyUsageOID.CLIENT_AUTH), named("instance", *subject(ocid("a")))
    end = begin + timedelta(hours=1)
    made = cloud.issuing.issue(name, instance.key.public_key(), usage, extension, begin=begin, end=end)
    spoilt = replace(instance, certificate=made)
    with denied_for(Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID):
        await cloud.signer().verify_client_attestation_data(request_of(spoilt), facts_for(spoilt))


# The node


async def test_what_the_attestor_makes_of_the_metadata_service_is_attested(cloud: OracleCloud) -> None:
    instance = cloud.launch("a")
    with metadata_service(instance) as url:
        attestor = OciAttestor({"metadataEndpoint": url})
        assert attestor.provider_id() == instance.provider_id
        request = request_of(instance)
        evidence = attestor.attest(request.binding(PIN))
    attested = await cloud.signer().verify_client_attestation_data(
        replace(request, evidence=evidence), facts_for(instance)
    )
    assert (attested.provider_id, attested.fingerprints) == (instance.provider_id, {"instance": instance.ocid})
    assert (attested.proven_node_name, attested.proven_machine_name) == (None, None)


def test_a_key_read_across_a_rotation_is_read_again_and_not_for_ever(cloud: OracleCloud) -> None:
    instance, other = cloud.launch("a"), cloud.launch("b")
    with metadata_service(instance, rotated=[other, other]) as url:
        assert OciAttestor({"metadataEndpoint": url}).attest(BINDING)
    with (
        metadata_service(instance, rotated=[other] * 9) as url,
        pytest.raises(Unavailable, match="not the certificate's"),
    ):
        OciAttestor({"metadataEndpoint": url}).attest(BINDING)


def test_a_metadata_service_of_something_else_is_unavailable(cloud: OracleCloud) -> None:
    for units, what in ((subject(ocid("a"), certtype="service"), "something else"), ([], "a subject without")):
        with metadata_service(cloud.launch("a", units)) as url, pytest.raises(Unavailable, match=what):
            OciAttestor({"metadataEndpoint": url}).provider_id()
    with pytest.raises(Denied):
        OciAttestor({"metadataendpoint": "http://127.0.0.1:1"})


# The verifier


async def test_nobody_is_trusted_without_a_bundle(cloud: OracleCloud) -> None:
    instance = cloud.launch("a")
    with pytest.raises(Unavailable, match=r"no platforms\.oci\.trustBundle") as waits:
        await OciSigner(platform=OFFLINE).verify_client_attestation_data(request_of(instance), facts_for(instance))
    assert [check.name for check in waits.value.checks][-1] == "identity certificate"
