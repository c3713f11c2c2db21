"""The webhook's own CA over its life: nothing is served that was not announced, whatever stops in between."""

from __future__ import annotations

import base64
import json
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodeattest_controller.controllers.bootstrap_config.certificates import (
    CertificateSet,
    Lifetimes,
    advance,
    decode,
    encode,
)
from nodeattest_controller.controllers.bootstrap_config.tls import DynamicCertificate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("nodeattest-webhook.nodeattest-system.svc", "127.0.0.1")
LIFETIMES = Lifetimes()


def stored(held: CertificateSet) -> dict[str, str]:
    """Return what a Secret shows of it."""
    return {name: base64.b64encode(value).decode() for name, value in encode(held).items()}


def step(
    held: CertificateSet | None, now: datetime = NOW, *, announced: bool = True, names: tuple[str, ...] = NAMES
) -> CertificateSet | None:
    return advance(held, now=now, names=names, lifetimes=LIFETIMES, announced=announced)


def fresh() -> CertificateSet:
    made = step(None)
    assert made is not None
    return made


def test_what_is_made_first_is_a_ca_that_signs_a_server_of_these_names() -> None:
    held = fresh()
    assert step(held) is None
    serving = held.serving.certificate
    serving.verify_directly_issued_by(held.authority.certificate)
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAMES[0]]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == [NAMES[1]]
    usage = serving.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert serving.not_valid_after_utc == NOW + LIFETIMES.serving


def test_other_names_and_age_make_a_new_serving_certificate_by_the_same_ca() -> None:
    held = fresh()
    for now, names in ((NOW, ("elsewhere",)), (NOW + timedelta(days=61), NAMES)):
        renewed = step(held, now, names=names)
        assert renewed is not None
        assert renewed.authority.pem == held.authority.pem
        assert renewed.serving.pem != held.serving.pem
        assert step(renewed, now, names=names) is None


def test_a_new_ca_is_announced_before_it_signs_and_the_old_one_after_it_signed() -> None:
    held = fresh()
    due = NOW + timedelta(days=244)
    serving = step(held, due - timedelta(days=1))
    announcing = step(serving, due)
    assert announcing is not None
    assert announcing.following is not None
    assert announcing.serving.pem == (serving.serving.pem if serving else b"")
    assert announcing.bundle.count(b"BEGIN CERTIFICATE") == 2
    # It does not sign while any API server may not know it yet.
    assert step(announcing, due + timedelta(minutes=59)) is None
    assert step(announcing, due + timedelta(days=1), announced=False) is None
    signing = step(announcing, due + timedelta(hours=1))
    assert signing is not None
    assert signing.authority.pem == announcing.following.pem
    signing.serving.certificate.verify_directly_issued_by(announcing.following.certificate)
    assert held.authority.pem in signing.bundle
    assert step(signing, due + timedelta(hours=1)) is None
    ended = step(signing, NOW + timedelta(days=366))
    while ended is not None and ended.previous is not None:
        ended = step(ended, NOW + timedelta(days=366))
    assert ended is not None
    assert held.authority.pem not in ended.bundle


def test_years_of_renewals_never_serve_what_was_not_announced_before() -> None:
    held, now, announced = fresh(), NOW, b""
    announced = held.bundle
    for _ in range(3 * 365):
        now += timedelta(days=1)
        for _ in range(8):
            following = step(held, now, announced=announced == held.bundle)
            if following is None:
                break
            held = following
        signers = x509.load_pem_x509_certificates(announced)
        assert any(_signed_by(held.serving.certificate, signer) for signer in signers), now
        assert held.serving.certificate.not_valid_after_utc > now
        announced = held.bundle
    assert held.authority.certificate.not_valid_after_utc > now


def _signed_by(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    return certificate.issuer == signer.subject


def test_after_years_of_absence_everything_is_made_anew() -> None:
    held = fresh()
    anew = step(held, NOW + timedelta(days=400))
    assert anew is not None
    assert held.authority.pem not in anew.bundle


def test_a_secret_gives_back_what_was_written() -> None:
    held = step(fresh(), NOW + timedelta(days=244))
    assert held is not None
    read = decode(stored(held))
    assert read is not None
    assert (read.bundle, read.serving.key_pem) == (held.bundle, held.serving.key_pem)
    assert step(read, NOW + timedelta(days=244)) is None or read.following is not None


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("value", ["", "!", base64.b64encode(b"no PEM").decode(), 7, None])
def test_a_spoilt_secret_is_none_and_is_made_anew(name: str, value: object) -> None:
    assert decode({**stored(fresh()), name: value}) is None


def test_a_key_of_another_certificate_is_not_taken() -> None:
    assert decode({**stored(fresh()), "tls.key": stored(fresh())["tls.key"]}) is None
    assert decode({**stored(fresh()), "ca.key": stored(fresh())["tls.key"]}) is None


def test_nothing_shows_a_key() -> None:
    held = fresh()
    assert "PRIVATE KEY" not in repr(held) + json.dumps(str(held))


def test_without_a_certificate_no_handshake_succeeds_and_the_same_one_is_taken_once() -> None:
    certificate, held = DynamicCertificate(), fresh()
    assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not certificate.is_there
    assert certificate.take(held.serving.pem, held.serving.key_pem)
    assert not certificate.take(held.serving.pem, held.serving.key_pem)
    assert certificate.is_there
