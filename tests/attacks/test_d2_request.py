"""D2: certificate requests that ask for more than a node's certificate, or whose readers would disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pytest
from apiserver_kit import encoded
from catalogue import ROWS, Row, attacks, evaluated
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from handmade import (
    BASIC_CONSTRAINTS,
    CA_TRUE,
    CN,
    DIRECTORY_NAME,
    DNS,
    ECDSA_SHA256,
    EXT_KEY_USAGE,
    EXTENSION_REQUEST,
    KEY_USAGE,
    MASTERS,
    NAME_CONSTRAINTS,
    NODE,
    NODES,
    ORG,
    OTHER_NAME,
    OU,
    P256,
    PROVIDER_ID,
    RSA,
    RSA_SHA256,
    SAN,
    TRUE,
    VICTIM,
    X509_UID,
    Made,
    attribute,
    explicit_p256,
    extended,
    extension,
    extension_request,
    general,
    generated_spki,
    integer,
    named,
    oid,
    rdn,
    roca_modulus,
    rsa_spki,
    seq,
    sign_pss,
    sign_with,
    signed_by_another_key,
    spki_of,
    tlv,
    utf8,
    with_bad_signature,
    with_key,
    with_san,
    with_unused_bits,
)

from nodeattest_providers import pem
from nodeattest_providers.envelope import LABEL_CSR
from nodeattest_providers.identifiers import PROVIDER_ID_OID
from nodeattest_providers.keys import PrivateKey
from nodeattest_providers.pkcs10 import parse_csr
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap


def organized(*names: str) -> Made:
    return Made(subject=(NODE, *(rdn(attribute(ORG, utf8(name))) for name in names)))


def of_string_type(tag: int, encoding: str) -> Made:
    return Made(subject=(NODES, rdn(attribute(CN, tlv(tag, "system:node:n-0".encode(encoding))))))


def provider_id_of(value: bytes) -> Made:
    return extended(extension(PROVIDER_ID_OID, value))


def with_attributes(*attributes: bytes) -> Made:
    return Made(attributes=attributes)


def usage(kind: str) -> bytes:
    return extension(EXT_KEY_USAGE, seq(oid(kind)))


def signed_by(key: PrivateKey) -> Made:
    """A request that its own key really signed, so that only the key is wrong."""
    algorithm = RSA_SHA256 if isinstance(key, rsa.RSAPrivateKey) else ECDSA_SHA256
    return Made(spki=spki_of(key), algorithm=algorithm, sign=sign_with(key, hashes.SHA256()))


def off_the_curve() -> bytes:
    return spki_of(P256)[:-1] + bytes([spki_of(P256)[-1] ^ 1])


def ed448_spki() -> bytes:
    key = ed448.Ed448PrivateKey.generate().public_key()
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


PASSWORD: Final = attribute("1.2.840.113549.1.9.7", tlv(0x31, utf8("secret")))
MICROSOFTS: Final = attribute("1.3.6.1.4.1.311.2.1.14", tlv(0x31, seq(PROVIDER_ID)))
TWO_VALUES: Final = attribute(EXTENSION_REQUEST, tlv(0x31, seq(PROVIDER_ID), seq(CA_TRUE)))
UNKNOWN: Final = extension("1.2.3.4", b"\x05\x00")
OTHER_ID: Final = extension(PROVIDER_ID_OID, utf8("aws:///eu/i-victim"))
MODULUS: Final = RSA.public_key().public_numbers().n

_MADE: Final[Mapping[str, Made | bytes]] = {
    "D2-01": with_bad_signature(),
    "D2-02": signed_by_another_key(),
    "D2-03": Made(sign=lambda _: b""),
    "D2-04": Made().der() + b"\0",
    "D2-05": b"\x30\x83\x00" + Made().der()[2:],
    "D2-06": b"\x30\x80" + Made().der()[4:] + b"\0\0",
    "D2-07": with_unused_bits(last_bit=0),
    "D2-08": Made(version=b"\x02\x01\x01"),
    "D2-09": seq(b"\0" * 20_000),
    "D2-10": Made(subject=(NODES, NODE, VICTIM)),
    "D2-11": Made(subject=(NODES, VICTIM, NODE)),
    "D2-12": Made(subject=(rdn(attribute(CN, utf8("system:node:n-0")), attribute(ORG, utf8("system:nodes"))),)),
    "D2-13": named("system:node:"),
    "D2-14": named("system:node:N-0"),
    "D2-15": named("system:node:n-0."),
    "D2-16": named("system:node:n-0 "),
    "D2-17": named("system:node:../n-0"),
    "D2-18": named("system:node:n-0\0.victim"),
    "D2-19": named("system:node:\uff4eode"),
    "D2-20": named("system:node:n\u043ede"),
    "D2-21": named("system:node:" + "n" * 254),
    "D2-22": named("system:node:*"),
    "D2-23": of_string_type(0x1E, "utf-16-be"),
    "D2-24": of_string_type(0x14, "ascii"),
    "D2-25": named("system:nodes:n-0"),
    "D2-26": Made(subject=(NODES, MASTERS, NODE)),
    "D2-27": organized("system:masters"),
    "D2-28": organized(),
    "D2-29": organized("system:nodes "),
    "D2-30": Made(subject=(NODES, NODE, rdn(attribute(OU, utf8("x"))))),
    "D2-31": Made(subject=(NODES, NODE, rdn(attribute(X509_UID, utf8("x"))))),
    "D2-32": with_san(DNS),
    "D2-33": with_san(general(7, b"\x0a\0\0\x01")),
    "D2-34": with_san(general(1, b"root@example.com")),
    "D2-35": with_san(general(6, b"spiffe://example.com/victim")),
    "D2-36": with_san(OTHER_NAME),
    "D2-37": with_san(DIRECTORY_NAME),
    "D2-38": with_san(general(8, b"\x2a\x03")),
    "D2-39": with_san(),
    "D2-40": with_attributes(extension_request(PROVIDER_ID), extension_request(extension(SAN, seq(DNS)))),
    "D2-41": with_attributes(extension_request(PROVIDER_ID), extension_request(CA_TRUE)),
    "D2-42": with_attributes(TWO_VALUES),
    "D2-43": with_attributes(PASSWORD, extension_request(PROVIDER_ID)),
    "D2-44": with_attributes(MICROSOFTS),
    "D2-45": extended(PROVIDER_ID, UNKNOWN, UNKNOWN),
    "D2-46": extended(PROVIDER_ID, extension(BASIC_CONSTRAINTS, seq(TRUE), TRUE)),
    "D2-47": extended(PROVIDER_ID, extension(KEY_USAGE, bytes.fromhex("03020204"), TRUE)),
    "D2-48": extended(PROVIDER_ID, extension(NAME_CONSTRAINTS, seq())),
    "D2-49": extended(PROVIDER_ID, usage("2.5.29.37.0")),
    "D2-50": extended(PROVIDER_ID, usage("1.3.6.1.5.5.7.3.1")),
    "D2-51": extended(PROVIDER_ID, extension("1.2.3.4", b"\x05\x00", TRUE)),
    "D2-52": extended(),
    "D2-53": extended(PROVIDER_ID, OTHER_ID),
    "D2-54": extended(extension(PROVIDER_ID_OID, utf8("x"), TRUE)),
    "D2-55": provider_id_of(tlv(0x0C, b"\xff")),
    "D2-56": provider_id_of(utf8("x") + b"\x05\x00"),
    "D2-57": provider_id_of(seq(utf8("zone"), utf8("instance"))),
    "D2-58": provider_id_of(utf8("")),
    "D2-59": provider_id_of(utf8("aws:///i-1\nrefused")),
    "D2-60": provider_id_of(utf8("aws:///\u202e1-i")),
    "D2-61": with_key(rsa_spki((1 << 511) + 1)),
    "D2-62": signed_by(rsa.generate_private_key(65537, 1024)),  # noqa: S505 - the attack
    "D2-63": with_key(rsa_spki((1 << 16383) + 1)),
    "D2-64": with_key(rsa_spki(MODULUS, 1)),
    "D2-65": signed_by(rsa.generate_private_key(3, 2048)),
    "D2-66": with_key(rsa_spki(MODULUS - 1)),
    "D2-67": with_key(rsa_spki(roca_modulus())),
    "D2-68": signed_by(ec.generate_private_key(ec.SECP224R1())),
    "D2-69": signed_by(ec.generate_private_key(ec.SECP256K1())),
    "D2-70": with_key(explicit_p256()),
    "D2-71": with_key(generated_spki(ec.SECP256R1(), point="compressed")),
    "D2-72": with_key(off_the_curve()),
    "D2-73": with_key(seq(seq(oid("1.2.840.10040.4.1")), tlv(3, b"\0", integer(5)))),
    "D2-74": with_key(ed448_spki()),
    "D2-75": Made(algorithm=seq(oid("1.2.840.10045.4.1")), sign=sign_with(P256, hashes.SHA1())),  # noqa: S303 - the attack
    "D2-76": Made(
        spki=spki_of(RSA),
        algorithm=seq(oid("1.2.840.113549.1.1.4"), b"\x05\x00"),
        sign=sign_with(RSA, hashes.MD5()),  # noqa: S303 - the attack
    ),
    "D2-77": Made(algorithm=RSA_SHA256),
    "D2-78": Made(spki=spki_of(RSA), algorithm=seq(oid("1.2.840.113549.1.1.10"), seq()), sign=sign_pss),
    "D2-79": Made(algorithm=seq(oid("1.2.840.10045.4.3.2"), b"\x05\x00")),
    "D2-80": with_attributes(),
    "D2-81": with_attributes(PASSWORD),
}

REQUESTS: Final[Mapping[str, bytes]] = {
    row: made if isinstance(made, bytes) else made.der() for row, made in _MADE.items()
}
"""DER."""


def test_the_request_that_the_attacks_spoil_is_a_good_one() -> None:
    assert parse_csr(Made().der()).node_name == "n-0"


@pytest.mark.parametrize(("row", "der"), attacks(REQUESTS))
def test_a_spoilt_request_is_denied(row: Row, der: bytes) -> None:
    assert evaluated(lambda: parse_csr(der)) == row.expected


@pytest.mark.conformance
@pytest.mark.parametrize(("row", "der"), attacks({row: der for row, der in REQUESTS.items() if ROWS[row].api}))
def test_the_api_server_does_with_the_request_what_is_known(
    answer_to: Callable[[JsonMap], str], row: Row, der: bytes
) -> None:
    assert answer_to({"request": encoded(pem.encode([(LABEL_CSR, der)]))}) == row.api
