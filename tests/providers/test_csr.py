"""PKCS#10 requests of agents and of kubelet: what the attacks (D2) do not try, and laws for all bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import pytest
from counted_calls import calls, lines_run
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from handmade import (
    BASIC_CONSTRAINTS,
    CA_TRUE,
    CN,
    DNS,
    EXTENSION_REQUEST,
    FALSE,
    NODE,
    NODES,
    ORG,
    P256,
    P384,
    PROVIDER_ID,
    RSA,
    SAN,
    SERIAL_NUMBER,
    TRUE,
    Made,
    attribute,
    extended,
    extension,
    extension_request,
    general,
    generated_spki,
    named,
    oid,
    rdn,
    roca_modulus,
    rsa_spki,
    seq,
    sign_with,
    spki_of,
    tlv,
    utf8,
    with_key,
    with_san,
    with_unused_bits,
)
from worlds import denied_for

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import PROVIDER_ID_OID, NodeName, ProviderID, Purpose
from nodeattest_providers.keys import PrivateKey, check_public_key, is_roca
from nodeattest_providers.node_interface import NodeCsr
from nodeattest_providers.pkcs10 import build_csr, parse_csr, parse_kubelet_serving

Reader = Callable[[bytes], NodeCsr]
CLIENT: Reader = parse_csr
SERVING: Reader = partial(parse_csr, purpose=Purpose.SERVING)
KUBELET: Reader = parse_kubelet_serving
IP = general(7, bytes((10, 0, 0, 1)))
MAPPED = general(7, bytes(10) + b"\xff\xff\x0a\0\0\x01")


def san(*names: bytes, critical: bytes = b"") -> bytes:
    return extension(SAN, seq(*names), critical)


WITH_DNS = extension_request(san(DNS))
TAMPERED: dict[tuple[Reader, Reason], tuple[Made | bytes, ...]] = {
    (CLIENT, Reason.CSR_MALFORMED): (
        b"",
        Made().der()[:-1],
        seq(Made().der()[4:], b"\x05\x00"),
        with_unused_bits(last_bit=1),
    ),
    (CLIENT, Reason.SUBJECT_NOT_ALLOWED): (
        named("n-0"),
        *(Made(subject=rdns) for rdns in ((), (NODES, NODE, NODES), (NODES, NODE, rdn()))),
        Made(subject=(NODES, NODE, rdn(attribute(SERIAL_NUMBER, utf8("x"))))),
        Made(subject=(NODES, rdn(attribute(CN, tlv(0x0C, b"system:node:\xff"))))),
    ),
    (CLIENT, Reason.NODE_NAME_INVALID): (named("system:node:n-0\n"),),
    (CLIENT, Reason.EXTENSION_NOT_ALLOWED): (
        Made(attributes=(attribute(EXTENSION_REQUEST, tlv(0x31)),)),
        extended(PROVIDER_ID, extension(SAN, b"\xff")),
        extended(PROVIDER_ID, extension(BASIC_CONSTRAINTS, seq())),
        extended(extension(PROVIDER_ID_OID, utf8("x"), FALSE)),
    ),
    (CLIENT, Reason.PROVIDER_ID_INVALID): (
        extended(extension("1.2.3.4", utf8("x"))),
        *(
            extended(extension(PROVIDER_ID_OID, value))
            for value in (tlv(0x16, b"x"), b"\x0c\x81\x01x", utf8("x\0"), utf8("x\x85"), utf8("x" * 1025))
        ),
    ),
    (CLIENT, Reason.KEY_NOT_ALLOWED): (
        with_key(seq()),
        *(with_key(rsa_spki((1 << bits) + 1)) for bits in (2046, 4096)),
        *(with_key(rsa_spki(RSA.public_key().public_numbers().n, e)) for e in (1, 65536, 2**64 + 1)),
        *(with_key(generated_spki(curve)) for curve in (ec.SECP521R1(), ec.BrainpoolP256R1())),
    ),
    (CLIENT, Reason.CSR_SIGNATURE_INVALID): (
        with_key(spki_of(P256)[:27] + bytes(64)),
        Made(algorithm=seq(oid("1.2.840.10045.4.3.10"))),
        Made(spki=spki_of(RSA)),
        Made(sign=sign_with(P256, hashes.SHA384())),
        Made(algorithm=seq(oid("1.2.840.10045.4.3.1")), sign=sign_with(P256, hashes.SHA224())),
    ),
    (SERVING, Reason.PROVIDER_ID_INVALID): (extended(san(DNS)),),
    (SERVING, Reason.EXTENSION_NOT_ALLOWED): (
        Made(),
        Made(attributes=()),
        extended(PROVIDER_ID, san(DNS, critical=TRUE)),
        *(with_san(*names) for names in ((), (DNS, DNS), (DNS, general(1, b"a@b")), (MAPPED,))),
        *(with_san(general(2, name)) for name in (b"*.example", "ñ".encode(), b"n-0\0.victim")),
        with_san(general(7, b"12345")),
        with_san(*(general(2, b"n-%d" % number) for number in range(33))),
        extended(PROVIDER_ID, san(DNS), san(DNS)),
        extended(PROVIDER_ID, san(DNS), CA_TRUE),
        extended(PROVIDER_ID, extension(SAN, seq(DNS) + b"\x05\x00")),
    ),
    (KUBELET, Reason.EXTENSION_NOT_ALLOWED): (
        Made(),
        Made(attributes=()),
        Made(attributes=(WITH_DNS, WITH_DNS)),
        *(extended(PROVIDER_ID, san(DNS)), extended(san(DNS), san(IP))),
        *(extended(each) for each in (san(), san(DNS, critical=TRUE), san(MAPPED))),
    ),
    (KUBELET, Reason.SUBJECT_NOT_ALLOWED): (
        Made(subject=(rdn(attribute(ORG, utf8("system:masters"))), NODE), attributes=(WITH_DNS,)),
    ),
    (KUBELET, Reason.KEY_NOT_ALLOWED): (Made(spki=generated_spki(ec.SECP224R1()), attributes=(WITH_DNS,)),),
}


def outcome(read: Reader, request: bytes) -> Reason | NodeCsr:
    """Any exception but Denied goes through and fails the test."""
    try:
        return read(request)
    except Denied as denied:
        return denied.reason


@pytest.mark.parametrize(("read", "reason"), TAMPERED)
def test_a_tampered_request_is_denied(read: Reader, reason: Reason) -> None:
    for made in TAMPERED[read, reason]:
        assert outcome(read, made if isinstance(made, bytes) else made.der()) is reason


@pytest.mark.parametrize("key", [P256, P384, RSA], ids=["P-256", "P-384", "RSA-2048"])
def test_what_is_built_is_parsed(key: PrivateKey) -> None:
    provider_id = ProviderID("azure:///subscriptions/é" + "x" * 900)
    der = build_csr(key, "node-0.example.com", provider_id, provider_id_oid="1.2.3.4")
    csr = parse_csr(der, provider_id_oid="1.2.3.4")
    assert csr == NodeCsr(der, NodeName("node-0.example.com"), provider_id, spki_of(key))
    assert csr.sha256 == hashlib.sha256(der).digest()
    assert outcome(CLIENT, der) is Reason.PROVIDER_ID_INVALID  # by another OID


def test_what_go_makes_is_read() -> None:
    # Go writes O and CN as PrintableString where it can, and no DEFAULT FALSE (crypto/x509 CreateCertificateRequest).
    values = {ORG: b"system:nodes", CN: b"system:node:n-0"}
    subject = tuple(rdn(attribute(kind, tlv(0x13, text))) for kind, text in values.items())
    der = Made(subject=subject, attributes=(extension_request(san(general(2, b"N-0"), IP)),)).der()
    expected = NodeCsr(der, NodeName("n-0"), ProviderID(""), spki_of(P256), ("n-0",), ("10.0.0.1",))
    assert parse_kubelet_serving(der) == expected


@pytest.mark.parametrize(
    ("node", "provider", "names", "reason"),
    [
        ("N", "x", [], Reason.NODE_NAME_INVALID),
        ("", "x", [], Reason.NODE_NAME_INVALID),
        ("n", "\0", [], Reason.PROVIDER_ID_INVALID),
        ("n", "", ["n"], Reason.PROVIDER_ID_INVALID),
    ],
)
def test_a_bad_name_is_denied_on_the_node_already(node: str, provider: str, names: list[str], reason: Reason) -> None:
    with denied_for(reason):
        build_csr(P256, node, provider, dns_names=names)


@pytest.mark.parametrize(
    "bomb",
    [
        Made(subject=(NODES, *(rdn(attribute(CN, utf8("a"))) for _ in range(1_100)))),
        Made(attributes=(extension_request(PROVIDER_ID),) * 300),
        extended(*(PROVIDER_ID,) * 400),
        Made(subject=(rdn(seq(tlv(6, b"\x2a", bytes([0x81]) * 15_000 + b"\1"), utf8(""))),)),
    ],
    ids=["names", "attributes", "extensions", "one arc"],
)
def test_a_request_swollen_in_one_place_costs_little_more_than_an_honest_one(bomb: Made) -> None:
    """A real API server takes the first; reading all of it once took 190 ms."""
    honest = with_san(*(tlv(0x82, b"n-%d" % number) for number in range(32))).der()
    assert lines_run(lambda: outcome(CLIENT, bomb.der())) < 3 * lines_run(lambda: outcome(CLIENT, honest))


def test_a_request_is_read_and_its_signature_checked_once_however_often_it_is_named() -> None:
    request = Made().der()

    def three_times() -> None:
        for _ in range(3):  # as the first request, as the first one that the second names, and as the second
            parse_csr(request)

    assert calls(three_times, of=parse_csr.__wrapped__.__code__) == 1


def test_a_key_check_reads_modulus_size_before_anything_costly() -> None:
    large = rsa_spki((1 << 100_000) + 1)

    def check() -> None:
        with pytest.raises(Denied):
            check_public_key(large)

    assert calls(check, of=is_roca.__code__) == 0
    assert calls(lambda: check_public_key(spki_of(RSA)), of=is_roca.__code__) == 1


def test_the_fingerprint_of_weak_primes_is_known_and_rare() -> None:
    assert is_roca(roca_modulus())
    assert not is_roca(RSA.public_key().public_numbers().n)
    assert not any(is_roca(number) for number in range(3, 20_001, 2) if number % 3 == 0)


def ending_in_zero(made: Made) -> bytes:
    """Make until the signature's last bit is 0, which some readers drop unseen."""
    while (der := made.der())[-1] & 1:
        pass
    return der


GOOD = ending_in_zero(Made())
GOOD_SERVING = ending_in_zero(with_san(DNS, IP))


@pytest.mark.parametrize(("der", "read"), [(GOOD, CLIENT), (GOOD_SERVING, SERVING)])
def test_each_changed_bit_is_denied(der: bytes, read: Reader) -> None:
    """The signature covers what stands before it; the DER rules hold for the signature itself."""
    assert isinstance(outcome(read, der), NodeCsr)
    for position in range(8 * len(der)):
        data = bytearray(der)
        data[position // 8] ^= 1 << position % 8
        assert isinstance(outcome(read, bytes(data)), Reason), position
