"""What is tried on requests, row by row: each a well-signed request with one thing wrong.

The requests are written DER element by DER element, since no library writes most of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import pytest
from counted_calls import calls
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from handmade import (
    BASIC_CONSTRAINTS,
    CA_TRUE,
    CN,
    DIRECTORY_NAME,
    DNS,
    EXT_KEY_USAGE,
    EXTENSION_REQUEST,
    FALSE,
    KEY_USAGE,
    MASTERS,
    NAME_CONSTRAINTS,
    NODE,
    NODES,
    ORG,
    OTHER_NAME,
    OU,
    P256,
    P384,
    PROVIDER_ID,
    RSA,
    RSA_SHA256,
    SAN,
    SERIAL_NUMBER,
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
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers.csr import build_csr, parse_csr
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.key_types import PrivateKey
from nodeattest_providers.keys import check_public_key, is_roca
from nodeattest_providers.names import PROVIDER_ID_OID, Purpose
from nodeattest_providers.node_interface import NodeCsr

TAMPERED: dict[str, tuple[Made | bytes, Reason]] = {
    "16 bad signature": (with_bad_signature(), Reason.CSR_SIGNATURE_INVALID),
    "16 signed by another key": (signed_by_another_key(), Reason.CSR_SIGNATURE_INVALID),
    "16 no signature": (Made(sign=lambda _: b""), Reason.CSR_SIGNATURE_INVALID),
    "17 trailing byte": (Made().der() + b"\0", Reason.CSR_MALFORMED),
    "17 truncated": (Made().der()[:-1], Reason.CSR_MALFORMED),
    "17 empty": (b"", Reason.CSR_MALFORMED),
    "17 a fourth element": (seq(Made().der()[4:], b"\x05\x00"), Reason.CSR_MALFORMED),
    "17 long form of a length": (b"\x30\x83\x00" + Made().der()[2:], Reason.CSR_MALFORMED),
    "17 indefinite length": (b"\x30\x80" + Made().der()[4:] + b"\0\0", Reason.CSR_MALFORMED),
    "17 too large": (seq(b"\0" * 20_000), Reason.CSR_MALFORMED),
    "17 unused bits of 0 in the signature": (with_unused_bits(last_bit=0), Reason.CSR_MALFORMED),
    "17 unused bits of 1 in the signature": (with_unused_bits(last_bit=1), Reason.CSR_MALFORMED),
    "17 version 2": (Made(version=b"\x02\x01\x01"), Reason.CSR_MALFORMED),
    "18 own CN then victim's": (Made(subject=(NODES, NODE, VICTIM)), Reason.SUBJECT_NOT_ALLOWED),
    "18 victim's CN then own": (Made(subject=(NODES, VICTIM, NODE)), Reason.SUBJECT_NOT_ALLOWED),
    "18 the same CN twice": (Made(subject=(NODES, NODE, NODE)), Reason.SUBJECT_NOT_ALLOWED),
    "18 two CNs, no O": (Made(subject=(NODE, NODE)), Reason.SUBJECT_NOT_ALLOWED),
    "19 multi-valued RDN": (
        Made(subject=(rdn(attribute(CN, utf8("system:node:n-0")), attribute(ORG, utf8("system:nodes"))),)),
        Reason.SUBJECT_NOT_ALLOWED,
    ),
    "19 two CNs in one RDN": (
        Made(subject=(NODES, rdn(*(attribute(CN, utf8(f"system:node:{name}")) for name in ("n-0", "v"))))),
        Reason.SUBJECT_NOT_ALLOWED,
    ),
    "19 empty RDN": (Made(subject=(NODES, NODE, rdn())), Reason.SUBJECT_NOT_ALLOWED),
    "20 empty node name": (named("system:node:"), Reason.NODE_NAME_INVALID),
    "21 upper case": (named("system:node:N-0"), Reason.NODE_NAME_INVALID),
    "21 trailing dot": (named("system:node:n-0."), Reason.NODE_NAME_INVALID),
    "21 trailing space": (named("system:node:n-0 "), Reason.NODE_NAME_INVALID),
    "21 newline": (named("system:node:n-0\n"), Reason.NODE_NAME_INVALID),
    "21 slash": (named("system:node:n/0"), Reason.NODE_NAME_INVALID),
    "21 colon": (named("system:node:n:0"), Reason.NODE_NAME_INVALID),
    "21 NUL": (named("system:node:n-0\0.victim"), Reason.NODE_NAME_INVALID),
    "21 full-width": (named("system:node:\uff4eode"), Reason.NODE_NAME_INVALID),
    "21 Cyrillic": (named("system:node:n\u043ede"), Reason.NODE_NAME_INVALID),
    "21 Arabic digit": (named("system:node:n\u0660"), Reason.NODE_NAME_INVALID),
    "21 254 characters": (named("system:node:" + "n" * 254), Reason.NODE_NAME_INVALID),
    "21 empty label": (named("system:node:n..0"), Reason.NODE_NAME_INVALID),
    "21 wildcard": (named("system:node:*"), Reason.NODE_NAME_INVALID),
    "21 not UTF-8": (
        Made(subject=(NODES, rdn(attribute(CN, tlv(0x0C, b"system:node:\xff"))))),
        Reason.SUBJECT_NOT_ALLOWED,
    ),
    "21 BMPString": (
        Made(subject=(NODES, rdn(attribute(CN, tlv(0x1E, "system:node:n-0".encode("utf-16-be")))))),
        Reason.SUBJECT_NOT_ALLOWED,
    ),
    "21 TeletexString": (
        Made(subject=(NODES, rdn(attribute(CN, tlv(0x14, b"system:node:n-0"))))),
        Reason.SUBJECT_NOT_ALLOWED,
    ),
    "21 no prefix": (named("n-0"), Reason.SUBJECT_NOT_ALLOWED),
    "21 prefix of another case": (named("System:node:n-0"), Reason.SUBJECT_NOT_ALLOWED),
    "21 the proposal's misprint": (named("system:nodes:n-0"), Reason.SUBJECT_NOT_ALLOWED),
    "24 O masters besides": (Made(subject=(NODES, MASTERS, NODE)), Reason.SUBJECT_NOT_ALLOWED),
    "24 O masters first": (Made(subject=(MASTERS, NODES, NODE)), Reason.SUBJECT_NOT_ALLOWED),
    "24 O masters alone": (Made(subject=(MASTERS, NODE)), Reason.SUBJECT_NOT_ALLOWED),
    "25 O missing": (Made(subject=(NODE,)), Reason.SUBJECT_NOT_ALLOWED),
    "25 O singular": (Made(subject=(rdn(attribute(ORG, utf8("system:node"))), NODE)), Reason.SUBJECT_NOT_ALLOWED),
    "25 O with space": (Made(subject=(rdn(attribute(ORG, utf8("system:nodes "))), NODE)), Reason.SUBJECT_NOT_ALLOWED),
    "25 empty subject": (Made(subject=()), Reason.SUBJECT_NOT_ALLOWED),
    **{
        f"26 extra RDN {kind}": (
            Made(subject=(NODES, NODE, rdn(attribute(kind, utf8("x"))))),
            Reason.SUBJECT_NOT_ALLOWED,
        )
        for kind in (OU, SERIAL_NUMBER, X509_UID)
    },
    **{
        f"27, 28 SAN {name}": (with_san(*content), Reason.EXTENSION_NOT_ALLOWED)
        for name, content in {
            "DNS": (DNS,),
            "IP": (general(7, b"\x0a\0\0\x01"),),
            "email": (general(1, b"a@b"),),
            "URI": (general(6, b"spiffe://x/y"),),
            "otherName": (OTHER_NAME,),
            "directoryName": (DIRECTORY_NAME,),
            "registeredID": (general(8, b"\x2a\x03"),),
            "empty": (),
        }.items()
    },
    "28 SAN garbage": (extended(PROVIDER_ID, extension(SAN, b"\xff")), Reason.EXTENSION_NOT_ALLOWED),
    "29 second extensionRequest with SAN": (
        Made(attributes=(extension_request(PROVIDER_ID), extension_request(extension(SAN, seq(DNS))))),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "29 second extensionRequest with CA": (
        Made(attributes=(extension_request(PROVIDER_ID), extension_request(CA_TRUE))),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "29 second value in extensionRequest": (
        Made(attributes=(attribute(EXTENSION_REQUEST, tlv(0x31, seq(PROVIDER_ID), seq(CA_TRUE))),)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "29 no value in extensionRequest": (
        Made(attributes=(attribute(EXTENSION_REQUEST, tlv(0x31)),)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "29 challengePassword besides": (
        Made(attributes=(attribute("1.2.840.113549.1.9.7", tlv(0x31, utf8("x"))), extension_request(PROVIDER_ID))),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "29 Microsoft's extensionRequest": (
        Made(attributes=(attribute("1.3.6.1.4.1.311.2.1.14", tlv(0x31, seq(PROVIDER_ID))),)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "29 an attribute that is no extensionRequest": (
        Made(attributes=(attribute("1.2.840.113549.1.9.7", tlv(0x31, utf8("x"))),)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "31 unknown extension twice": (
        extended(PROVIDER_ID, *(extension("1.2.3.4", b"\x05\x00"),) * 2),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "32 CA:true": (extended(PROVIDER_ID, CA_TRUE), Reason.EXTENSION_NOT_ALLOWED),
    "32 CA:false": (extended(PROVIDER_ID, extension(BASIC_CONSTRAINTS, seq())), Reason.EXTENSION_NOT_ALLOWED),
    "32 pathLen": (
        extended(PROVIDER_ID, extension(BASIC_CONSTRAINTS, seq(TRUE, integer(3)), TRUE)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "32 keyCertSign": (
        extended(PROVIDER_ID, extension(KEY_USAGE, bytes.fromhex("03020204"), TRUE)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "32 nameConstraints": (extended(PROVIDER_ID, extension(NAME_CONSTRAINTS, seq())), Reason.EXTENSION_NOT_ALLOWED),
    **{
        f"33 EKU {kind}": (
            extended(PROVIDER_ID, extension(EXT_KEY_USAGE, seq(oid(kind)))),
            Reason.EXTENSION_NOT_ALLOWED,
        )
        for kind in ("2.5.29.37.0", "1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2")
    },
    "34 unknown critical extension": (
        extended(PROVIDER_ID, extension("1.2.3.4", b"\x05\x00", TRUE)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "35 provider ID absent": (extended(), Reason.PROVIDER_ID_INVALID),
    "35 another extension instead": (extended(extension("1.2.3.4", utf8("x"))), Reason.PROVIDER_ID_INVALID),
    "35 provider ID twice": (extended(PROVIDER_ID, PROVIDER_ID), Reason.EXTENSION_NOT_ALLOWED),
    "35 provider ID critical": (
        extended(extension(PROVIDER_ID_OID, utf8("x"), TRUE)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    "35 criticality FALSE written": (
        extended(extension(PROVIDER_ID_OID, utf8("x"), FALSE)),
        Reason.EXTENSION_NOT_ALLOWED,
    ),
    **{
        f"35 provider ID {name}": (extended(extension(PROVIDER_ID_OID, value)), Reason.PROVIDER_ID_INVALID)
        for name, value in {
            "not UTF-8": tlv(0x0C, b"\xff"),
            "surrogate": tlv(0x0C, b"\xed\xa0\x80"),
            "trailing DER": utf8("x") + b"\x05\x00",
            "IA5String": tlv(0x16, b"x"),
            "OCTET STRING": tlv(4, b"x"),
            "Google's SEQUENCE": seq(utf8("zone")),
            "long form of a length": b"\x0c\x81\x01x",
            "no DER": b"",
            "empty": utf8(""),
            "NUL": utf8("aws:///i-1\0"),
            "newline": utf8("aws:///i-1\n"),
            "C1 control": utf8("aws:///i-1\x85"),
            "right-to-left override": utf8("aws:///\u202ei-1"),
            "zero-width space": utf8("aws:///\u200bi-1"),
            "line separator": utf8("aws:///\u2028i-1"),
            "1025 characters": utf8("x" * 1025),
        }.items()
    },
    "38 RSA-512": (with_key(rsa_spki((1 << 511) + 1)), Reason.KEY_NOT_ALLOWED),
    "38 RSA-1024": (with_key(rsa_spki((1 << 1023) + 1)), Reason.KEY_NOT_ALLOWED),
    "38 RSA-2047": (with_key(rsa_spki((1 << 2046) + 1)), Reason.KEY_NOT_ALLOWED),
    "38 RSA-4097": (with_key(rsa_spki((1 << 4096) + 1)), Reason.KEY_NOT_ALLOWED),
    "38 RSA-16384": (with_key(rsa_spki((1 << 16383) + 1)), Reason.KEY_NOT_ALLOWED),
    "38 even modulus": (with_key(rsa_spki(1 << 2047)), Reason.KEY_NOT_ALLOWED),
    "38 negative modulus": (
        with_key(
            seq(
                seq(oid("1.2.840.113549.1.1.1"), b"\x05\x00"),
                tlv(3, b"\0", seq(tlv(2, b"\x80" + b"\x01" * 256), integer(65537))),
            )
        ),
        Reason.KEY_NOT_ALLOWED,
    ),
    **{
        f"38 e={exponent}": (with_key(rsa_spki(RSA.public_key().public_numbers().n, exponent)), Reason.KEY_NOT_ALLOWED)
        for exponent in (1, 3, 65536, 65539, 2**64 + 1)
    },
    **{
        f"39 {curve.name}": (with_key(generated_spki(curve)), Reason.KEY_NOT_ALLOWED)
        for curve in (ec.SECP224R1(), ec.SECP521R1(), ec.SECP256K1(), ec.BrainpoolP256R1())
    },
    "39 compressed point": (with_key(generated_spki(ec.SECP256R1(), point="compressed")), Reason.KEY_NOT_ALLOWED),
    "39 point off the curve": (with_key(spki_of(P256)[:-1] + b"\x00"), Reason.CSR_SIGNATURE_INVALID),
    "39 point at infinity": (with_key(spki_of(P256)[:27] + bytes(64)), Reason.CSR_SIGNATURE_INVALID),
    "39 explicit parameters": (with_key(explicit_p256()), Reason.KEY_NOT_ALLOWED),
    "39 Ed25519": (
        with_key(
            ed25519.Ed25519PrivateKey.generate()
            .public_key()
            .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        ),
        Reason.KEY_NOT_ALLOWED,
    ),
    "39 Ed448": (
        with_key(
            ed448.Ed448PrivateKey.generate()
            .public_key()
            .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        ),
        Reason.KEY_NOT_ALLOWED,
    ),
    "39 DSA": (
        with_key(seq(seq(oid("1.2.840.10040.4.1")), tlv(3, b"\0", integer(5)))),
        Reason.KEY_NOT_ALLOWED,
    ),
    "39 no key": (with_key(seq()), Reason.KEY_NOT_ALLOWED),
    "40 ROCA": (with_key(rsa_spki(roca_modulus())), Reason.KEY_NOT_ALLOWED),
    **{
        f"42 {name}": (Made(algorithm=algorithm), Reason.CSR_SIGNATURE_INVALID)
        for name, algorithm in {
            "ECDSA with SHA-1": seq(oid("1.2.840.10045.4.1")),
            "ECDSA with SHA-224": seq(oid("1.2.840.10045.4.3.1")),
            "ECDSA with SHA3-256": seq(oid("2.16.840.1.101.3.4.3.10")),
        }.items()
    },
    **{
        f"42 {name}": (
            Made(spki=spki_of(RSA), algorithm=seq(oid(kind), b"\x05\x00"), sign=sign_with(RSA, hashes.SHA256())),
            Reason.CSR_SIGNATURE_INVALID,
        )
        for name, kind in {"MD5": "1.2.840.113549.1.1.4", "SHA-1": "1.2.840.113549.1.1.5"}.items()
    },
    "43 RSA algorithm, EC key": (Made(algorithm=RSA_SHA256), Reason.CSR_SIGNATURE_INVALID),
    "43 EC algorithm, RSA key": (Made(spki=spki_of(RSA)), Reason.CSR_SIGNATURE_INVALID),
    "43 hash other than said": (Made(sign=sign_with(P256, hashes.SHA384())), Reason.CSR_SIGNATURE_INVALID),
    "43 RSA without NULL": (
        Made(
            spki=spki_of(RSA),
            algorithm=seq(oid("1.2.840.113549.1.1.11")),
            sign=sign_with(RSA, hashes.SHA256()),
        ),
        Reason.CSR_SIGNATURE_INVALID,
    ),
    "43 ECDSA with NULL": (
        Made(algorithm=seq(oid("1.2.840.10045.4.3.2"), b"\x05\x00")),
        Reason.CSR_SIGNATURE_INVALID,
    ),
    "43 RSA-PSS": (
        Made(spki=spki_of(RSA), algorithm=seq(oid("1.2.840.113549.1.1.10"), seq()), sign=sign_pss),
        Reason.CSR_SIGNATURE_INVALID,
    ),
}


def denied_reason(request: bytes, purpose: Purpose = Purpose.CLIENT) -> Reason | NodeCsr:
    """The verdict; any exception but Denied goes through and fails the test."""
    try:
        return parse_csr(request, purpose=purpose)
    except Denied as denied:
        return denied.reason


@pytest.mark.parametrize("row", TAMPERED)
def test_a_tampered_request_is_denied(row: str) -> None:
    made, reason = TAMPERED[row]
    assert denied_reason(made if isinstance(made, bytes) else made.der()) is reason


def test_the_untampered_request_passes() -> None:
    csr = parse_csr(Made().der())
    assert (csr.node_name, csr.provider_id, csr.spki) == ("n-0", "aws:///eu/i-1", spki_of(P256))
    assert (csr.dns_names, csr.ip_addresses) == ((), ())


def test_order_of_rdns_and_string_type_are_free() -> None:
    """Go writes PrintableString where it can; OpenSSL puts CN where it was told."""
    printable = rdn(attribute(CN, tlv(0x13, b"system:node:n-0")))
    assert parse_csr(Made(subject=(printable, NODES)).der()).node_name == "n-0"


@pytest.mark.parametrize("key", [P256, P384, RSA], ids=["P-256", "P-384", "RSA-2048"])
def test_what_is_built_is_parsed(key: PrivateKey) -> None:
    der = build_csr(key, "node-0.example.com", "azure:///subscriptions/é" + "x" * 900)
    csr = parse_csr(der)
    assert csr == NodeCsr(der, csr.node_name, csr.provider_id, spki_of(key))
    assert csr.node_name == "node-0.example.com"
    assert csr.provider_id == "azure:///subscriptions/é" + "x" * 900
    assert csr.sha256 == hashlib.sha256(der).digest()


@pytest.mark.parametrize("algorithm", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()])
def test_each_sha2_signature_passes(algorithm: hashes.HashAlgorithm) -> None:
    ecdsa, pkcs1 = {"sha256": ("2", "11"), "sha384": ("3", "12"), "sha512": ("4", "13")}[algorithm.name]
    ec_request = Made(algorithm=seq(oid(f"1.2.840.10045.4.3.{ecdsa}")), sign=sign_with(P256, algorithm))
    assert parse_csr(ec_request.der())
    rsa_algorithm = seq(oid(f"1.2.840.113549.1.1.{pkcs1}"), b"\x05\x00")
    assert parse_csr(Made(spki=spki_of(RSA), algorithm=rsa_algorithm, sign=sign_with(RSA, algorithm)).der())


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


def test_a_client_request_without_attributes_has_no_provider_id() -> None:
    der = build_csr(P256, "n-0", "")
    assert parse_csr(der).provider_id == ""
    assert parse_csr(Made(attributes=()).der()).provider_id == ""


def test_a_serving_request_without_provider_id_is_denied() -> None:
    assert denied_reason(Made(attributes=()).der(), Purpose.SERVING) is Reason.EXTENSION_NOT_ALLOWED
    without_id = extended(extension(SAN, seq(DNS))).der()
    assert denied_reason(without_id, Purpose.SERVING) is Reason.PROVIDER_ID_INVALID
    with pytest.raises(Denied) as denied:
        build_csr(P256, "n-0", "", dns_names=["n-0"])
    assert denied.value.reason is Reason.PROVIDER_ID_INVALID


def test_a_serving_request_carries_its_names() -> None:
    der = build_csr(P256, "n-0", "x", dns_names=["n-0", "n-0.example"], ip_addresses=["10.0.0.1", "fd00:0::1"])
    csr = parse_csr(der, purpose=Purpose.SERVING)
    assert csr.dns_names == ("n-0", "n-0.example")
    assert csr.ip_addresses == ("10.0.0.1", "fd00::1")
    assert denied_reason(der) is Reason.EXTENSION_NOT_ALLOWED


def serving(names: Iterable[bytes], critical: bytes = b"") -> bytes:
    return extended(PROVIDER_ID, extension(SAN, seq(*names), critical)).der()


@pytest.mark.parametrize(
    "request_der",
    [
        pytest.param(Made().der(), id="no SAN"),
        pytest.param(serving([]), id="empty SAN"),
        pytest.param(serving([DNS], TRUE), id="critical SAN"),
        pytest.param(serving([DNS, general(1, b"a@b")]), id="email besides"),
        pytest.param(serving([DNS, general(6, b"x:y")]), id="URI besides"),
        pytest.param(serving([DNS, OTHER_NAME]), id="otherName besides"),
        pytest.param(serving([DNS, DIRECTORY_NAME]), id="directoryName besides"),
        pytest.param(serving([DNS, DNS]), id="a name twice"),
        pytest.param(serving([general(2, b"*.example")]), id="wildcard"),
        pytest.param(serving([general(2, b"N-0")]), id="upper case"),
        pytest.param(serving([general(2, b"n-0.")]), id="trailing dot"),
        pytest.param(serving([general(2, b"")]), id="empty name"),
        pytest.param(serving([general(2, "ñ".encode())]), id="UTF-8 in dNSName"),
        pytest.param(serving([general(2, b"n-0\0.victim")]), id="NUL in dNSName"),
        pytest.param(serving([general(7, b"12345")]), id="five bytes of address"),
        pytest.param(serving([general(7, b"\x0a\0\0\0\xff\0\0\0")]), id="address with mask"),
        pytest.param(serving([general(7, bytes(10) + b"\xff\xff\x0a\0\0\x01")]), id="IPv4-mapped"),
        pytest.param(serving([general(2, b"n-%d" % i) for i in range(33)]), id="33 names"),
        pytest.param(extended(PROVIDER_ID, *(extension(SAN, seq(DNS)),) * 2).der(), id="two SANs"),
        pytest.param(extended(PROVIDER_ID, extension(SAN, seq(DNS)), CA_TRUE).der(), id="CA besides"),
        pytest.param(extended(PROVIDER_ID, extension(SAN, seq(DNS) + b"\x05\x00")).der(), id="trailing DER"),
    ],
)
def test_a_tampered_serving_request_is_denied(request_der: bytes) -> None:
    assert denied_reason(request_der, Purpose.SERVING) is Reason.EXTENSION_NOT_ALLOWED


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


@given(st.binary(max_size=300), st.sampled_from(Purpose))
def test_any_bytes_give_a_request_or_denied(data: bytes, purpose: Purpose) -> None:
    assert isinstance(denied_reason(data, purpose), Reason)


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


def test_a_node_name_longer_than_x520_allows_fits() -> None:
    name = ".".join(["a" * 60] * 4)
    der = build_csr(ec.generate_private_key(ec.SECP256R1()), name, "x://1")
    assert parse_csr(der).node_name == name
