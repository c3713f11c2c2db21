"""Kubelet's own request for a serving certificate: what Go makes is read, everything else is denied."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from handmade import (
    CN,
    NODES,
    OTHER_NAME,
    P256,
    PROVIDER_ID,
    SAN,
    TRUE,
    Made,
    attribute,
    extended,
    extension,
    extension_request,
    general,
    generated_spki,
    named,
    rdn,
    seq,
    spki_of,
    tlv,
    utf8,
)
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.pkcs10 import KubeletCsr, parse_kubelet_serving

DNS = general(2, b"n-0")
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
    made = Made(subject=subject, attributes=(extension_request(san([DNS, IP])),))
    assert verdict(made.der()) == KubeletCsr("n-0", spki_of(P256), ("n-0",), ("10.0.0.1",))  # pyright: ignore[reportArgumentType] - a node name


def test_names_with_capitals_are_read_in_lower_case() -> None:
    read = verdict(extended(san([general(2, b"n-0.Example.COM"), DNS, general(2, b"N-0")])).der())
    assert isinstance(read, KubeletCsr)
    assert read.dns_names == ("n-0.example.com", "n-0")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        pytest.param(Made(attributes=()), Reason.EXTENSION_NOT_ALLOWED, id="no extensions"),
        pytest.param(Made(), Reason.EXTENSION_NOT_ALLOWED, id="a provider ID only"),
        pytest.param(extended(PROVIDER_ID, san([DNS])), Reason.EXTENSION_NOT_ALLOWED, id="a provider ID besides"),
        pytest.param(extended(san([])), Reason.EXTENSION_NOT_ALLOWED, id="no name"),
        pytest.param(extended(san([DNS], TRUE)), Reason.EXTENSION_NOT_ALLOWED, id="critical"),
        pytest.param(extended(san([DNS]), san([IP])), Reason.EXTENSION_NOT_ALLOWED, id="two SANs"),
        pytest.param(extended(san([DNS, general(1, b"a@b")])), Reason.EXTENSION_NOT_ALLOWED, id="email"),
        pytest.param(extended(san([DNS, general(6, b"x:y")])), Reason.EXTENSION_NOT_ALLOWED, id="URI"),
        pytest.param(extended(san([DNS, OTHER_NAME])), Reason.EXTENSION_NOT_ALLOWED, id="otherName"),
        pytest.param(extended(san([DNS, DNS])), Reason.EXTENSION_NOT_ALLOWED, id="a name twice"),
        pytest.param(extended(san([general(2, b"*.n")])), Reason.EXTENSION_NOT_ALLOWED, id="wildcard"),
        pytest.param(extended(san([general(2, b"n-0.")])), Reason.EXTENSION_NOT_ALLOWED, id="trailing dot"),
        pytest.param(
            extended(san([general(7, bytes(10) + b"\xff\xff\x0a\0\0\x01")])), Reason.EXTENSION_NOT_ALLOWED, id="mapped"
        ),
        pytest.param(
            Made(attributes=(extension_request(san([DNS])),) * 2), Reason.EXTENSION_NOT_ALLOWED, id="merged by Go"
        ),
        pytest.param(named("system:node:"), Reason.NODE_NAME_INVALID, id="no node name"),
        pytest.param(named("admin"), Reason.SUBJECT_NOT_ALLOWED, id="no node"),
        pytest.param(Made(subject=(NODES, NODES)), Reason.SUBJECT_NOT_ALLOWED, id="two Os"),
        pytest.param(
            Made(subject=(rdn(attribute("2.5.4.10", utf8("system:masters"))), Made().subject[1])),
            Reason.SUBJECT_NOT_ALLOWED,
            id="system:masters",
        ),
        pytest.param(
            Made(spki=generated_spki(ec.SECP224R1()), attributes=(extension_request(san([DNS])),)),
            Reason.KEY_NOT_ALLOWED,
            id="P-224",
        ),
    ],
)
def test_a_tampered_request_of_kubelet_is_denied(made: Made, reason: Reason) -> None:
    assert verdict(made.der()) is reason


def test_a_request_of_kubelet_must_be_signed_by_its_key() -> None:
    made = extended(san([DNS]))
    other = ec.generate_private_key(ec.SECP256R1())
    assert verdict(Made(spki=spki_of(other), attributes=made.attributes).der()) is Reason.CSR_SIGNATURE_INVALID


@given(st.binary(max_size=300))
def test_any_bytes_give_a_request_of_kubelet_or_denied(data: bytes) -> None:
    assert isinstance(verdict(data), Reason | KubeletCsr)
