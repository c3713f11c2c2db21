"""The certificate's checks: one good one, then one thing spoilt a row."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agent_cluster import Authority
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_authenticator.certificate import (
    ExpectedCertificate,
    check_validity,
    has_several,
    select_ca_pin,
    validate,
)
from nodeattest_authenticator.errors import AgentError
from nodeattest_providers.binding import cluster_pin
from nodeattest_providers.identifiers import NodeName

OURS, OTHER = Authority(), Authority()
KEY = ec.generate_private_key(ec.SECP256R1())
KEY_PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
WANTED = ExpectedCertificate(node_name=NodeName("node-0"), ca_pem=OURS.pem)


def leaf(*, by: Authority = OURS, node: str = "node-0", **changes: Any) -> bytes:
    return by.client(changes.pop("key", KEY.public_key()), node, **changes)


def test_a_good_certificate_passes_and_tells_its_times() -> None:
    canonical, not_before, not_after = validate(b"junk before\n" + leaf(), KEY_PEM, WANTED)
    assert canonical.startswith(b"-----BEGIN CERTIFICATE-----")
    assert not_before < time.time() < not_after


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        (leaf() * 5, "1 to 4 certificates"),
        (b"", "1 to 4 certificates"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be parsed"),
        (leaf()[:-40], "cannot be parsed"),
    ],
)
def test_a_spoilt_certificate_is_refused(certificate: bytes, says: str) -> None:
    with pytest.raises(AgentError, match="CertificateRefused") as caught:
        validate(certificate, KEY_PEM, WANTED)
    assert says in str(caught.value)


def test_a_certificate_below_an_intermediate_ca_passes() -> None:
    subordinate = Authority("subordinate")
    link = OURS.certify(subordinate.name, subordinate.key.public_key(), is_ca=True).public_bytes(Encoding.PEM)
    canonical, *_ = validate(leaf(by=subordinate) + link, KEY_PEM, WANTED)
    assert canonical.count(b"BEGIN") == 2
    with pytest.raises(AgentError, match="no CA of the cluster"):
        validate(leaf(by=subordinate), KEY_PEM, WANTED)


@given(certificate=st.binary(max_size=300), key=st.binary(max_size=300))
def test_any_bytes_are_refused_and_nothing_else_happens(certificate: bytes, key: bytes) -> None:
    with pytest.raises(AgentError):
        validate(certificate, KEY_PEM, WANTED)
    with pytest.raises(AgentError):
        validate(leaf(), key, WANTED)


@pytest.mark.parametrize(
    ("now", "ahead", "says"),
    [
        (699, None, "begins 5 minutes in its future"),
        (100, -1200, "20 minutes behind the API server's"),
        (2000, 660, "11 minutes ahead of the API server's"),
        (2000, None, "expired"),
        (2000, 10, "expired"),
    ],
)
def test_a_wrong_time_is_laid_to_the_clock_where_that_explains_it(now: float, ahead: float | None, says: str) -> None:
    with pytest.raises(AgentError) as caught:
        check_validity(1000, 2000, now=now, clock_skew=ahead)
    assert says in str(caught.value)


@pytest.mark.parametrize("now", [700, 1000, 1999])
def test_five_minutes_of_skew_are_tolerated_at_the_beginning(now: float) -> None:
    check_validity(1000, 2000, now=now, clock_skew=None)


def spki_pin(authority: Authority) -> str:
    key = authority.key.public_key()
    return cluster_pin(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def test_of_several_cas_the_one_that_issued_the_servers_certificate_is_pinned() -> None:
    server = x509.load_pem_x509_certificate(leaf(by=OTHER)).public_bytes(Encoding.DER)
    bundle = OURS.pem + OTHER.pem
    assert has_several(bundle)
    assert not has_several(OURS.pem)
    assert select_ca_pin(bundle, server) == spki_pin(OTHER)
    assert select_ca_pin(bundle) == spki_pin(OURS)
    assert select_ca_pin(OURS.pem, server) == spki_pin(OURS)
