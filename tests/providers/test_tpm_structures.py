"""Laws of the TPM structure parsers: any bytes give a value or ``Denied``, and what was read is all that was there."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import example, given
from hypothesis import strategies as st
from tpm_world import PCR_VALUES, EkKind, SoftTpm, new_key, parsed, public_of

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key
from nodeattest_providers.tpm.key_templates import AK_ATTRIBUTES, AK_TEMPLATE, EK_TEMPLATES
from nodeattest_providers.tpm.make_credential import make_credential
from nodeattest_providers.tpm.node.nv_certificates import split_der
from nodeattest_providers.tpm.public_area import PublicArea, parse_public
from nodeattest_providers.tpm.quote import parse_quote
from nodeattest_providers.tpm.signature import parse_signature
from nodeattest_providers.tpm.structures import Alg, PcrSelection, Reader, sized

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
@given(data=st.binary(max_size=400))
@example(data=b"")
def test_any_bytes_give_a_value_or_denied(
    parse: Callable[[bytes], object], good: bytes, reason: Reason, data: bytes
) -> None:
    value_or_denied(parse, data, reason)
    value_or_denied(parse, good[: len(data)] + data, reason)


@EACH
@given(data=st.data())
def test_a_good_structure_spoilt_anywhere_gives_a_value_or_denied(
    parse: Callable[[bytes], object], good: bytes, reason: Reason, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(good) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=8))
    value_or_denied(parse, good[:at] + patch + good[at + len(patch) :], reason)


@EACH
def test_every_truncation_and_every_trailing_byte_is_denied(
    parse: Callable[[bytes], object], good: bytes, reason: Reason
) -> None:
    assert value_or_denied(parse, good, reason)
    for size in range(len(good)):
        assert not value_or_denied(parse, good[:size], reason), size
    for tail in (b"\x00", b"\xff", good):
        assert not value_or_denied(parse, good + tail, reason)


@given(st.integers(0, 0xFFFF))
def test_a_length_that_lies_is_denied(size: int) -> None:
    spoilt = QUOTE[:6] + size.to_bytes(2, "big") + QUOTE[8:]
    if size != int.from_bytes(QUOTE[6:8], "big"):
        with suppress(Denied):
            assert parse_quote(spoilt).raw == spoilt  # another way to read the same bytes, all of them


def test_a_quote_is_read_field_by_field() -> None:
    quote = parse_quote(QUOTE)
    assert (quote.clock, quote.reset_count, quote.restart_count, quote.safe) == (5_000, 3, 0, True)
    assert quote.selections == (PcrSelection(Alg.SHA256, (0, 7)),)
    assert quote.pcr_digest == hashlib.sha256(b"".join(PCR_VALUES)).digest()
    assert quote.raw == QUOTE


def test_the_name_is_the_digest_of_the_very_bytes() -> None:
    assert public(SOFT.ak_public).name == b"\x00\x0b" + hashlib.sha256(SOFT.ak_public).digest()
    p384 = parse_endorsement_key(public_of("ecc-p384", new_key("ecc-p384")))
    assert p384.name == b"\x00\x0c" + hashlib.sha384(p384.raw).digest()


def test_a_public_area_keeps_the_key_it_shows() -> None:
    for kind in ("rsa2048", "ecc-p256", "ecc-p384"):
        key = new_key(kind)
        area = parse_endorsement_key(public_of(kind, key))
        assert area.key.public_numbers() == key.public_key().public_numbers()


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
        ("RSA-1024", rsa_area(GOOD_MODULUS >> 1024 | 1, bits=1024, size=128)),
        ("a modulus one bit short", rsa_area(GOOD_MODULUS >> 1 | 1)),
        ("an even modulus", rsa_area(GOOD_MODULUS - 1)),
        ("the modulus 0", rsa_area(0)),
        ("a key with CVE-2017-15361", rsa_area(roca_modulus())),
        ("exponent 1", rsa_area(GOOD_MODULUS, exponent=1)),
        ("exponent 3", rsa_area(GOOD_MODULUS, exponent=3)),
        ("a modulus of another size than keyBits", rsa_area(GOOD_MODULUS, bits=3072)),
        ("a modulus with a leading zero", rsa_area(GOOD_MODULUS, size=257)),
    ],
)
def test_an_unfit_rsa_key_is_denied(what: str, raw: bytes) -> None:
    assert not value_or_denied(public, raw, Reason.ATTESTATION_KEY_NOT_ALLOWED), what


def test_a_fit_rsa_key_is_read_with_both_spellings_of_its_exponent() -> None:
    assert public(rsa_area(GOOD_MODULUS)).key == public(rsa_area(GOOD_MODULUS, exponent=65537)).key


P256_PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1


@pytest.mark.parametrize(
    ("what", "x", "y"),
    [
        ("the point at infinity's usual spelling", 0, 0),
        ("a point off the curve", 1, 1),
        ("a coordinate not below the prime", P256_PRIME, 1),
    ],
)
def test_a_point_off_the_curve_is_denied(what: str, x: int, y: int) -> None:
    prefix = AK_TEMPLATE[:-68]
    raw = prefix + sized(x.to_bytes(32, "big")) + sized(y.to_bytes(32, "big"))
    assert not value_or_denied(public, raw, Reason.ATTESTATION_KEY_NOT_ALLOWED), what


def test_coordinates_have_the_curves_size() -> None:
    point = SOFT.ak.public_key().public_numbers()
    assert isinstance(point, ec.EllipticCurvePublicNumbers)
    raw = AK_TEMPLATE[:-68] + sized(b"\x00" + point.x.to_bytes(32, "big")) + sized(point.y.to_bytes(32, "big"))
    assert not value_or_denied(public, raw, Reason.ATTESTATION_KEY_NOT_ALLOWED)


def selection_of(bank: Alg, pcrs: set[int]) -> PcrSelection:
    return PcrSelection(bank, tuple(sorted(pcrs)))


banks = st.sampled_from([Alg.SHA256, Alg.SHA384, Alg.SHA512])
selections = st.builds(selection_of, banks, st.sets(st.integers(0, 23)))


@given(selections)
def test_a_pcr_selection_is_read_as_it_was_written(selection: PcrSelection) -> None:
    reader = Reader(selection.marshal(), what="selection", reason=Reason.QUOTE_MALFORMED)
    assert PcrSelection.read(reader) == (selection,)
    reader.end()


def test_a_flood_of_pcr_banks_is_denied_at_once() -> None:
    reader = Reader(b"\xff\xff\xff\xff", what="selection", reason=Reason.QUOTE_MALFORMED)
    with pytest.raises(Denied, match="PCR banks"):
        PcrSelection.read(reader)


def test_the_attestation_key_template_has_exactly_the_contracts_attributes() -> None:
    assert AK_ATTRIBUTES == 0x50472
    assert AK_TEMPLATE[4:8] == (0x50472).to_bytes(4, "big")


def test_messages_hold_no_bytes_of_the_structure() -> None:
    for parse, good, _ in PARSERS:
        with pytest.raises(Denied) as denied:
            parse(good + b"\x00")
        assert good[-8:].hex() not in str(denied.value)


# Credentials


@pytest.mark.parametrize("kind", ["rsa2048", "ecc-p256", "ecc-p384"])
def test_a_credential_is_fresh_each_time_and_no_longer_than_a_digest(kind: EkKind) -> None:
    ek = parsed(public_of(kind, new_key(kind)))
    counter = iter(range(256))

    def random(size: int) -> bytes:
        return bytes([next(counter)]) * size

    one, other = (make_credential(ek, b"\x00\x0bname", bytes(32), random=random) for _ in range(2))
    assert one.blob != other.blob
    assert one.secret != other.secret
    with pytest.raises(ValueError, match="at most a digest"):
        make_credential(ek, b"\x00\x0bname", bytes(49), random=random)


def test_a_credential_needs_a_storage_key() -> None:
    with pytest.raises(ValueError, match="symmetric"):
        make_credential(parsed(SOFT.ak_public), b"name", bytes(32), random=bytes)


# NV areas


@given(st.binary(max_size=64) | st.binary(max_size=64).map(bytes.fromhex("1001000010").__add__))
def test_cutting_der_apart_never_fails_and_invents_nothing(data: bytes) -> None:
    assert b"".join(split_der(data)) in data


@pytest.mark.parametrize("padding", [b"", b"\x00" * 9, b"\xff" * 9])
@pytest.mark.parametrize("tag", [bytes.fromhex("1002"), b""])
def test_a_certificate_stored_with_a_header_of_tpm_1_2_is_read(tag: bytes, padding: bytes) -> None:
    certificate = b"\x30\x82\x01\x00" + bytes(256)
    header = bytes.fromhex("100100") + (len(tag) + len(certificate)).to_bytes(2, "big") + tag
    assert list(split_der(header + certificate + padding)) == [certificate]
    assert list(split_der(header + certificate[:-1])) == []


@pytest.mark.parametrize("padding", [b"", b"\x00" * 9, b"\xff" * 9])
def test_padded_and_concatenated_certificates_are_cut_apart(padding: bytes) -> None:
    short, long = b"\x30\x03abc", b"\x30\x82\x01\x00" + bytes(256)
    assert list(split_der(short + long + padding)) == [short, long]


class Counting(bytes):
    """Bytes that count what is copied out of them."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            return super().__getitem__(cast("int", key))
        found = Counting(super().__getitem__(cast("slice", key)))
        Counting.copied += len(found)
        return found


def test_cutting_certificates_apart_copies_each_once() -> None:
    data = Counting(b"\x30\x02ab" * 4096)
    assert len(list(split_der(data))) == 4096
    assert Counting.copied == len(data)


NO_CERTIFICATE = {
    "truncated": [b"", b"\x30", b"\x30\x05abc", b"\x30\x82\x01", b"\x30\x82\x01\x00a"],
    "not a sequence": [b"\x31\x01a", bytes(9), b"\xff" * 9],
    "of indefinite length": [b"\x30\x80" + bytes(100)],
    "empty": [b"\x30\x00", b"\x30\x81\x00", b"\x30\x00\x30\x01a"],
}


@pytest.mark.parametrize("data", [data for cases in NO_CERTIFICATE.values() for data in cases])
def test_bytes_that_are_not_a_whole_certificate_are_none(data: bytes) -> None:
    assert list(split_der(data)) == []
