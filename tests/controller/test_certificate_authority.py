"""The laws of signing: the certificate holds what we decided, and of the request the public key only."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clouds.cms import tlv
from nodeattest_controller.model.certificate_authority import (
    CertificateAuthority,
    SubjectAltNames,
    load_authority,
    names_in,
    sign_certificate,
)
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, Purpose

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODE = NodeName("node-0")
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def ca(
    key: Key,
    *,
    days: int = 3650,
    name: str = "kubernetes",
    begin: datetime = NOW - timedelta(days=1),
    has_identifier: bool = True,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1)
        .not_valid_before(begin)
        .not_valid_after(NOW + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    if has_identifier:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def secret(*certificates: x509.Certificate, key: Key | None) -> JsonObject:
    chain = b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)
    data: JsonObject = {"tls.crt": base64.b64encode(chain).decode()}
    if key is not None:
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        data["tls.key"] = base64.b64encode(pem).decode()
    return {"metadata": {"name": "c-ca"}, "data": data}


def spki(key: Key) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    key = ec.generate_private_key(ec.SECP256R1())
    return load_authority(secret(ca(key), key=key), "c")


PUBLIC: Final = spki(ec.generate_private_key(ec.SECP256R1()))


def signed(authority: CertificateAuthority, **changes: Any) -> tuple[x509.Certificate, str]:
    """Sign a certificate; returns it, and its PEM."""
    given: dict[str, Any] = {"node_name": NODE, "spki": PUBLIC, "lifetime": 3600, "now": NOW, **changes}
    pem = sign_certificate(authority, **given).pem
    return x509.load_pem_x509_certificate(pem.encode()), pem


def test_the_extensions_are_a_kubelet_clients_and_no_others(authority: CertificateAuthority) -> None:
    found, _pem = signed(authority)
    assert found.subject.rfc4514_string() == "CN=system:node:node-0,O=system:nodes"
    names = {extension.oid._name for extension in found.extensions}
    identifiers = {"authorityKeyIdentifier", "subjectKeyIdentifier"}
    assert names == {"basicConstraints", "keyUsage", "extendedKeyUsage", *identifiers}
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca
    usage = found.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.digital_signature
    assert not usage.value.key_encipherment
    assert not usage.value.key_cert_sign
    extended = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(extended) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert found.public_key() == serialization.load_der_public_key(PUBLIC)
    found.verify_directly_issued_by(authority.certificate)


def test_a_serving_certificate_serves_and_nothing_else(authority: CertificateAuthority) -> None:
    names = SubjectAltNames(("node-0", "node-0.lan"), ("10.0.0.1", "fd00::1"))
    found, pem = signed(authority, purpose=Purpose.SERVING, names=names)
    extended = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(extended) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert len(found.extensions) == 6
    assert not found.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical
    assert names_in(pem) == names
    assert names_in(pem).same_as(SubjectAltNames(("node-0.lan", "node-0"), ("fd00::1", "10.0.0.1")))
    assert not names_in(pem).same_as(SubjectAltNames(("node-0",), ("fd00::1", "10.0.0.1")))
    found.verify_directly_issued_by(authority.certificate)


@pytest.mark.parametrize(
    ("purpose", "names"), [(Purpose.SERVING, SubjectAltNames()), (Purpose.CLIENT, SubjectAltNames(("node-0",)))]
)
def test_purpose_and_names_go_together(
    authority: CertificateAuthority, purpose: Purpose, names: SubjectAltNames
) -> None:
    with pytest.raises(ValueError, match="a serving certificate has names"):
        signed(authority, purpose=purpose, names=names)


def test_a_ca_without_a_key_identifier_signs_by_its_key_and_a_client_certificate_has_no_names() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    bare = load_authority(secret(ca(key, has_identifier=False), key=key), "c")
    found, pem = signed(bare)
    identifier = found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert identifier == x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    assert names_in(pem) == SubjectAltNames()


def test_a_certificate_never_outlives_its_ca() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    short = load_authority(secret(ca(key, days=1), key=key), "c")
    found, _pem = signed(short, lifetime=30 * 86400)
    assert found.not_valid_after_utc == short.certificate.not_valid_after_utc


@pytest.mark.parametrize(
    ("now", "said"), [(NOW - timedelta(days=1, minutes=6), "valid from"), (NOW + timedelta(days=3650), "expired")]
)
def test_an_authority_outside_its_validity_signs_nothing(
    authority: CertificateAuthority, now: datetime, said: str
) -> None:
    with pytest.raises(Unavailable, match=rf"expected a CA that is valid now.*{said}") as refused:
        signed(authority, now=now)
    assert refused.value.reason is Reason.AUTHORITY_UNAVAILABLE


def test_every_ca_of_the_bundle_is_pinned_and_the_one_with_the_key_signs() -> None:
    old, new = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    loaded = load_authority(secret(ca(old, name="old"), ca(new, name="new"), key=new), "c")
    assert len(loaded.pins) == 2
    assert loaded.certificate.subject.rfc4514_string() == "CN=new"


def test_what_is_wrong_with_the_secret_is_said_and_waited_for() -> None:
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    odd = ed25519.Ed25519PrivateKey.generate()
    broken: list[tuple[JsonObject | None, str]] = [
        (None, "is absent"),
        ({"data": {}}, "no tls.key"),
        (secret(ca(key), key=None), "no tls.key"),
        (secret(ca(key), key=other), "belongs to none"),
        (secret(ca(odd), key=odd), "neither RSA nor ECDSA"),
        ({"data": {"tls.crt": "AAAA", "tls.key": "AAAA"}}, "not a PEM"),
        ({"data": {"tls.crt": "%%%", "tls.key": "AAAA"}}, "not a PEM"),
        (secret(*[ca(key)] * 200, key=key), "not a PEM"),  # more than is read
    ]
    for found, said in broken:
        with pytest.raises(Unavailable, match=said) as refused:
            load_authority(found, "c")
        assert refused.value.reason is Reason.AUTHORITY_UNAVAILABLE


def rsa_secret(*, n: int, d: int, p: int, q: int, dmp1: int, dmq1: int, iqmp: int) -> JsonObject:
    numbers = (0, n, 65537, d, p, q, dmp1, dmq1, iqmp)  # RFC 8017 appendix A.1.2
    der = tlv(0x30, *(tlv(2, each.to_bytes(each.bit_length() // 8 + 1, "big")) for each in numbers))
    body = base64.encodebytes(der).decode()
    pem = f"-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----\n"
    found = secret(ca(ec.generate_private_key(ec.SECP256R1())), key=None)
    return {**found, "data": {**mapping(found, "data"), "tls.key": base64.b64encode(pem.encode()).decode()}}


def test_an_rsa_keys_primes_are_not_proved_but_its_numbers_must_belong_together() -> None:
    good = rsa.generate_private_key(65537, 2048)
    assert load_authority(secret(ca(good), key=good), "c").certificate == ca(good)
    numbers = good.private_numbers()
    names = ("d", "p", "q", "dmp1", "dmq1", "iqmp")
    fields = {"n": numbers.public_numbers.n, **{name: int(getattr(numbers, name)) for name in names}}
    with pytest.raises(Unavailable, match="belongs to none"):
        load_authority(rsa_secret(**fields), "c")
    for name, value in fields.items():
        with pytest.raises(Unavailable, match=r"no sound RSA key|not a PEM"):
            load_authority(rsa_secret(**{**fields, name: value + 2}), "c")
    p, q = (1 << 4096) + 1, (1 << 4096) + 3  # refused before it costs anything
    with pytest.raises(Unavailable, match="8193 bits"):
        load_authority(rsa_secret(n=p * q, d=3, p=p, q=q, dmp1=3, dmq1=3, iqmp=1), "c")


def test_no_certificate_is_signed_that_is_over_when_its_request_was_made(authority: CertificateAuthority) -> None:
    """The controller's clock is an hour behind the API server's."""
    created = NOW + timedelta(hours=1)
    with pytest.raises(Unavailable) as refused:
        signed(authority, created=created)
    assert "set the clock" in str(refused.value)
    found, _pem = signed(authority, lifetime=3601, created=created)
    assert found.not_valid_after_utc == created + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("server_time", "begin"),
    [
        (NOW - timedelta(hours=1), NOW - timedelta(hours=1)),
        (NOW, NOW),
        (NOW + timedelta(days=365), NOW),
        (None, NOW),
    ],
)
def test_a_lifetime_counts_from_the_earlier_clock_so_an_api_server_only_shortens_it(
    authority: CertificateAuthority, server_time: datetime | None, begin: datetime
) -> None:
    found, _pem = signed(authority, lifetime=86400, created=begin, server_time=server_time)
    assert found.not_valid_after_utc == begin + timedelta(days=1)
