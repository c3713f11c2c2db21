"""Which endorsement keys are trusted for which Machine, and which endorsement certificates count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from tpm_authority import (
    EK_USAGE,
    YEAR,
    Authority,
    Extension,
    key_usage,
    leaf_extensions,
    self_signed,
)
from tpm_world import MACHINE, NOW, SoftTpm, facts_of, ledger, machine, new_key, parsed, request_of, verify

from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.names import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES
from nodeattest_providers.tpm.structures import sized
from nodeattest_providers.verifier_interface import Facts

VECTORS = Path(__file__).parents[1] / "vectors"
UNTRUSTED = Reason.ENDORSEMENT_KEY_UNTRUSTED
INVALID = Reason.ENDORSEMENT_CERTIFICATE_INVALID


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return SoftTpm()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.root()


def outcome(tpm: SoftTpm, facts: Facts, **evidence: object) -> Reason | None:
    """Tell why a first request is refused; None when it is challenged."""
    try:
        verify(request_of(tpm.first(**evidence)), facts)
    except ChallengeRequired:
        return None
    except Denied as denied:
        return denied.reason
    raise AssertionError("a first request never attests a node")


def allow(fingerprint: str, provider_id: str = MACHINE) -> dict[str, JsonValue]:
    return {"endorsementKeys": [{"providerID": provider_id, "sha256": fingerprint}]}


OTHER = "sha256:" + "0f" * 32


def test_without_any_source_of_trust_a_genuine_key_is_denied(tpm: SoftTpm) -> None:
    assert outcome(tpm, facts_of({})) is UNTRUSTED


def test_the_platforms_objects_decide_and_agree_with_each_other_and_with_the_allow_list(tpm: SoftTpm) -> None:
    own = machine(endorsement_keys={"infrastructure machine": tpm.fingerprint})
    other = machine(endorsement_keys={"infrastructure machine": OTHER})
    assert outcome(tpm, facts_of({}, machine=own)) is None
    assert outcome(tpm, facts_of(allow(tpm.fingerprint), machine=own)) is None
    assert outcome(tpm, facts_of(allow(OTHER), machine=own)) is UNTRUSTED
    assert outcome(tpm, facts_of(allow(tpm.fingerprint), machine=other)) is UNTRUSTED
    both = {"BareMetalHost": tpm.fingerprint, "Metal3Machine": tpm.fingerprint}
    assert outcome(tpm, facts_of({}, machine=machine(endorsement_keys=both))) is None
    for source in both:
        disagreeing = machine(endorsement_keys={**both, source: OTHER})
        assert outcome(tpm, facts_of({"trustOnFirstUse": True}, machine=disagreeing)) is UNTRUSTED


def test_a_key_that_is_listed_for_another_machine_is_denied_whatever_the_platform_names(tpm: SoftTpm) -> None:
    own = machine(endorsement_keys={"infrastructure machine": tpm.fingerprint})
    listed: dict[str, JsonValue] = {"providerID": "sandbox://another", "sha256": tpm.fingerprint}
    assert outcome(tpm, facts_of({"endorsementKeys": [listed]}, machine=own)) is UNTRUSTED


def test_the_platforms_annotation_on_the_machine_is_not_the_platforms_word(tpm: SoftTpm) -> None:
    mistaken = machine(annotations={ANNOTATION_TPM_ENDORSEMENT_KEY: tpm.fingerprint})
    assert outcome(tpm, facts_of({}, machine=mistaken)) is UNTRUSTED


def test_an_allow_list_entry_of_the_machine_decides(tpm: SoftTpm, authority: Authority) -> None:
    assert outcome(tpm, facts_of(allow(tpm.fingerprint))) is None
    chain: dict[str, JsonValue] = {"endorsementCAs": authority.pem, "trustOnFirstUse": True}
    certificate = authority.endorse(tpm.ek.public_key())
    facts = facts_of({**chain, **allow(OTHER)})
    assert outcome(tpm, facts, ek_certificate=certificate) is UNTRUSTED


def test_a_key_that_is_listed_for_another_machine_is_denied_even_on_first_use(
    tpm: SoftTpm, authority: Authority
) -> None:
    chain: dict[str, JsonValue] = {"endorsementCAs": authority.pem, "trustOnFirstUse": True}
    certificate = authority.endorse(tpm.ek.public_key())
    listed = facts_of({**chain, **allow(tpm.fingerprint, "metal://rack-1/8")})
    assert outcome(tpm, facts_of(chain), ek_certificate=certificate) is None
    assert outcome(tpm, listed, ek_certificate=certificate) is UNTRUSTED


def test_a_chain_alone_is_denied_and_says_how_to_register(tpm: SoftTpm, authority: Authority) -> None:
    certificate = authority.endorse(tpm.ek.public_key())
    with pytest.raises(Denied, match=r"spec\.tpm\.endorsementKeys") as denied:
        verify(request_of(tpm.first(ek_certificate=certificate)), facts_of({"endorsementCAs": authority.pem}))
    assert denied.value.reason is UNTRUSTED
    assert tpm.fingerprint not in denied.value.remedy


def test_an_annotation_on_the_machine_needs_the_chain_besides(tpm: SoftTpm, authority: Authority) -> None:
    certificate = authority.endorse(tpm.ek.public_key())
    bound = machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})
    other = machine(annotations={MACHINE_ANNOTATION: OTHER})
    settings: dict[str, JsonValue] = {"endorsementCAs": authority.pem, "trustOnFirstUse": True}
    assert outcome(tpm, facts_of(settings, machine=bound), ek_certificate=certificate) is None
    assert outcome(tpm, facts_of(settings, machine=other), ek_certificate=certificate) is UNTRUSTED
    assert outcome(tpm, facts_of(settings, machine=bound)) is UNTRUSTED
    assert outcome(tpm, facts_of({}, machine=bound), ek_certificate=certificate) is UNTRUSTED
    assert outcome(tpm, facts_of(settings, machine=bound), ek_certificate=self_signed(tpm.ek)) is INVALID


def test_first_use_needs_the_policy_and_the_chain_or_the_ledgers_pin(tpm: SoftTpm, authority: Authority) -> None:
    certificate = authority.endorse(tpm.ek.public_key())
    first_use: dict[str, JsonValue] = {"trustOnFirstUse": True}
    with_authority: dict[str, JsonValue] = {**first_use, "endorsementCAs": authority.pem}
    pinned = ledger(fingerprints={"ek": tpm.fingerprint})
    assert outcome(tpm, facts_of(with_authority), ek_certificate=certificate) is None
    assert outcome(tpm, facts_of(with_authority)) is UNTRUSTED
    assert outcome(tpm, facts_of(with_authority), ek_certificate=self_signed(tpm.ek)) is INVALID
    assert outcome(tpm, facts_of(first_use), ek_certificate=certificate) is UNTRUSTED
    assert outcome(tpm, facts_of(first_use, ledger=pinned)) is None
    assert outcome(tpm, facts_of({}, ledger=pinned)) is UNTRUSTED


def test_a_nodes_certificate_pins_no_first_key_unless_an_operator_opened_the_machine(
    tpm: SoftTpm, authority: Authority
) -> None:
    settings: dict[str, JsonValue] = {"trustOnFirstUse": True, "endorsementCAs": authority.pem}
    asked = request_of(tpm.first(ek_certificate=authority.endorse(tpm.ek.public_key())), username="system:node:node-7")
    for held in (ledger(), ledger(bound_spkis=frozenset({"sha256:x"}), provider="insecure")):
        with pytest.raises(Denied, match="machines adopt NODE --open") as denied:
            verify(asked, facts_of(settings, ledger=held))
        assert denied.value.reason is UNTRUSTED
    for held in (ledger(was_reset=True), ledger(fingerprints={"ek": tpm.fingerprint})):
        with pytest.raises(ChallengeRequired):
            verify(asked, facts_of(settings, ledger=held))
    with pytest.raises(ChallengeRequired):
        verify(asked, facts_of({**settings, **allow(tpm.fingerprint)}))


def test_a_genuine_tpm_that_nobody_enrolled_is_denied(tpm: SoftTpm, authority: Authority) -> None:
    relayed = SoftTpm()
    facts = facts_of({"endorsementCAs": authority.pem, **allow(tpm.fingerprint)})
    certificate = authority.endorse(relayed.ek.public_key())
    assert outcome(relayed, facts, ek_certificate=certificate) is UNTRUSTED


# Certificates


def evaluated(tpm: SoftTpm, certificate: bytes, bundle: str, chain: tuple[bytes, ...] = ()) -> Reason | None:
    facts = facts_of({"endorsementCAs": bundle}, machine=machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint}))
    return outcome(tpm, facts, ek_certificate=certificate, ek_chain=chain)


@pytest.mark.parametrize("kind", ["rsa2048", "ecc-p256", "ecc-p384"])
def test_a_certificate_as_swtpm_makes_it_counts_critical_directory_name_included(
    kind: str, authority: Authority
) -> None:
    assert kind in ("rsa2048", "ecc-p256", "ecc-p384")
    tpm = SoftTpm(kind=kind, ek=new_key(kind))
    assert evaluated(tpm, authority.endorse(tpm.ek.public_key()), authority.pem) is None


def changed(name: str, extension: Extension | None) -> Callable[[SoftTpm, Authority], bytes]:
    def spoil(tpm: SoftTpm, authority: Authority) -> bytes:
        key = tpm.ek.public_key()
        extensions = leaf_extensions(key)
        extensions.pop(name, None)
        if extension is not None:
            extensions[name] = extension
        return authority.endorse(key, extensions=extensions)

    return spoil


def expired(tpm: SoftTpm, authority: Authority) -> bytes:
    return authority.endorse(tpm.ek.public_key(), not_after=NOW - YEAR / 365)


def not_yet_valid(tpm: SoftTpm, authority: Authority) -> bytes:
    return authority.endorse(tpm.ek.public_key(), not_before=NOW + YEAR / 365)


def of_another_key(_: SoftTpm, authority: Authority) -> bytes:
    return authority.endorse(ec.generate_private_key(ec.SECP256R1()).public_key())


def of_another_key_type(_: SoftTpm, authority: Authority) -> bytes:
    return authority.endorse(rsa.generate_private_key(65537, 2048).public_key())


def by_nobody(tpm: SoftTpm, _: Authority) -> bytes:
    return self_signed(tpm.ek)


def by_another_authority(tpm: SoftTpm, _: Authority) -> bytes:
    return Authority.root().endorse(tpm.ek.public_key())


def with_a_spoilt_signature(tpm: SoftTpm, authority: Authority) -> bytes:
    good = bytearray(authority.endorse(tpm.ek.public_key()))
    good[-1] ^= 1
    return bytes(good)


def with_trailing_bytes(tpm: SoftTpm, authority: Authority) -> bytes:
    return authority.endorse(tpm.ek.public_key()) + b"\x00"


def no_certificate(_: SoftTpm, __: Authority) -> bytes:
    return b"\x30\x03\x02\x01\x01"


def without_an_end(tpm: SoftTpm, authority: Authority) -> bytes:
    """RFC 5280 §4.1.2.5: a certificate that has no good end of validity says so."""
    return authority.endorse(tpm.ek.public_key(), not_after=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))


UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")
CLIENT_AUTH = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
ANY_USAGE = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])

TWO_USAGES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, EK_USAGE])

BAD_CERTIFICATES: list[tuple[str, Callable[[SoftTpm, Authority], bytes], str]] = [
    ("self-signed", by_nobody, "certificate chain"),
    ("another authority", by_another_authority, "certificate chain"),
    ("expired", expired, "certificate chain"),
    ("not yet valid", not_yet_valid, "certificate chain"),
    ("a CA", changed("bc", (x509.BasicConstraints(ca=True, path_length=None), True)), "no CA"),
    ("no extended key usage", changed("eku", None), "extended key usage"),
    ("another leaf of the CA", changed("eku", (CLIENT_AUTH, False)), "extended key usage"),
    ("any usage", changed("eku", (ANY_USAGE, False)), "extended key usage"),
    ("no key usage", changed("ku", None), "key usage"),
    ("RSA's key usage", changed("ku", (key_usage("key_encipherment"), True)), "key usage"),
    ("signing key usage", changed("ku", (key_usage("digital_signature"), True)), "key usage"),
    ("unknown critical extension", changed("unknown", (UNKNOWN, True)), "critical extensions"),
    (
        "critical name constraints",
        changed("nc", (x509.NameConstraints(None, [x509.DNSName("a")]), True)),
        "critical extensions",
    ),
    ("another key", of_another_key, "certified key"),
    ("another key type", of_another_key_type, "certified key"),
    ("spoilt signature", with_a_spoilt_signature, "certificate chain"),
    ("trailing bytes", with_trailing_bytes, "structure"),
    ("no certificate", no_certificate, "structure"),
]


@pytest.mark.parametrize(
    ("spoil", "check"), [row[1:] for row in BAD_CERTIFICATES], ids=[row[0] for row in BAD_CERTIFICATES]
)
def test_a_certificate_that_is_wrong_in_one_thing_is_denied_for_it(
    tpm: SoftTpm, authority: Authority, spoil: Callable[[SoftTpm, Authority], bytes], check: str
) -> None:
    bound = machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})
    request = request_of(tpm.first(ek_certificate=spoil(tpm, authority)))
    with pytest.raises(Denied) as denied:
        verify(request, facts_of({"endorsementCAs": authority.pem}, machine=bound))
    assert denied.value.reason is INVALID
    failed = [item.name for item in denied.value.checks if not item.passed]
    assert failed == [f"endorsement certificate: {check}"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(by_nobody, "no certificate of its issuer"), (expired, "not valid now"), (not_yet_valid, "not valid now")],
)
def test_a_certificate_without_a_chain_is_denied_with_its_issuer_and_validity(
    tpm: SoftTpm, authority: Authority, spoil: Callable[[SoftTpm, Authority], bytes], words: str
) -> None:
    certificate = spoil(tpm, authority)
    read = x509.load_der_x509_certificate(certificate)
    bound = machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})
    with pytest.raises(Denied) as denied:
        verify(
            request_of(tpm.first(ek_certificate=certificate)),
            facts_of({"endorsementCAs": authority.pem}, machine=bound),
        )
    assert words in denied.value.got
    assert f"issued by '{read.issuer.rfc4514_string()}', valid from " in denied.value.got
    assert f"to {read.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}" in denied.value.got


@pytest.mark.parametrize(
    "extra",
    [
        changed("unknown", (UNKNOWN, False)),
        changed("san", None),
        changed("san", (x509.SubjectAlternativeName([x509.DNSName("tpm.example")]), False)),
        changed("bc", None),
        changed("eku", (TWO_USAGES, True)),
        without_an_end,
    ],
    ids=["unknown, not critical", "no SAN", "other SAN", "no basic constraints", "critical EKU of two", "year 9999"],
)
def test_a_certificate_that_manufacturers_make_otherwise_counts(
    tpm: SoftTpm, authority: Authority, extra: Callable[[SoftTpm, Authority], bytes]
) -> None:
    assert evaluated(tpm, extra(tpm, authority), authority.pem) is None


def test_a_chain_through_an_intermediate_counts_wherever_the_intermediate_comes_from(
    tpm: SoftTpm, authority: Authority
) -> None:
    issuer = authority.issuer()
    certificate = issuer.endorse(tpm.ek.public_key())
    assert evaluated(tpm, certificate, authority.pem, (issuer.der,)) is None
    assert evaluated(tpm, certificate, issuer.pem) is None
    assert evaluated(tpm, certificate, authority.pem + issuer.pem) is None
    assert evaluated(tpm, certificate, authority.pem) is INVALID
    assert evaluated(tpm, certificate, authority.pem, (b"\x30\x00",)) is INVALID


def test_an_intermediate_that_is_no_ca_or_expired_breaks_the_chain(tpm: SoftTpm, authority: Authority) -> None:
    for issuer in (authority.issuer(ca=False), authority.issuer(not_after=NOW - YEAR)):
        certificate = issuer.endorse(tpm.ek.public_key())
        assert evaluated(tpm, certificate, authority.pem, (issuer.der,)) is INVALID


def test_a_leaf_cannot_issue_endorsement_certificates(tpm: SoftTpm, authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = authority.endorse(key.public_key())
    rogue = Authority(certificate=x509.load_der_x509_certificate(leaf), key=key)
    assert evaluated(tpm, rogue.endorse(tpm.ek.public_key()), authority.pem, (leaf,)) is INVALID


def test_validity_is_checked_by_the_controllers_clock(tpm: SoftTpm, authority: Authority) -> None:
    certificate = authority.endorse(tpm.ek.public_key())
    bound = machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})
    facts = facts_of({"endorsementCAs": authority.pem}, machine=bound)
    assert outcome(tpm, facts, ek_certificate=certificate) is None
    assert outcome(tpm, replace(facts, verified_at=NOW + 2 * YEAR), ek_certificate=certificate) is INVALID


def test_a_sha1_signature_is_refused_where_the_same_certificate_with_sha256_counts() -> None:
    """Made with openssl, since cryptography signs no SHA-1: root, then one certificate signed with each hash."""
    root, sha1, sha256 = x509.load_pem_x509_certificates((VECTORS / "ek-sha1.pem").read_bytes())
    point = sha1.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    prefix = next(item.prefix for item in EK_TEMPLATES if item.name == "ecc-p256")
    ek_public = prefix + sized(point[1:33]) + sized(point[33:])
    bound = machine(annotations={MACHINE_ANNOTATION: parsed(ek_public).fingerprint})
    settings: dict[str, JsonValue] = {"endorsementCAs": root.public_bytes(Encoding.PEM).decode()}
    facts = facts_of(settings, machine=bound, verified_at=datetime(2030, 1, 1, tzinfo=UTC))
    tpm = SoftTpm()
    for certificate, reason in ((sha1, INVALID), (sha256, None)):
        der = certificate.public_bytes(Encoding.DER)
        assert outcome(tpm, facts, ek_public=ek_public, ek_certificate=der) is reason
