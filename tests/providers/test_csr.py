"""PKCS#10 requests of agents and of kubelet: what the attacks (D2) do not try, and laws for all bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import pytest
from counted_calls import calls
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
from hypothesis import given
from hypothesis import strategies as st
from work import lines_run

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import PROVIDER_ID_OID, Purpose
from nodeattest_providers.keys import PrivateKey, check_public_key, is_roca
from nodeattest_providers.node_interface import NodeCsr
from nodeattest_providers.pkcs10 import KubeletCsr, build_csr, parse_csr, parse_kubelet_serving

TAMPERED: Mapping[Reason, tuple[Made | bytes, ...]] = {
    Reason.CSR_MALFORMED: (b"", Made().der()[:-1], seq(Made().der()[4:], b"\x05\x00"), with_unused_bits(last_bit=1)),
    Reason.SUBJECT_NOT_ALLOWED: (
        named("n-0"),
        *(Made(subject=rdns) for rdns in ((), (NODES, NODE, NODE), (NODES, NODE, rdn()))),
        Made(subject=(NODES, NODE, rdn(attribute(SERIAL_NUMBER, utf8("x"))))),
        Made(subject=(NODES, rdn(attribute(CN, tlv(0x0C, b"system:node:\xff"))))),
    ),
    Reason.NODE_NAME_INVALID: (named("system:node:n-0\n"),),
    Reason.EXTENSION_NOT_ALLOWED: (
        Made(attributes=(attribute(EXTENSION_REQUEST, tlv(0x31)),)),
        extended(PROVIDER_ID, extension(SAN, b"\xff")),
        extended(PROVIDER_ID, extension(BASIC_CONSTRAINTS, seq())),
        extended(extension(PROVIDER_ID_OID, utf8("x"), FALSE)),
    ),
    Reason.PROVIDER_ID_INVALID: (
        extended(extension("1.2.3.4", utf8("x"))),
        *(
            extended(extension(PROVIDER_ID_OID, value))
            for value in (tlv(0x16, b"x"), b"\x0c\x81\x01x", utf8("x\0"), utf8("x\x85"), utf8("x" * 1025))
        ),
    ),
    Reason.KEY_NOT_ALLOWED: (
        with_key(seq()),
        *(with_key(rsa_spki((1 << bits) + 1)) for bits in (2046, 4096)),
        *(with_key(rsa_spki(RSA.public_key().public_numbers().n, e)) for e in (1, 65536, 2**64 + 1)),
        *(with_key(generated_spki(curve)) for curve in (ec.SECP521R1(), ec.BrainpoolP256R1())),
    ),
    Reason.CSR_SIGNATURE_INVALID: (
        with_key(spki_of(P256)[:27] + bytes(64)),
        Made(algorithm=seq(oid("1.2.840.10045.4.3.10"))),
        Made(spki=spki_of(RSA)),
        Made(sign=sign_with(P256, hashes.SHA384())),
    ),
}


def denied_reason(request: bytes, purpose: Purpose = Purpose.CLIENT) -> Reason | NodeCsr:
    """The verdict; any exception but Denied goes through and fails the test."""
    try:
        return parse_csr(request, purpose=purpose)
    except Denied as denied:
        return denied.reason


@pytest.mark.parametrize("reason", TAMPERED)
def test_a_tampered_request_is_denied(reason: Reason) -> None:
    """The catalogue (D2) has the attacks; here is what else each rule stops."""
    for made in TAMPERED[reason]:
        assert denied_reason(made if isinstance(made, bytes) else made.der()) is reason


@pytest.mark.parametrize("key", [P256, P384, RSA], ids=["P-256", "P-384", "RSA-2048"])
def test_what_is_built_is_parsed(key: PrivateKey) -> None:
    der = build_csr(key, "node-0.example.com", "azure:///subscriptions/é" + "x" * 900)
    csr = parse_csr(der)
    assert csr == NodeCsr(der, csr.node_name, csr.provider_id, spki_of(key))
    assert csr.node_name == "node-0.example.com"
    assert csr.provider_id == "azure:///subscriptions/é" + "x" * 900
    assert csr.sha256 == hashlib.sha256(der).digest()


def test_the_provider_id_oid_is_configurable() -> None:
    der = build_csr(P256, "n-0", "x://y", provider_id_oid="1.2.3.4")
    assert parse_csr(der, provider_id_oid="1.2.3.4").provider_id == "x://y"
    assert denied_reason(der) is Reason.PROVIDER_ID_INVALID


@pytest.mark.parametrize(
    ("node", "provider", "reason"),
    [
        ("N", "x", Reason.NODE_NAME_INVALID),
        ("", "x", Reason.NODE_NAME_INVALID),
        ("n", "\0", Reason.PROVIDER_ID_INVALID),
    ],
)
def test_a_bad_name_is_denied_on_the_node_already(node: str, provider: str, reason: Reason) -> None:
    with pytest.raises(Denied) as denied:
        build_csr(P256, node, provider)
    assert denied.value.reason is reason


def test_a_serving_request_without_provider_id_is_denied() -> None:
    assert denied_reason(Made(attributes=()).der(), Purpose.SERVING) is Reason.EXTENSION_NOT_ALLOWED
    without_id = extended(extension(SAN, seq(DNS))).der()
    assert denied_reason(without_id, Purpose.SERVING) is Reason.PROVIDER_ID_INVALID
    with pytest.raises(Denied) as denied:
        build_csr(P256, "n-0", "", dns_names=["n-0"])
    assert denied.value.reason is Reason.PROVIDER_ID_INVALID


def serving(names: Iterable[bytes], critical: bytes = b"") -> bytes:
    return extended(PROVIDER_ID, extension(SAN, seq(*names), critical)).der()


NO_NAMES: tuple[tuple[bytes, ...], ...] = (
    (),
    (DNS, DNS),
    (DNS, general(1, b"a@b")),
    (general(2, b"*.example"),),
    (general(2, "ñ".encode()),),
    (general(2, b"n-0\0.victim"),),
    (general(7, b"12345"),),
    (general(7, bytes(10) + b"\xff\xff\x0a\0\0\x01"),),
    tuple(general(2, b"n-%d" % number) for number in range(33)),
)


@pytest.mark.parametrize(
    "request_der",
    [
        Made().der(),
        serving([DNS], TRUE),
        *(serving(names) for names in NO_NAMES),
        extended(PROVIDER_ID, *(extension(SAN, seq(DNS)),) * 2).der(),
        extended(PROVIDER_ID, extension(SAN, seq(DNS)), CA_TRUE).der(),
        extended(PROVIDER_ID, extension(SAN, seq(DNS) + b"\x05\x00")).der(),
    ],
)
def test_a_tampered_serving_request_is_denied(request_der: bytes) -> None:
    assert denied_reason(request_der, Purpose.SERVING) is Reason.EXTENSION_NOT_ALLOWED


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
    assert lines_run(lambda: denied_reason(bomb.der())) < 3 * lines_run(lambda: denied_reason(honest))


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


def ending_in_zero(make: Callable[[], bytes]) -> bytes:
    """Make until the signature's last bit is 0, which some readers drop unseen."""
    while (der := make())[-1] & 1:
        pass
    return der


GOOD = ending_in_zero(Made().der)
GOOD_SERVING = ending_in_zero(lambda: serving([DNS, general(7, b"\x0a\0\0\x01")]))


@pytest.mark.parametrize(("der", "purpose"), [(GOOD, Purpose.CLIENT), (GOOD_SERVING, Purpose.SERVING)])
def test_each_changed_bit_is_denied(der: bytes, purpose: Purpose) -> None:
    """The signature covers what stands before it; the DER rules hold for the signature itself."""
    assert isinstance(denied_reason(der, purpose), NodeCsr)
    for position in range(8 * len(der)):
        data = bytearray(der)
        data[position // 8] ^= 1 << position % 8
        assert isinstance(denied_reason(bytes(data), purpose), Reason), position


@given(st.sampled_from([GOOD, GOOD_SERVING]), st.integers(0, 500), st.integers(0, 12), st.binary(max_size=12))
def test_any_spliced_bytes_give_a_request_or_denied(der: bytes, position: int, cut: int, insert: bytes) -> None:
    start = position % len(der)
    data = der[:start] + insert + der[start + cut :]
    for purpose in Purpose:
        assert isinstance(denied_reason(data, purpose), Reason) or data == der


KUBELET_DNS = general(2, b"n-0")
IP = general(7, bytes((10, 0, 0, 1)))


def san(names: Iterable[bytes], critical: bytes = b"") -> bytes:
    return extension(SAN, seq(*names), critical)


def verdict(request: bytes) -> Reason | KubeletCsr:
    """Any exception but Denied goes through and fails the test."""
    try:
        return parse_kubelet_serving(request)
    except Denied as denied:
        return denied.reason


def printable(kind: str, text: str) -> bytes:
    return rdn(attribute(kind, tlv(0x13, text.encode())))


def test_what_go_makes_is_read() -> None:
    # Go writes O and CN as PrintableString where it can, and no DEFAULT FALSE (crypto/x509 CreateCertificateRequest).
    subject = (printable("2.5.4.10", "system:nodes"), printable(CN, "system:node:n-0"))
    made = Made(subject=subject, attributes=(extension_request(san([KUBELET_DNS, IP])),))
    assert verdict(made.der()) == KubeletCsr("n-0", spki_of(P256), ("n-0",), ("10.0.0.1",))  # pyright: ignore[reportArgumentType] - a node name


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        pytest.param(Made(attributes=()), Reason.EXTENSION_NOT_ALLOWED, id="no extensions"),
        pytest.param(Made(), Reason.EXTENSION_NOT_ALLOWED, id="a provider ID only"),
        pytest.param(
            extended(PROVIDER_ID, san([KUBELET_DNS])), Reason.EXTENSION_NOT_ALLOWED, id="a provider ID besides"
        ),
        pytest.param(extended(san([])), Reason.EXTENSION_NOT_ALLOWED, id="no name"),
        pytest.param(extended(san([KUBELET_DNS], TRUE)), Reason.EXTENSION_NOT_ALLOWED, id="critical"),
        pytest.param(extended(san([KUBELET_DNS]), san([IP])), Reason.EXTENSION_NOT_ALLOWED, id="two SANs"),
        pytest.param(
            extended(san([general(7, bytes(10) + b"\xff\xff\x0a\0\0\x01")])), Reason.EXTENSION_NOT_ALLOWED, id="mapped"
        ),
        pytest.param(
            Made(attributes=(extension_request(san([KUBELET_DNS])),) * 2),
            Reason.EXTENSION_NOT_ALLOWED,
            id="merged by Go",
        ),
        pytest.param(
            Made(subject=(rdn(attribute("2.5.4.10", utf8("system:masters"))), Made().subject[1])),
            Reason.SUBJECT_NOT_ALLOWED,
            id="system:masters",
        ),
        pytest.param(
            Made(spki=generated_spki(ec.SECP224R1()), attributes=(extension_request(san([KUBELET_DNS])),)),
            Reason.KEY_NOT_ALLOWED,
            id="P-224",
        ),
    ],
)
def test_a_tampered_request_of_kubelet_is_denied(made: Made, reason: Reason) -> None:
    assert verdict(made.der()) is reason


@given(st.binary(max_size=300))
def test_any_bytes_give_a_request_of_kubelet_or_denied(data: bytes) -> None:
    assert isinstance(verdict(data), Reason | KubeletCsr)
