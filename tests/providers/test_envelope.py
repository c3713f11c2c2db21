"""The envelope and its smallest parts: PEM blocks, names of versions and of first requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from counted_calls import calls
from cryptography.hazmat.primitives.asymmetric import ec
from worlds import denied_for

from nodeattest_providers import envelope, pem
from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.challenge import protocol as challenge
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.node_interface import (
    MAX_VERSIONS,
    Evidence,
    JsonObject,
    NodeCsr,
    parse_versions,
    versions_to_text,
)
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.tpm import protocol as tpm

KEY = ec.generate_private_key(ec.SECP256R1())
CSR = build_csr(KEY, "n-0", "x://y")
EVIDENCE = Evidence(ProviderName("tpm"), 1, {"phase": 1, "ek": "AAE"})
GOOD = envelope.encode(CSR, EVIDENCE)


def _with(*, provider: bytes = b"tpm/v1", data: bytes = b"{}", csr: bytes = CSR) -> bytes:
    return pem.encode(zip(envelope.LABELS, (csr, provider, data), strict=True))


TAMPERED: dict[str, tuple[bytes, Reason]] = {
    "empty": (b"", Reason.ENVELOPE_MALFORMED),
    "version 0": (_with(provider=b"tpm/v0"), Reason.ENVELOPE_MALFORMED),
    "a name of 64 characters": (_with(provider=b"x" * 64 + b"/v1"), Reason.ENVELOPE_MALFORMED),
    "a spoilt request": (_with(csr=CSR[:-1] + bytes([CSR[-1] ^ 1])), Reason.CSR_SIGNATURE_INVALID),
    "trailing DER": (_with(csr=CSR + b"\0"), Reason.CSR_MALFORMED),
}


def _verdict(request: bytes, purpose: Purpose = Purpose.CLIENT) -> tuple[NodeCsr, Evidence] | Denied:
    """The verdict; any exception but Denied goes through and fails the test."""
    try:
        return envelope.decode(request, purpose=purpose)
    except Denied as denied:
        return denied


@pytest.mark.parametrize("row", TAMPERED)
def test_a_tampered_envelope_is_denied(row: str) -> None:
    request, reason = TAMPERED[row]
    verdict = _verdict(request)
    assert isinstance(verdict, Denied)
    assert verdict.reason is reason


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(ProviderName("TPM"), 1, {}),
        Evidence(ProviderName("tpm"), 0, {}),
        Evidence(ProviderName("tpm/v1"), 1, {}),
        Evidence(ProviderName("tpm"), 1, {"log": "x" * envelope.MAX_SIZE}),
        Evidence(ProviderName("tpm"), 1, {"n": 2**63}),
        Evidence(ProviderName("tpm"), 1, {"s": "\ud800"}),
    ],
)
def test_what_would_be_denied_is_not_encoded(evidence: Evidence) -> None:
    with pytest.raises(ValueError):
        envelope.encode(CSR, evidence)


LABELS = ("ONE", "TWO WORDS")
ONE = pem.encode([("ONE", b"first" * 20)])


@pytest.mark.parametrize("piece", [b"-----BEGIN ONE-----\n", b"-----END ONE-----\n", ONE, b"\n", b"-"])
def test_a_large_text_is_denied_in_as_many_calls_as_a_small_one(piece: bytes) -> None:
    def decode(size: int) -> None:
        with pytest.raises(Denied):
            pem.decode(texts[size], LABELS)

    # A search in the large one that is quadratic would not end.
    texts = {size: b"-----BEGIN ONE-----\n" + piece * (size // len(piece)) for size in (1 << 10, 1 << 24)}
    assert calls(lambda: decode(1 << 24)) == calls(lambda: decode(1 << 10))


TPM = ProviderName("tpm")


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ((1,), "tpm/v1"),
        ((2, 1), "tpm/v2,tpm/v1"),
        ((1, 10, 9, 9), "tpm/v10,tpm/v9,tpm/v1"),
        (range(1, 100), ",".join(f"tpm/v{number}" for number in range(99, 83, -1))),
    ],
)
def test_versions_are_written_newest_first_and_at_most_sixteen(versions: tuple[int, ...], text: str) -> None:
    assert versions_to_text(TPM, versions) == text
    assert parse_versions(text, TPM) == tuple(sorted(set(versions), reverse=True))[:MAX_VERSIONS]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tpm/v1,tpm/v2",
        "tpm/v1,tpm/v1",
        "tpm/v2, tpm/v1",
        "tpm/v01",
        "tpm/v10000",
        "tpm/v\u0661",
        "TPM/v1",
        "challenge/v1",
        "tpm/v2,challenge/v1",
    ],
)
def test_any_other_text_is_denied(text: str) -> None:
    with denied_for(Reason.EVIDENCE_VERSION_UNSUPPORTED) as denied:
        parse_versions(text, TPM)
    assert denied.value.got == f"another text of {len(text)} characters"


UID = "7f3c1a52-4b1e-4a3e-9d0c-1f2e3d4c5b6a"
REST: dict[str, JsonObject] = {
    "challenge": {"phase": 2, "mac": b64encode(bytes(32))},
    "tpm": {
        "phase": 2,
        "mac": b64encode(bytes(32)),
        "quote": b64encode(b"quote"),
        "signature": b64encode(b"signature"),
        "pcrs": [],
    },
}
PARSERS: dict[str, Callable[[JsonObject], object]] = {
    "challenge": challenge.parse_evidence,
    "tpm": tpm.parse_evidence,
}


@pytest.mark.parametrize("provider", PARSERS)
@pytest.mark.parametrize(
    ("name", "uid"),
    [
        *((name, UID) for name in ("", "a/b", "a b", "a\n", "a" * 254)),
        *(("nodeattest-0a1b2c3d", uid) for uid in ("", "a/b", "a\n", "a b", "a" * 65)),
    ],
)
def test_a_reference_to_a_first_request_that_no_api_server_has_is_denied(provider: str, name: str, uid: str) -> None:
    with denied_for(Reason.EVIDENCE_MALFORMED):
        PARSERS[provider]({**REST[provider], "first": {"name": name, "uid": uid}})
