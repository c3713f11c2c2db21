"""What the tpm provider reads: structures of TPMs, evidence and challenges, policies."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tpm_world import MACHINE, PCR_VALUES, SoftTpm, new_key, public_of
from worlds import denied_for

from nodeattest_providers import canonical_json
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import FirstRequestRef, JsonObject, JsonValue
from nodeattest_providers.tpm.attestor import split_der
from nodeattest_providers.tpm.config import PolicyCache
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES, parse_quote, parse_signature
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence, SecondEvidence, parse_evidence
from nodeattest_providers.tpm.structures import Alg, PcrSelection, PublicArea, parse_public, sized

SOFT = SoftTpm()
PARTS = SOFT.quote_parts(bytes(32), PcrSelection(Alg.SHA256, (0, 7)), PCR_VALUES)
QUOTE = PARTS.marshal()
SIGNATURE = SOFT.sign(QUOTE)
RSA_PUBLIC = public_of("rsa2048", new_key("rsa2048"))


def public(raw: bytes) -> PublicArea:
    return parse_public(raw, what="key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)


PARSERS: list[tuple[Callable[[bytes], object], bytes, Reason]] = [
    (public, SOFT.ak_public, Reason.ATTESTATION_KEY_NOT_ALLOWED),
    (public, RSA_PUBLIC, Reason.ATTESTATION_KEY_NOT_ALLOWED),
    (parse_endorsement_key, SOFT.ek_public, Reason.ENDORSEMENT_KEY_MALFORMED),
    (parse_quote, QUOTE, Reason.QUOTE_MALFORMED),
    (parse_signature, SIGNATURE, Reason.QUOTE_MALFORMED),
    (parse_signature, bytes.fromhex("0014000b") + sized(bytes(256)), Reason.QUOTE_MALFORMED),
]
EACH = pytest.mark.parametrize(("parse", "good", "reason"), PARSERS, ids=[parse.__name__ for parse, _, _ in PARSERS])


def value_or_denied(parse: Callable[[bytes], object], data: bytes, reason: Reason) -> bool:
    try:
        parse(data)
    except Denied as denied:
        if denied.reason is not reason:
            raise
        return False
    return True


@EACH
def test_every_truncation_and_every_trailing_byte_is_denied(
    parse: Callable[[bytes], object], good: bytes, reason: Reason
) -> None:
    assert value_or_denied(parse, good, reason)
    for size in range(len(good)):
        assert not value_or_denied(parse, good[:size], reason), size
    for tail in (b"\x00", b"\xff", good):
        assert not value_or_denied(parse, good + tail, reason)


def rsa_area(modulus: int, *, bits: int = 2048, exponent: int = 0, size: int = 256) -> bytes:
    prefix = next(template.prefix for template in EK_TEMPLATES if template.name == "rsa2048")
    return prefix[:-6] + bits.to_bytes(2, "big") + exponent.to_bytes(4, "big") + sized(modulus.to_bytes(size, "big"))


GOOD_MODULUS = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n


def roca_modulus() -> int:
    """A number of 2048 bits that is 1 modulo every small prime of the fingerprint, as 65537 to the power 0 is."""
    primes = (number for number in range(3, 168) if all(number % divisor for divisor in range(2, number)))
    step = 2 * math.prod(primes)
    return ((1 << 2048) - 1) // step * step + 1


@pytest.mark.parametrize(
    ("what", "raw"),
    [
        ("a modulus one bit short", rsa_area(GOOD_MODULUS >> 1 | 1)),
        ("an even modulus", rsa_area(GOOD_MODULUS - 1)),
        ("a key with CVE-2017-15361", rsa_area(roca_modulus())),
        ("exponent 3", rsa_area(GOOD_MODULUS, exponent=3)),
        ("a modulus of another size than keyBits", rsa_area(GOOD_MODULUS, bits=3072)),
        ("a modulus with a leading zero", rsa_area(GOOD_MODULUS, size=257)),
    ],
)
def test_an_unfit_rsa_key_is_denied(what: str, raw: bytes) -> None:
    assert not value_or_denied(public, raw, Reason.ATTESTATION_KEY_NOT_ALLOWED), what


# Credentials


# NV areas


@pytest.mark.parametrize("padding", [b"", b"\x00" * 9, b"\xff" * 9])
@pytest.mark.parametrize("tag", [bytes.fromhex("1002"), b""])
def test_a_certificate_stored_with_a_header_of_tpm_1_2_is_read(tag: bytes, padding: bytes) -> None:
    certificate = b"\x30\x82\x01\x00" + bytes(256)
    header = bytes.fromhex("100100") + (len(tag) + len(certificate)).to_bytes(2, "big") + tag
    assert list(split_der(header + certificate + padding)) == [certificate]
    assert list(split_der(header + certificate[:-1])) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"\x30\x05abc", b"\x30\x82\x01", bytes(9), b"\xff" * 9, b"\x30\x80" + bytes(100), b"\x30\x00\x30\x01a"],
    ids=["nothing", "cut", "cut length", "zeros", "ones", "indefinite length", "empty"],
)
def test_bytes_that_are_not_a_whole_certificate_are_none(data: bytes) -> None:
    assert list(split_der(data)) == []


FIRST = FirstEvidence(ek_public=b"EK", ak_public=b"AK", ek_certificate=b"certificate", ek_chain=(b"one", b"two"))
SECOND = SecondEvidence(
    first=FirstRequestRef(name="csr-1", uid="uid-1"), mac=bytes(32), quote=b"quote", signature=b"sig", pcrs=(b"0", b"7")
)
CHALLENGE = Challenge(
    uid="uid-1",
    spki_sha256="sha256:" + "0" * 64,
    nonce=bytes(32),
    blob=b"blob",
    secret=b"secret",
    pcrs=PcrSelection(Alg.SHA256, (0, 7)),
)


JSON_TRUE: JsonValue = True  # equals 1 in Python, and in no other language of the wire


def with_value(key: str, value: JsonValue) -> Callable[[JsonObject], JsonObject]:
    return lambda data: {**data, key: value}


def without(key: str) -> Callable[[JsonObject], JsonObject]:
    return lambda data: {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize(
    ("evidence", "spoil"),
    [
        (FIRST, with_value("phase", JSON_TRUE)),
        (FIRST, with_value("ekPub", "")),
        (FIRST, with_value("ekPub", "A" * 2000)),
        (FIRST, with_value("ekCert", "A" * 8000)),
        (FIRST, with_value("ekChain", [*(["AAAA"] * 5)])),
        (FIRST, without("ekCert")),
        (SECOND, with_value("mac", "AAAA")),
        (SECOND, with_value("quote", "A" * 2000)),
        (SECOND, with_value("pcrs", [*(["AA"] * 25)])),
        (SECOND, with_value("pcrs", [""])),
    ],
)
def test_evidence_outside_its_schema_is_denied(
    evidence: FirstEvidence | SecondEvidence, spoil: Callable[[JsonObject], JsonObject]
) -> None:
    with denied_for(Reason.EVIDENCE_MALFORMED):
        parse_evidence(spoil(evidence.to_json()))


@pytest.mark.parametrize(
    "pcrs",
    [
        {"bank": "sha1", "select": [0]},
        {"bank": "sha256", "select": []},
        {"bank": "sha256", "select": [7, 0]},
        {"bank": "sha256", "select": [24]},
    ],
)
def test_a_challenge_with_another_selection_is_denied(pcrs: JsonValue) -> None:
    data = canonical_json.loads(CHALLENGE.to_text().encode())
    with pytest.raises(Denied):
        Challenge.parse(canonical_json.dumps(with_value("pcrs", pcrs)(data)).decode())


def settings_of(number: int) -> dict[str, JsonValue]:
    return {"endorsementKeys": [{"providerID": MACHINE, "sha256": f"sha256:f{number:063x}"}]}


def test_the_cache_holds_sixteen_policies_and_lets_go_of_the_one_that_was_not_asked_for_longest() -> None:
    cache, asked, idle = PolicyCache(), settings_of(0), settings_of(1)
    others = [settings_of(number) for number in range(2, 17)]
    first, forgotten = cache.get(asked), cache.get(idle)
    held = [(cache.get(settings), cache.get(asked)) for settings in others]
    assert all(again is first for _, again in held)
    assert all(cache.get(settings) is policy for settings, (policy, _) in zip(others, held, strict=True))
    assert cache.get(idle) is not forgotten
