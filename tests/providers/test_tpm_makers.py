"""Chains with the extensions of TPM makers' real authorities, made here; and chains that are made to cost time.

Source of the layouts: the authorities that keylime ships (github.com/keylime/keylime, tpm_cert_store), read in 2026.
Not seen there: AMD, Google, Microsoft vTPM, and any maker's endorsement certificates, which are the profile's here.
Nuvoton's authorities have SETs out of order, which cryptography does not read; so they are refused, with the way out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from tpm_authority import EK_USAGE, SAN, YEAR, Extension, key_usage, leaf_extensions, name_of
from tpm_world import NOW, SoftTpm, parsed

from nodeattest_providers.certificate_chain import MAX_SIGNATURES, ChainError, ChainVerifier
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied
from nodeattest_providers.tpm.config import parse_policy
from nodeattest_providers.tpm.endorsement_certificate import check_certificate

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
POLICY: Final = x509.CertificatePolicies([x509.PolicyInformation(x509.ObjectIdentifier("1.2.276.0.68.1.20.1"), None)])
SIGNS: Final[Extension] = (key_usage("key_cert_sign"), True)
SIGNS_ALL: Final[Extension] = (key_usage("key_cert_sign", "crl_sign"), True)
ENDORSES: Final = x509.ExtendedKeyUsage([EK_USAGE])
LISTS: Final[Extension] = (
    x509.CRLDistributionPoints(
        [x509.DistributionPoint([x509.UniformResourceIdentifier("http://pki.example/ca.crl")], None, None, None)]
    ),
    False,
)


def constraint(path_length: int | None, *, ca: bool = True, critical: bool = True) -> Extension:
    return x509.BasicConstraints(ca=ca, path_length=path_length), critical


MAKERS: Final[dict[str, tuple[str, list[Extension], list[Extension]]]] = {
    "Infineon OPTIGA, RSA": (
        "rsa",
        [SIGNS_ALL, constraint(None)],
        [SIGNS_ALL, constraint(0), LISTS, (POLICY, False), (ENDORSES, False)],
    ),
    "Infineon OPTIGA, elliptic curve": (
        "p384",
        [SIGNS_ALL, constraint(None)],
        [SIGNS_ALL, constraint(0), LISTS, (POLICY, False), (ENDORSES, False)],
    ),
    "Infineon, earlier": ("rsa", [SIGNS, constraint(1), (POLICY, True)], [SIGNS, constraint(0), (POLICY, True)]),
    "ST, RSA": ("rsa", [SIGNS, constraint(1), (POLICY, False)], [(POLICY, True), SIGNS, constraint(0)]),
    "ST, elliptic curve": ("p384", [SIGNS, constraint(1), (POLICY, False)], [(POLICY, True), SIGNS, constraint(0)]),
    "Intel PTT": (
        "p256",
        [constraint(1), SIGNS_ALL],
        [constraint(0), SIGNS_ALL, (ENDORSES, True), (POLICY, True), LISTS],
    ),
    "Nationz": ("p384", [SIGNS_ALL, constraint(None)], [LISTS, (ENDORSES, False), SIGNS_ALL, constraint(0)]),
    "Alibaba Cloud vTPM": ("rsa", [SIGNS_ALL, constraint(None)], [LISTS, SIGNS_ALL, constraint(None)]),
}
"""Keys, the root's extensions and the intermediate's. RSA is of 2,048 bits here, where some roots have 4,096."""


def new_key(kind: str) -> Key:
    curves: dict[str, type[ec.EllipticCurve]] = {"p256": ec.SECP256R1, "p384": ec.SECP384R1, "p521": ec.SECP521R1}
    return rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(curves[kind]())


@dataclass(frozen=True)
class Signer:
    certificate: x509.Certificate
    key: Key

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)


def certificate_of(
    subject: str, key: Key, extensions: list[Extension], issuer: str, by: Key, *, identified: bool = True
) -> x509.Certificate:
    builder = x509.CertificateBuilder(name_of(issuer), name_of(subject), key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(NOW - YEAR).not_valid_after(NOW + YEAR)
    for value, critical in extensions:
        builder = builder.add_extension(value, critical)
    if identified:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key())
        builder = builder.add_extension(authority, critical=False)
    return builder.sign(by, hashes.SHA256())


def root_of(kind: str, extensions: list[Extension]) -> Signer:
    key = new_key(kind)
    return Signer(certificate_of("root", key, extensions, "root", key), key)


def below(parent: Signer, name: str, kind: str, extensions: list[Extension]) -> Signer:
    key, issuer = new_key(kind), parent.certificate.subject.rfc4514_string().removeprefix("CN=")
    return Signer(certificate_of(name, key, extensions, issuer, parent.key), key)


def endorsed(tpm: SoftTpm, by: Signer, **changes: Extension | None) -> bytes:
    chosen = {**leaf_extensions(tpm.ek.public_key()), **changes}
    kept = [extension for extension in chosen.values() if extension is not None]
    issuer = by.certificate.subject.rfc4514_string().removeprefix("CN=")
    return certificate_of("unknown", tpm.ek, kept, issuer, by.key).public_bytes(Encoding.DER)


def problem(tpm: SoftTpm, certificate: bytes, chain: tuple[bytes, ...], *anchors: Signer) -> str | None:
    """Tell why a certificate does not count; None when it does."""
    bundle = "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in anchors)
    trusted = parse_policy({"endorsementCAs": bundle}).anchors
    assert trusted is not None
    ek = parsed(tpm.ek_public)
    try:
        check_certificate(Checks(), ek, certificate, chain, anchors=trusted, now=NOW)
    except Denied as denied:
        return denied.got
    return None


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return SoftTpm()


@pytest.mark.parametrize("maker", MAKERS)
def test_a_makers_chain_counts_with_its_root_or_its_intermediate_as_the_authority(tpm: SoftTpm, maker: str) -> None:
    kind, of_root, of_intermediate = MAKERS[maker]
    root = root_of(kind, of_root)
    intermediate = below(root, "intermediate", kind, of_intermediate)
    certificate = endorsed(tpm, intermediate)
    assert problem(tpm, certificate, (intermediate.der,), root) is None
    assert problem(tpm, certificate, (), intermediate) is None
    assert problem(tpm, certificate, (root.der, intermediate.der, intermediate.der), root) is None
    assert problem(tpm, certificate, (), root) is not None


def test_policies_may_be_critical_and_without_an_extended_usage_the_leaf_names_a_tpm(tpm: SoftTpm) -> None:
    root = root_of("p256", [SIGNS, constraint(None)])
    assert problem(tpm, endorsed(tpm, root, policies=(POLICY, True)), (), root) is None
    assert problem(tpm, endorsed(tpm, root, eku=None, san=SAN), (), root) == "another or none"
    attributes = [x509.NameAttribute(x509.ObjectIdentifier(f"2.23.133.2.{each}"), "id:1") for each in (1, 2, 3)]
    named = x509.SubjectAlternativeName([x509.DirectoryName(x509.Name(attributes))])
    assert problem(tpm, endorsed(tpm, root, eku=None, san=(named, True)), (), root) is None


NO_AUTHORITY: Final[dict[str, tuple[list[Extension], str]]] = {
    "no CA": ([SIGNS, constraint(None, ca=False)], "no CA"),
    "no basic constraints": ([SIGNS], "no CA"),
    "basic constraints that are not critical": ([SIGNS, constraint(0, critical=False)], "not critical"),
    "no key usage": ([constraint(0)], "keyCertSign"),
    "lists only": ([constraint(0), (key_usage("crl_sign"), True)], "keyCertSign"),
    "for servers": (
        [SIGNS, constraint(0), (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False)],
        "2.23.133.8.1",
    ),
    "critical name constraints": (
        [SIGNS, constraint(0), (x509.NameConstraints(None, [x509.DNSName("a")]), True)],
        "critical extension 2.5.29.30",
    ),
}


@pytest.mark.parametrize("name", NO_AUTHORITY)
def test_an_intermediate_that_is_wrong_in_one_thing_issues_nothing(tpm: SoftTpm, name: str) -> None:
    extensions, said = NO_AUTHORITY[name]
    root = root_of("p256", [SIGNS, constraint(None)])
    intermediate = below(root, "intermediate", "p256", extensions)
    assert said in (problem(tpm, endorsed(tpm, intermediate), (intermediate.der,), root) or "")


def test_a_path_length_holds_for_anchors_too(tpm: SoftTpm) -> None:
    root = root_of("p256", [SIGNS, constraint(0)])
    intermediate = below(root, "intermediate", "p256", [SIGNS, constraint(0)])
    assert "path length" in (problem(tpm, endorsed(tpm, intermediate), (intermediate.der,), root) or "")
    assert problem(tpm, endorsed(tpm, root), (), root) is None


def test_an_authority_of_another_curve_is_refused(tpm: SoftTpm) -> None:
    key = ec.generate_private_key(ec.SECP256K1())
    root = Signer(certificate_of("root", key, [SIGNS, constraint(None)], "root", key), key)
    assert "P-256" in (problem(tpm, endorsed(tpm, root), (), root) or "")


def test_looping_intermediates_cost_a_bounded_number_of_signature_checks(tpm: SoftTpm) -> None:
    """Four authorities of one name, each signed with the key of all: every one is an issuer of every other."""
    key = new_key("p521")
    looped = [
        certificate_of("loop", key, [SIGNS, constraint(None)], "loop", key, identified=False).public_bytes(Encoding.DER)
        for _ in range(4)
    ]
    leaf = certificate_of("unknown", tpm.ek, [], "loop", key, identified=False)
    root = root_of("p256", [SIGNS, constraint(None)])
    verifier = ChainVerifier([root.certificate], NOW, EK_USAGE)
    with pytest.raises(ChainError):
        verifier.verify(leaf, looped)
    assert verifier.checked <= MAX_SIGNATURES
    once = ChainVerifier([root.certificate], NOW, EK_USAGE)
    with pytest.raises(ChainError):
        once.verify(leaf, [looped[0]] * 4)
    assert once.checked == 1


def test_what_cannot_be_read_is_named_with_the_way_out() -> None:
    root = root_of("p256", [SIGNS, constraint(None)])
    good = root.certificate.public_bytes(Encoding.PEM).decode()
    odd = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    with pytest.raises(Denied, match=r"certificate 2: .*endorsementKeys.*ValueError"):
        parse_policy({"endorsementCAs": good + odd})
    with pytest.raises(Denied, match="PEM certificates"):
        parse_policy({"endorsementCAs": good + "-----BEGIN CERTIFICATE-----\nMAA="})
