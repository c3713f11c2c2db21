from __future__ import annotations

import base64
import gzip

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers import canonical_json, envelope, pem
from nodeattest_providers.csr import build_csr
from nodeattest_providers.envelope import LABEL_CSR, LABEL_DATA, LABEL_PROVIDER
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence, JsonObject, NodeCsr

KEY = ec.generate_private_key(ec.SECP256R1())
CSR = build_csr(KEY, "n-0", "x://y")
EVIDENCE = Evidence(ProviderName("tpm"), 1, {"phase": 1, "ek": "AAE"})
GOOD = envelope.encode(CSR, EVIDENCE)
CSR_BLOCK = pem.encode([(LABEL_CSR, CSR)])
PROVIDER_BLOCK = pem.encode([(LABEL_PROVIDER, b"tpm/v1")])
DATA_BLOCK = pem.encode([(LABEL_DATA, b"{}")])


@given(
    st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
    st.integers(1, 9999),
    st.dictionaries(st.text("abc", max_size=3), st.integers(-9, 9), max_size=3),
)
def test_decoding_undoes_encoding(provider: str, version: int, data: dict[str, int]) -> None:
    evidence = Evidence(ProviderName(provider), version, JsonObject(data))
    csr, decoded = envelope.decode(envelope.encode(CSR, evidence))
    assert (csr.der, csr.node_name, csr.provider_id) == (CSR, "n-0", "x://y")
    assert decoded == evidence


def test_a_serving_request_is_read_as_one() -> None:
    der = build_csr(KEY, "n-0", "x://y", dns_names=["n-0"])
    csr, _ = envelope.decode(envelope.encode(der, EVIDENCE), purpose=Purpose.SERVING)
    assert csr.dns_names == ("n-0",)


def _with(*, provider: bytes = b"tpm/v1", data: bytes = b"{}", csr: bytes = CSR) -> bytes:
    return pem.encode(zip(envelope.LABELS, (csr, provider, data), strict=True))


TAMPERED: dict[str, tuple[bytes, Reason]] = {
    "1 text before": (b"x" + GOOD, Reason.ENVELOPE_MALFORMED),
    "2 attestation before request": (PROVIDER_BLOCK + DATA_BLOCK + CSR_BLOCK, Reason.ENVELOPE_MALFORMED),
    "2 data before provider": (CSR_BLOCK + DATA_BLOCK + PROVIDER_BLOCK, Reason.ENVELOPE_MALFORMED),
    "3 two requests": (CSR_BLOCK + GOOD, Reason.ENVELOPE_MALFORMED),
    "3 a request after": (GOOD + CSR_BLOCK, Reason.ENVELOPE_MALFORMED),
    "4 two data blocks": (GOOD + DATA_BLOCK, Reason.ENVELOPE_MALFORMED),
    "4 two provider blocks": (CSR_BLOCK + PROVIDER_BLOCK * 2 + DATA_BLOCK, Reason.ENVELOPE_MALFORMED),
    "5 a certificate besides": (GOOD + pem.encode([("CERTIFICATE", b"x")]), Reason.ENVELOPE_MALFORMED),
    "no attestation": (CSR_BLOCK, Reason.ENVELOPE_MALFORMED),
    "empty": (b"", Reason.ENVELOPE_MALFORMED),
    "8 NEW CERTIFICATE REQUEST": (GOOD.replace(b"CERTIFICATE R", b"NEW CERTIFICATE R"), Reason.ENVELOPE_MALFORMED),
    "11 1 MiB": (GOOD * (1024 * 1024 // len(GOOD)), Reason.ENVELOPE_TOO_LARGE),
    "11 10 000 blocks": (DATA_BLOCK * 10_000, Reason.ENVELOPE_TOO_LARGE),
    "11 many blocks": (CSR_BLOCK + PROVIDER_BLOCK + DATA_BLOCK * 2_000, Reason.ENVELOPE_MALFORMED),
    "14 the proposal's other label": (
        GOOD.replace(b"KUBELET AUTHENTICATOR ATTESTATION DATA", b"ATTESTATION DATA"),
        Reason.ENVELOPE_MALFORMED,
    ),
    **{
        f"provider {provider!r}": (_with(provider=provider), Reason.ENVELOPE_MALFORMED)
        for provider in (
            b"tpm", b"tpm/1", b"tpm/v0", b"tpm/v01", b"tpm/v-1", b"tpm/v10000", b"TPM/v1", b"tpm/v1\n", b" tpm/v1",
            b"/v1", b"tpm//v1", b"tpm/v1/v1", b"tpm-/v1", b"a.b/v1", b"t\x00pm/v1", b"\xef\xbd\x94pm/v1",
            b"tpm/v\xd9\xa1", b"x" * 64 + b"/v1",
        )
    },
    **{
        f"13, 15 data {name}": (_with(data=data), Reason.EVIDENCE_MALFORMED)
        for name, data in {
            "double base64": base64.b64encode(b"{}"),
            "array": b"[]",
            "spaced": b"{ }",
            "gzip": gzip.compress(b"{}"),
            "duplicate keys": b'{"a":1,"a":2}',
            "NaN": b'{"a":NaN}',
            "huge integer": b'{"a":' + b"9" * 10_000 + b"}",
            "nesting": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        }.items()
    },
    "16 spoilt request": (_with(csr=CSR[:-1] + bytes([CSR[-1] ^ 1])), Reason.CSR_SIGNATURE_INVALID),
    "17 trailing DER": (_with(csr=CSR + b"\0"), Reason.CSR_MALFORMED),
}  # fmt: skip


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


def test_the_other_label_is_denied_with_its_remedy() -> None:
    verdict = _verdict(TAMPERED["14 the proposal's other label"][0])
    assert isinstance(verdict, Denied)
    assert "KUBELET AUTHENTICATOR ATTESTATION DATA" in verdict.remedy


def test_the_largest_envelope_passes() -> None:
    text = "x" * (188 * 1024)
    request = envelope.encode(CSR, Evidence(ProviderName("tpm"), 1, {"log": text}))
    assert 250 * 1024 < len(request) <= envelope.MAX_SIZE
    assert envelope.decode(request)[1].data == {"log": text}


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(ProviderName("TPM"), 1, {}),
        Evidence(ProviderName("tpm"), 0, {}),
        Evidence(ProviderName("tpm/v1"), 1, {}),
        Evidence(ProviderName("tpm"), 1, {"log": "x" * envelope.MAX_SIZE}),
        Evidence(ProviderName("tpm"), 1, {"n": 2**63}),
    ],
)
def test_what_would_be_denied_is_not_encoded(evidence: Evidence) -> None:
    with pytest.raises(ValueError):
        envelope.encode(CSR, evidence)


def test_evidence_does_not_show() -> None:
    _, evidence = envelope.decode(GOOD)
    assert "AAE" not in repr(evidence)


@given(st.binary(max_size=300), st.sampled_from(Purpose))
def test_any_bytes_are_denied(data: bytes, purpose: Purpose) -> None:
    assert isinstance(_verdict(data, purpose), Denied)


def _is_canonical_or_denied(data: bytes) -> bool:
    verdict = _verdict(data)
    return isinstance(verdict, Denied) or envelope.encode(verdict[0].der, verdict[1]) == data


@given(st.integers(0, 2000), st.integers(0, 20), st.binary(max_size=20))
def test_any_spliced_bytes_are_canonical_or_denied(position: int, cut: int, insert: bytes) -> None:
    start = position % len(GOOD)
    assert _is_canonical_or_denied(GOOD[:start] + insert + GOOD[start + cut :])


@given(st.binary(max_size=100), st.binary(max_size=20), st.binary(max_size=100))
def test_any_content_of_the_blocks_is_canonical_or_denied(csr: bytes, provider: bytes, data: bytes) -> None:
    assert _is_canonical_or_denied(_with(csr=csr, provider=provider, data=data))
    assert _is_canonical_or_denied(_with(provider=provider))
    assert _is_canonical_or_denied(_with(data=canonical_json.dumps({"a": data.hex()})))
