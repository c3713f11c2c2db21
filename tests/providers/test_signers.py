"""What every provider's signer does where its own evidence does not matter: defaults, empty settings, rare inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import pytest
from composite_world import composite, sound_exchange
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tpm_world import (
    EK_USAGE,
    NOW,
    SoftTpm,
    ak_prefix,
    endorse,
    facts_of,
    ledger,
    new_key,
    parsed,
    request_of,
    rsa_ak_prefix,
)
from worlds import denied_for

from clouds.authority import Authority, PublicKey, certify, constraint, rsa_key
from clouds.cms import azure_form
from nodeattest_providers import cms
from nodeattest_providers.aws.config import parse_policy as aws_policy
from nodeattest_providers.azure.config import parse_policy as azure_policy
from nodeattest_providers.azure.verifier import foreign_name
from nodeattest_providers.certificate_chain import ChainError, ChainVerifier
from nodeattest_providers.config_fields import parse_setting
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.gcp.config import parse_policy as gcp_policy
from nodeattest_providers.identifiers import ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.insecure.attestor import InsecureAttestor
from nodeattest_providers.keys import check_key_type, check_public_key
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.null.verifier import NullSigner
from nodeattest_providers.oci.verifier import parse_policy as oci_policy
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.tpm.key_templates import Signature, signature_is_valid
from nodeattest_providers.tpm.protocol import make_credential
from nodeattest_providers.tpm.structures import Alg, sized
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest

RSA: Final = Authority.root("metadata.azure.com", key=rsa_key())
MODULUS: Final = rsa_key().public_key().public_numbers().n
EMPTY: Final[Mapping[ProviderName, Mapping[str, JsonValue]]] = {}


class Minimal(ClusterAPISigner):
    """A provider's signer that overrides nothing that has a default."""

    provider = ProviderName("minimal")
    secure = True

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        raise NotImplementedError

    verify_serving_attestation_data = verify_client_attestation_data


@pytest.mark.parametrize(
    ("parse", "allowed"),
    [
        (aws_policy, "accounts"),
        (azure_policy, "subscriptions"),
        (gcp_policy, "projects"),
        (oci_policy, "tenancies"),
    ],
)
def test_a_cloud_without_settings_admits_nobody(
    parse: Callable[[Mapping[str, JsonValue]], object], allowed: str
) -> None:
    assert getattr(parse({}), allowed) == frozenset()


def test_a_provider_that_proves_no_node_names_says_so_and_an_unknown_one_may_prove_any() -> None:
    for provider in ("challenge", "oci", "insecure"):
        assert make_signer(ProviderName(provider), OFFLINE).provable_names(EMPTY) == {}
    parts: dict[ProviderName, dict[str, JsonValue]] = {ProviderName("composite"): {"allOf": ["tpm", "challenge"]}}
    assert composite().provable_names(parts) == {}
    assert composite().provable_names({ProviderName("composite"): {"allOf": ["aws", "challenge"]}}) is None
    assert Minimal().provable_names(EMPTY) is None


def test_a_signer_without_a_platform_knows_no_addresses_keys_or_records() -> None:
    signer, facts, key = Minimal(), facts_of({}), new_key("ecc-p256").public_key()
    assert asyncio.run(signer.addresses(facts)) is None
    assert signer.check_recorded(facts, None) == ("the provider minimal cannot check records",)
    with pytest.raises(Unavailable, match="endorsement keys"):
        asyncio.run(signer.endorsement_key(ProviderID("x://1"), accounts=frozenset(), shown=key))
    aws = make_signer(ProviderName("aws"), OFFLINE)
    with pytest.raises(Unavailable, match="EC2"):
        asyncio.run(aws.endorsement_key(ProviderID("x://1"), accounts=frozenset(), shown=key))
    asyncio.run(aws.aclose())


def test_a_verification_without_checks_does_not_exist() -> None:
    with pytest.raises(ValueError, match="without checks"):
        AttestedNode(provider=ProviderName("tpm"), provider_id=ProviderID("x://1"), checks=())


async def test_the_null_provider_accepts_a_block_of_its_own() -> None:
    signer, foreign = NullSigner(), request_of(SoftTpm().first())
    request = replace(foreign, evidence=Evidence(ProviderName("null"), 1, {}))
    for verify in (signer.verify_client_attestation_data, signer.verify_serving_attestation_data):
        assert (await verify(request, facts_of({}))).provider_id == request.csr.provider_id
    with denied_for(Reason.PROVIDER_MISMATCH):
        await signer.verify_client_attestation_data(foreign, facts_of({}))


def test_an_attestor_without_a_device_knows_no_provider_id() -> None:
    assert InsecureAttestor({}).provider_id() is None


def test_the_insecure_provider_has_no_serving_signer() -> None:
    with pytest.raises(ValueError, match="serving"):
        signer_for(ProviderName("insecure"), Purpose.SERVING)


@pytest.mark.parametrize("word", ["tcti", "=1", ""])
def test_a_setting_without_name_or_value_is_none(word: str) -> None:
    assert parse_setting(word) is None


def test_a_composite_of_a_part_that_is_not_installed_is_left_to_the_controller() -> None:
    settings: dict[str, JsonValue] = {"allOf": ["tpm", "elsewhere"]}
    signer = composite()
    signer.check_settings(settings)
    signer.check_settings(settings)  # by the parts that were made at first
    tpm, pins = SoftTpm(), ("tpm.ek", "elsewhere.x")
    facts = facts_of(
        settings,
        ledger=replace(ledger(), fingerprints=dict.fromkeys(pins, tpm.fingerprint)),
        sections={ProviderName("tpm"): tpm.settings},
    )
    assert "elsewhere: not installed here" in composite().check_recorded(facts, None)


# Certificates


def unreadable(certificate: x509.Certificate, name: str) -> x509.Certificate:
    """Return the certificate with a name that is not UTF-8."""
    der = certificate.public_bytes(Encoding.DER).replace(name.encode(), b"\xff" * len(name))
    return x509.load_der_x509_certificate(der)


def test_a_signer_whose_names_cannot_be_read_has_signed_nothing() -> None:
    spoilt = unreadable(RSA.certificate, "metadata.azure.com")
    assert foreign_name(spoilt, "azure.com") == "no names that can be read"
    read = cms.parse(azure_form(b"{}", RSA).der())
    assert not read.signer.is_named_by(spoilt)


def test_an_intermediate_that_cannot_be_read_makes_no_chain() -> None:
    root = Authority.root("TPM root")
    leaf = x509.load_der_x509_certificate(endorse(root, new_key("ecc-p256")))
    spoilt = unreadable(root.below("TPM issuer").certificate, "TPM")
    for intermediate in (b"", spoilt.public_bytes(Encoding.DER)):
        with pytest.raises(ChainError, match="cannot be read"):
            ChainVerifier(anchors=(root.certificate,), now=NOW, usage=EK_USAGE).verify(leaf, [intermediate])


@pytest.mark.parametrize(
    ("public", "algorithm", "problem"),
    [
        (ec.generate_private_key(ec.SECP256K1()).public_key(), None, "neither RSA"),
        (
            rsa.RSAPublicNumbers(2**32 + 1, MODULUS).public_key(),
            None,
            "exponent",
        ),
        (None, hashes.SHA224(), "other than SHA-256"),
    ],
    ids=["curve", "exponent", "hash"],
)
def test_an_issuers_key_and_its_signature_are_of_kinds_that_count(
    public: PublicKey | None, algorithm: hashes.SHA224 | None, problem: str
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    anchor = certify("maker", public or key.public_key(), "maker", key, constraint())
    leaf = certify("leaf", key.public_key(), "maker", key, algorithm=algorithm)
    with pytest.raises(ChainError, match=problem):
        ChainVerifier(anchors=(anchor,), now=NOW, usage=EK_USAGE).verify(leaf, [])


def test_a_signature_by_an_algorithm_that_nobody_knows_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    maker = Authority.root("maker", key=key)
    leaf = maker.issue("leaf", key.public_key()).public_bytes(Encoding.DER)
    unknown = leaf.replace(bytes.fromhex("2a8648ce3d040302"), bytes.fromhex("2a8648ce3d04037f"))
    verifier = ChainVerifier(anchors=(maker.certificate,), now=NOW, usage=EK_USAGE)
    with pytest.raises(ChainError, match="other than SHA-256"):
        verifier.verify(x509.load_der_x509_certificate(unknown), [])


# TPM keys


def test_a_signature_is_valid_by_the_keys_own_scheme_only() -> None:
    ak = parsed(SoftTpm().ak_public)
    assert not signature_is_valid(ak, Signature(Alg.RSASSA, Alg.SHA256, b""), b"message")
    key = rsa.generate_private_key(65537, 2048)
    modulus = key.public_key().public_numbers().n.to_bytes(256, "big")
    made = Signature(Alg.RSASSA, Alg.SHA256, key.sign(b"message", padding.PKCS1v15(), hashes.SHA256()))
    ak = parsed(rsa_ak_prefix(2048) + sized(modulus))
    assert signature_is_valid(ak, made, b"message")
    assert not signature_is_valid(ak, made, b"another message")


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP521R1()), rsa.generate_private_key(3, 2048)])
def test_an_endorsement_key_is_of_a_kind_that_a_template_makes(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
) -> None:
    with pytest.raises(ValueError, match="RSA 2048"):
        check_key_type(key.public_key())


def test_a_credential_is_no_longer_than_a_digest_and_its_key_encrypts() -> None:
    ek = parsed(SoftTpm().ek_public)
    with pytest.raises(ValueError, match="at most a digest"):
        make_credential(ek, b"name", bytes(65), random=bytes)
    with pytest.raises(ValueError, match="symmetric"):
        make_credential(replace(ek, symmetric=None), b"name", b"secret", random=bytes)


@pytest.mark.parametrize(
    ("ak", "problem"),
    [
        (ak_prefix(symmetric="0006" + "0030" + "0043"), "AES key"),
        (rsa_ak_prefix(2048) + sized(bytes(255) + b"\x01"), "odd modulus"),
    ],
)
def test_a_public_area_with_an_impossible_number_is_malformed(ak: bytes, problem: str) -> None:
    with pytest.raises(Denied, match=problem):
        parsed(ak)


def test_an_rsa_structure_under_another_algorithm_is_no_rsa_key() -> None:
    spki = RSA.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    check_public_key(spki)
    pss = spki.replace(bytes.fromhex("2a864886f70d010101"), bytes.fromhex("2a864886f70d01010a"))
    with denied_for(Reason.KEY_NOT_ALLOWED):
        check_public_key(pss)


def test_a_composite_request_names_its_first_request_once_it_answers_one() -> None:
    exchange = sound_exchange()
    signer = composite()
    assert signer.first_request(exchange.first) is None
    answer = replace(exchange.first, evidence=Evidence(ProviderName("composite"), 1, exchange.answer()))
    assert signer.first_request(answer) == exchange.ref
