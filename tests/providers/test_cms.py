"""DER elements against pyasn1, signed documents against OpenSSL, and documents with one part spoilt."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import example, given
from hypothesis import strategies as st
from pyasn1.codec.der import decoder, encoder
from pyasn1.type import univ
from worlds import denied_for

from clouds import cms as write
from clouds.authority import Authority, rsa_key
from clouds.cms import Document, algorithm, attribute, tlv
from nodeattest_providers import cms, der
from nodeattest_providers.der import NotDer, Tag
from nodeattest_providers.errors import Denied, Reason

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
CONTENT = b'{"vmId":"02aab8a4-74ef-476e-8182-f6d2ba4166a6"}'


@cache
def signing(bits: int = 2048) -> Authority:
    return Authority.root("metadata.azure.com", key=rsa_key(bits))


FORMS: dict[str, Callable[[], Document]] = {
    "azure": lambda: write.azure_form(CONTENT, signing()),
    "aws": lambda: write.aws_form(CONTENT, signing(), NOW),
}
SHA384 = bytes.fromhex("0609608648016503040202")
RSA_PSS = bytes.fromhex("06092a864886f70d01010a")
ENVELOPED = bytes.fromhex("06092a864886f70d010703")

# Microsoft's page on the metadata service, "Attested data", shows this signature of a test signer (CC BY 4.0).
DOCUMENTED = base64.b64decode(
    "MIIEEgYJKoZIhvcNAQcCoIIEAzCCA/8CAQExDzANBgkqhkiG9w0BAQsFADCBugYJKoZIhvcNAQcBoIGsBIGpeyJub25jZSI6IjEyMzQ1NjY3NjYi"
    "LCJwbGFuIjp7Im5hbWUiOiIiLCJwcm9kdWN0IjoiIiwicHVibGlzaGVyIjoiIn0sInRpbWVTdGFtcCI6eyJjcmVhdGVkT24iOiIxMS8yMC8xOCAy"
    "MjowNzozOSAtMDAwMCIsImV4cGlyZXNPbiI6IjExLzIwLzE4IDIyOjA4OjI0IC0wMDAwIn0sInZtSWQiOiIifaCCAj8wggI7MIIBpKADAgECAhBn"
    "xW5Kh8dslEBA0E2mIBJ0MA0GCSqGSIb3DQEBBAUAMCsxKTAnBgNVBAMTIHRlc3RzdWJkb21haW4ubWV0YWRhdGEuYXp1cmUuY29tMB4XDTE4MTEy"
    "MDIxNTc1N1oXDTE4MTIyMDIxNTc1NlowKzEpMCcGA1UEAxMgdGVzdHN1YmRvbWFpbi5tZXRhZGF0YS5henVyZS5jb20wgZ8wDQYJKoZIhvcNAQEB"
    "BQADgY0AMIGJAoGBAML/tBo86ENWPzmXZ0kPkX5dY5QZ150mA8lommszE71x2sCLonzv4/UWk4H+jMMWRRwIea2CuQ5RhdWAHvKq6if4okKNt66f"
    "xm+YTVz9z0CTfCLmLT+nsdfOAsG1xZppEapC0Cd9vD6NCKyE8aYI1pliaeOnFjG0WvMY04uWz2MdAgMBAAGjYDBeMFwGA1UdAQRVMFOAENnYkHLa"
    "04Ut4Mpt7TkJFfyhLTArMSkwJwYDVQQDEyB0ZXN0c3ViZG9tYWluLm1ldGFkYXRhLmF6dXJlLmNvbYIQZ8VuSofHbJRAQNBNpiASdDANBgkqhkiG"
    "9w0BAQQFAAOBgQCLSM6aX5Bs1KHCJp4VQtxZPzXF71rVKCocHy3N9PTJQ9Fpnd+bYw2vSpQHg/AiG82WuDFpPReJvr7Pa938mZqW9HUOGjQKK2FY"
    "DTg6fXD8pkPdyghlX5boGWAMMrf7bFkup+lsT+n2tRw2wbNknO1tQ0wICtqy2VqzWwLi45RBwTGB6DCB5QIBATA/MCsxKTAnBgNVBAMTIHRlc3Rz"
    "dWJkb21haW4ubWV0YWRhdGEuYXp1cmUuY29tAhBnxW5Kh8dslEBA0E2mIBJ0MA0GCSqGSIb3DQEBCwUAMA0GCSqGSIb3DQEBAQUABIGAld1BM/yY"
    "Iqqv8SDE4kjQo3Ul/IKAVR8ETKcve5BAdGSNkTUooUGVniTXeuvDj5NkmazOaKZp9fEtByqqPOyw/nlXaZgOO44HDGiPUJ90xVYmfeK6p9RpJBu6"
    "kiKhnnYTelUk5u75phe5ZbMZfBhuPhXmYAdjc7Nmw97nx8NnprQ="
)


@pytest.mark.parametrize("form", FORMS)
def test_a_document_of_each_cloud_is_read_and_its_signer_confirmed(form: str) -> None:
    read = cms.parse(FORMS[form]().der())
    assert read.content == CONTENT
    assert read.signer.digest == "sha256"
    assert read.signer.is_named_by(signing().certificate)
    assert not replace(read.signer, serial=read.signer.serial + 1).is_named_by(signing().certificate)
    assert not replace(read.signer, issuer=read.signer.issuer[:-1]).is_named_by(signing().certificate)
    assert read.signed_by(signing().certificate)
    assert len(read.certificates) == (form == "azure")


def test_what_microsoft_documents_is_read_but_its_1024_bit_key_signs_nothing() -> None:
    read = cms.parse(DOCUMENTED)
    assert read.content.startswith(b'{"nonce":"1234566766",')
    assert read.signer.is_named_by(read.certificates[0])
    assert not read.signed_by(read.certificates[0])


@pytest.mark.parametrize("options", [(), ("-noattr",), ("-nocerts",), ("-md", "sha512")], ids=" ".join)
def test_what_openssl_signs_is_confirmed(tmp_path: Path, options: tuple[str, ...]) -> None:
    pem = signing().key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "signer.pem").write_bytes(pem + signing().pem.encode())
    (tmp_path / "content").write_bytes(CONTENT)
    command = ["openssl", "cms", "-sign", "-binary", "-nodetach", "-nosmimecap", "-outform", "DER", *options]
    der = subprocess.run(
        [*command, "-signer", "signer.pem", "-in", "content"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    ).stdout
    read = cms.parse(der)
    assert read.content == CONTENT
    assert read.signer.is_named_by(signing().certificate)
    assert read.signed_by(signing().certificate)


def _negative_serial() -> bytes:
    good = signing().certificate
    number = good.serial_number.to_bytes((good.serial_number.bit_length() + 8) // 8, "big")
    return good.public_bytes(Encoding.DER).replace(
        tlv(0x02, number), tlv(0x02, bytes([number[0] | 0x80]) + number[1:]), 1
    )


Spoil = Callable[[Document], Document]
SPOILT: dict[str, Spoil] = {
    "another kind of message": lambda good: replace(good, kind=ENVELOPED),
    "content that is not plain data": lambda good: replace(good, content_type=write.SIGNED_DATA),
    "version 3 with issuer and serial": lambda good: replace(good, version=3),
    "signer of version 3 with issuer and serial": lambda good: replace(good, signer_version=3),
    "version 1 with a key identifier": lambda good: replace(good, signer=tlv(0x80, b"k" * 20)),
    "no signer": lambda good: replace(good, signers=0),
    "no digest algorithm": lambda good: replace(good, announced=()),
    "two digest algorithms": lambda good: replace(good, announced=(good.digest, algorithm(SHA384))),
    "a digest algorithm that is not the signer's": lambda good: replace(good, announced=(algorithm(SHA384),)),
    "an elliptic signature algorithm": lambda good: replace(
        good, signature_algorithm=algorithm(write.ECDSA_SHA256, b"")
    ),
    "an unknown signature algorithm": lambda good: replace(good, signature_algorithm=algorithm(RSA_PSS)),
    "a signature algorithm with parameters": lambda good: replace(
        good, signature_algorithm=algorithm(write.RSA, tlv(0x30))
    ),
    "a signature algorithm of another digest": lambda good: replace(
        good, digest=algorithm(SHA384), signature_algorithm=algorithm(write.RSA_SHA256)
    ),
    "revocation lists": lambda good: replace(good, before_signers=tlv(0xA1, tlv(0x30))),
    "unsigned attributes": lambda good: replace(good, signer_tail=tlv(0xA1, attribute(write.SIGNING_TIME))),
    "a certificate of another kind": lambda good: replace(good, certificates=(tlv(0xA1, b"\x02\x01\x01"),)),
    "a certificate that is none": lambda good: replace(good, certificates=(tlv(0x30, b"\x02\x01\x01"),)),
    "a certificate without a positive serial number": lambda good: replace(good, certificates=(_negative_serial(),)),
    "nine certificates": lambda good: replace(good, certificates=(signing().der,) * (cms.MAX_CERTIFICATES + 1)),
    "a certificate beyond any size": lambda good: replace(
        good, certificates=(tlv(0x30, tlv(0x04, bytes(cms.MAX_CERTIFICATE))),)
    ),
    "a signer without a name": lambda good: replace(good, signer=b""),
    "more bytes than any document has": lambda good: replace(good, content=bytes(cms.MAX_SIZE)),
}
ATTRIBUTES: dict[str, Callable[[tuple[bytes, ...]], tuple[bytes, ...]]] = {
    "no attributes in the set": lambda _: (),
    "no content type": lambda good: good[1:],
    "no message digest": lambda good: good[:2],
    "two values of the message digest": lambda good: (
        *good[:2],
        attribute(write.MESSAGE_DIGEST, *(tlv(0x04, hashlib.sha256(CONTENT).digest()),) * 2),
    ),
    "another content type": lambda good: (attribute(write.CONTENT_TYPE, write.SIGNED_DATA), *good[1:]),
    "out of order": lambda good: good[::-1],
    "a digest that is no octet string": lambda good: (*good[:2], attribute(write.MESSAGE_DIGEST, write.DATA)),
    "an attribute beyond any size": lambda good: (*good, attribute(write.SHA256, tlv(0x04, bytes(2000)))),
    "one twice": lambda good: (*good, good[-1]),
    "too many": lambda good: (*good, *(attribute(tlv(0x06, bytes((0x2A, n))), tlv(0x04, bytes(40))) for n in range(9))),
}


def _refused(der: bytes) -> Denied:
    with denied_for(Reason.PLATFORM_DOCUMENT_MALFORMED) as caught:
        cms.parse(der)
    return caught.value


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.parametrize("form", FORMS)
def test_a_document_with_one_part_spoilt_is_refused(form: str, what: str) -> None:
    good = FORMS[form]()
    spoilt = SPOILT[what](good)
    _refused(spoilt.signed(signing().key).der() if spoilt.signers else spoilt.der())


@pytest.mark.parametrize("what", ATTRIBUTES)
def test_attributes_with_one_spoilt_are_refused_though_signed(what: str) -> None:
    good = FORMS["aws"]()
    assert good.attributes is not None
    _refused(replace(good, attributes=ATTRIBUTES[what](good.attributes)).signed(signing().key).der())


UNCONFIRMED: dict[str, Spoil] = {
    "another content": lambda good: replace(good, content=CONTENT.replace(b"02aab8a4", b"02aab8a5")),
    "another key's signature": lambda good: good.signed(signing(2304).key),
}


@pytest.mark.parametrize("what", UNCONFIRMED)
@pytest.mark.parametrize("form", FORMS)
def test_a_well_formed_document_that_the_key_did_not_sign_is_not_confirmed(form: str, what: str) -> None:
    read = cms.parse(UNCONFIRMED[what](FORMS[form]()).der())
    assert not read.signed_by(signing().certificate)


def test_a_weak_key_confirms_nothing() -> None:
    for bits, is_confirmed in ((1024, False), (2048, True)):
        read = cms.parse(FORMS["aws"]().signed(signing(bits).key).der())
        assert read.signed_by(signing(bits).certificate) is is_confirmed


_INNER = st.recursive(
    st.binary(max_size=140).map(lambda content: _element(Tag.OCTET_STRING, content)),
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: _element(Tag.SEQUENCE, b"".join(parts))),
    max_leaves=12,
)


def _element(kind: int, content: bytes) -> bytes:
    if len(content) < 0x80:
        return bytes([kind, len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([kind, 0x80 | len(size)]) + size + content


@st.composite
def _spoilt(draw: st.DrawFn) -> bytes:
    """One constructed element, of which a few bytes near the front were changed, added or taken away."""
    data = bytearray(_element(Tag.SEQUENCE, b"".join(draw(st.lists(_INNER, max_size=4)))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, min(len(data), 16)))
        new = bytes([draw(st.sampled_from((0, 1, 0x04, 0x1F, 0x20, 0x30, 0x80, 0x81, 0x82, 0xFF)))])
        data[at : at + draw(st.integers(0, 1))] = draw(st.sampled_from((new, b"")))
    return bytes(data)


def _integer(number: int) -> bytes:
    return cast("bytes", encoder.encode(univ.Integer(number)))


def _oracle(data: bytes, spec: object) -> Any:
    """Decode by pyasn1, which takes longer lengths than needed, and encode again, which shows them."""
    value, rest = cast("tuple[Any, bytes]", decoder.decode(data, asn1Spec=spec))
    assert not rest
    assert cast("bytes", encoder.encode(value)) == data
    return value


@given(_spoilt())
@example(b"\x30\x80\x00\x00")
@example(b"\x30\x81\x02\x05\x00")
@example(b"\x30\x82\x00\x02\x05\x00")
def test_elements_that_pass_are_those_of_an_independent_parser(data: bytes) -> None:
    try:
        found = der.elements(data, Tag.SEQUENCE, at_most=99)
    except NotDer:
        return
    assert [bytes(each) for each in _oracle(data, univ.SequenceOf(componentType=univ.Any()))] == list(found)
    assert data == _element(Tag.SEQUENCE, b"".join(found))


NOT_DER = {
    "nothing": b"",
    "no length": b"\x30",
    "cut short": b"\x30\x05\x04\x01\x00",
    "length too small": b"\x30\x01\x04\x01\x00",
    "trailing byte": b"\x30\x03\x04\x01\x00\x00",
    "another type": b"\x31\x03\x04\x01\x00",
    "indefinite length": b"\x30\x80\x04\x01\x00\x00\x00",
    "long form of a short length": b"\x30\x81\x03\x04\x01\x00",
    "leading zero in a length": b"\x30\x82\x00\x80" + bytes.fromhex("047e") + bytes(126),
    "long form inside": b"\x30\x04\x04\x81\x01\x00",
    "cut short inside": b"\x30\x03\x04\x02\x00",
    "end of contents inside": b"\x30\x02\x00\x00",
    "tag number in more octets inside": b"\x30\x03\x1f\x01\x00",
    "length beyond memory": b"\x30\xff" + b"\x01" * 127,
}


@pytest.mark.parametrize("spoilt", NOT_DER.values(), ids=NOT_DER)
def test_another_encoding_is_not_der(spoilt: bytes) -> None:
    for read in (lambda: der.elements(spoilt, Tag.SEQUENCE, at_most=99), lambda: der.integer(spoilt)):
        with pytest.raises(NotDer):
            read()


@given(st.binary(max_size=12) | st.integers(-(2**70), 2**70).map(_integer))
@example(b"\x02\x02\x00\x01")
@example(b"\x06\x03\x80\x80\x01")
def test_a_value_that_passes_is_that_of_an_independent_parser(data: bytes) -> None:
    for read, kind in ((der.integer, univ.Integer()), (der.oid, univ.ObjectIdentifier())):
        try:
            value = read(data)
        except NotDer:
            continue
        found = _oracle(data, kind)
        assert value == (tuple(found) if isinstance(value, tuple) else int(found))
