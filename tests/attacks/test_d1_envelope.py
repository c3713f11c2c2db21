"""D1 and D2: bytes that two readers of an envelope or request could take for different ones, or that cost too much."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Mapping
from typing import Final

import pytest
from apiserver_kit import encoded
from catalogue import ROWS, Row, attacks, evaluated
from counted_calls import calls
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

from nodeattest_providers import envelope, pem
from nodeattest_providers.envelope import LABEL_CSR, LABEL_DATA, LABEL_PROVIDER, LABELS
from nodeattest_providers.identifiers import PROVIDER_ID_OID, ProviderName
from nodeattest_providers.keys import PrivateKey
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.pkcs10 import build_csr, parse_csr
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

KEY: Final = ec.generate_private_key(ec.SECP256R1())
OWN: Final = build_csr(KEY, "node-0", "metal://node-0")
GOOD: Final = envelope.encode(OWN, Evidence(ProviderName("tpm"), 1, {}))
REQUEST: Final = pem.encode([(LABEL_CSR, OWN)])
VICTIMS: Final = pem.encode([(LABEL_CSR, build_csr(KEY, "victim", "metal://victim"))])
PROVIDER: Final = pem.encode([(LABEL_PROVIDER, b"tpm/v1")])
INSECURE: Final = pem.encode([(LABEL_PROVIDER, b"insecure/v1")])
DATA: Final = pem.encode([(LABEL_DATA, b"{}")])


def block(label: str, text: str, *, end: str = "") -> bytes:
    """A block whose text is written as it is."""
    return f"-----BEGIN {label}-----\n{text}\n-----END {end or label}-----\n".encode()


def text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def of_width(columns: int) -> bytes:
    text = text_of(OWN)
    return block(LABEL_CSR, "\n".join(text[at : at + columns] for at in range(0, len(text), columns)))


def says(provider: bytes) -> bytes:
    return pem.encode(zip(LABELS, (OWN, provider, b"{}"), strict=True))


def holds(data: bytes) -> bytes:
    return pem.encode(zip(LABELS, (OWN, b"tpm/v1", data), strict=True))


def beyond(size: int) -> bytes:
    """The envelope of an honest shape that is the first one larger than ``size``."""
    padding = 3 * (size - len(GOOD)) // 4 // 65 * 64
    while len(made := holds(b'{"log":"' + b"x" * padding + b'"}')) <= size:
        padding += 1
    return made


ENVELOPES: Final[Mapping[str, bytes]] = {
    "D1-01": b"a node of mine\n" + GOOD,
    "D1-02": PROVIDER + DATA + REQUEST,
    "D1-03": GOOD + VICTIMS,
    "D1-04": REQUEST + VICTIMS + PROVIDER + DATA,
    "D1-05": GOOD + DATA,
    "D1-06": REQUEST + PROVIDER + INSECURE + DATA,
    "D1-07": REQUEST + DATA + PROVIDER,
    "D1-08": GOOD + pem.encode([("CERTIFICATE", b"x")]),
    "D1-09": REQUEST,
    "D1-10": GOOD.replace(b"REQUEST-----\n", b"REQUEST-----\nProc-Type: 4\n\n", 1),
    "D1-11": GOOD.replace(b"DATA-----\n", b"DATA-----\nX-Node: victim\n\n", 1),
    "D1-12": GOOD.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"),
    "D1-13": GOOD.replace(b"END CERTIFICATE REQUEST", b"END CERTIFICATE"),
    "D1-14": GOOD.replace(b"END KUBELET AUTHENTICATOR ATTESTATION DATA", b"END CERTIFICATE"),
    "D1-15": GOOD.replace(b"\n", b"\r\n"),
    "D1-16": GOOD.replace(b"\n", b"\r"),
    "D1-17": REQUEST + b"\0" + PROVIDER + DATA,
    "D1-18": REQUEST + b"and\n" + PROVIDER + DATA,
    "D1-19": GOOD + b"\n",
    "D1-20": of_width(76) + PROVIDER + DATA,
    "D1-21": GOOD.removesuffix(b"\n"),
    "D1-22": block(LABEL_CSR, text_of(OWN)[:64] + " " + text_of(OWN)[64:]) + PROVIDER + DATA,
    "D1-23": REQUEST + PROVIDER + block(LABEL_DATA, "e31="),
    "D1-24": REQUEST + PROVIDER + block(LABEL_DATA, ""),
    "D1-25": b"see: " + GOOD,
    "D1-26": GOOD.replace(b"CERTIFICATE REQUEST", b"certificate request"),
    "D1-27": GOOD.replace(LABEL_DATA.encode(), b"ATTESTATION DATA"),
    "D1-28": beyond(256 << 10),
    "D1-29": REQUEST + PROVIDER + DATA * 10_000,
    "D1-30": REQUEST + PROVIDER + DATA * 2_000,
    "D1-31": says(b"tpm"),
    "D1-32": says(b"tpm/v01"),
    "D1-33": says(b"tpm/v1\n"),
    "D1-34": says("\uff54\uff50\uff4d/v1".encode()),
    "D1-35": says(b"tpm/v1/v2"),
    "D1-36": holds(base64.b64encode(b"{}")),
    "D1-37": holds(b"[]"),
    "D1-38": holds(gzip.compress(b"{}")),
    "D1-39": holds(b'{"phase":1,"phase":2}'),
    "D1-40": holds(b'{"phase":NaN}'),
    "D1-41": holds(b'{"phase":1.0}'),
    "D1-42": holds(b'{"phase":' + b"9" * 10_000 + b"}"),
    "D1-43": holds(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "D1-44": holds(b'{"phase":1,"mac":""}'),
    "D1-45": holds(b'{"phase": 1}'),
    "D1-46": holds(b'{"phase":"\\u0031"}'),
    "D1-47": holds(b"\xef\xbb\xbf{}"),
    "D1-48": holds("{}".encode("utf-16")),
    "D1-49": holds(b'{"phase":"\\ud800"}'),
    "D1-50": holds(b'{"phase":-0}'),
    "D1-51": holds(b'{"a":[' + b"1," * 5_000 + b"1]}"),
    "D1-52": holds(b'{"phase":9223372036854775808}'),
}


CALLS: Final = 20_000
"""More than any of these costs, of functions and for 256 KiB."""


def test_the_envelope_that_the_attacks_spoil_is_a_good_one() -> None:
    csr, evidence = envelope.decode(GOOD)
    assert (csr.node_name, evidence.provider, evidence.version) == ("node-0", "tpm", 1)


@pytest.mark.parametrize(("row", "request_bytes"), attacks(ENVELOPES))
def test_a_spoilt_envelope_is_denied_in_few_calls(row: Row, request_bytes: bytes) -> None:
    assert evaluated(lambda: envelope.decode(request_bytes)) == row.expected
    assert calls(lambda: evaluated(lambda: envelope.decode(request_bytes))) < CALLS


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("row", "request_bytes"), attacks({row: raw for row, raw in ENVELOPES.items() if ROWS[row].api})
)
def test_the_api_server_does_with_it_what_is_known(
    answer_to: Callable[[JsonMap], str], row: Row, request_bytes: bytes
) -> None:
    assert answer_to({"request": encoded(request_bytes)}) == row.api


# D2: certificate requests that ask for more than a node's certificate, or whose readers would disagree


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
