"""The closed schemas of ``tpm/v1``: evidence of both phases, challenge annotation."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers import canonical_json
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import FirstRequestRef, JsonObject, JsonValue
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence, SecondEvidence, parse_evidence
from nodeattest_providers.tpm.structures import Alg, PcrSelection

FIRST = FirstEvidence(ek_public=b"EK", ak_public=b"AK", ek_certificate=b"certificate", ek_chain=(b"one", b"two"))
SECOND = SecondEvidence(
    first=FirstRequestRef(name="csr-1", uid="uid-1"), mac=bytes(32), quote=b"quote", signature=b"sig", pcrs=(b"0", b"7")
)
CHALLENGE = Challenge(
    uid="uid-1",
    spki_sha256="sha256:" + "0" * 64,
    nonce=bytes(32),
    blob=b"blob",
    secret=b"secret",
    pcrs=PcrSelection(Alg.SHA256, (0, 7)),
)


@pytest.mark.parametrize(
    "evidence", [FIRST, SECOND, replace(FIRST, ek_certificate=None, ek_chain=()), replace(SECOND, pcrs=())]
)
def test_evidence_is_read_as_it_was_written_and_has_a_canonical_spelling(
    evidence: FirstEvidence | SecondEvidence,
) -> None:
    written = canonical_json.dumps(evidence.to_json())
    assert parse_evidence(canonical_json.loads(written)) == evidence


def test_a_challenge_is_read_as_it_was_written() -> None:
    assert Challenge.parse(CHALLENGE.to_text()) == CHALLENGE


def test_the_challenge_has_exactly_the_fields_of_the_wire_format() -> None:
    assert sorted(json.loads(CHALLENGE.to_text())) == ["blob", "n", "pcrs", "secret", "spki", "uid", "v"]


JSON_TRUE: JsonValue = True  # equals 1 in Python, and in no other language of the wire


def with_value(key: str, value: JsonValue) -> Callable[[JsonObject], JsonObject]:
    return lambda data: {**data, key: value}


def without(key: str) -> Callable[[JsonObject], JsonObject]:
    return lambda data: {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize("evidence", [FIRST, SECOND])
def test_evidence_with_a_field_more_or_less_is_denied(evidence: FirstEvidence | SecondEvidence) -> None:
    data = evidence.to_json()
    spoilt = [without(key)(data) for key in data if key not in ("ekCert", "ekChain")]
    for bad in (*spoilt, with_value("extra", 1)(data)):
        with pytest.raises(Denied) as denied:
            parse_evidence(bad)
        assert denied.value.reason is Reason.EVIDENCE_MALFORMED


@pytest.mark.parametrize(
    ("evidence", "spoil"),
    [
        (FIRST, with_value("phase", 2)),
        (FIRST, with_value("phase", JSON_TRUE)),
        (FIRST, with_value("phase", "1")),
        (FIRST, with_value("phase", 3)),
        (FIRST, with_value("ekPub", "")),
        (FIRST, with_value("ekPub", "QUJ=")),
        (FIRST, with_value("ekPub", "A" * 2000)),
        (FIRST, with_value("ekCert", None)),
        (FIRST, with_value("ekCert", "A" * 8000)),
        (FIRST, with_value("ekChain", [*(["AAAA"] * 5)])),
        (FIRST, with_value("ekChain", "AAAA")),
        (FIRST, with_value("ekChain", [])),
        (FIRST, without("ekCert")),
        (SECOND, with_value("phase", 1)),
        (SECOND, with_value("mac", "AAAA")),
        (SECOND, with_value("first", {"name": "n"})),
        (SECOND, with_value("first", {"name": "n", "uid": "u", "x": 1})),
        (SECOND, with_value("first", {"name": "", "uid": "u"})),
        (SECOND, with_value("quote", "A" * 2000)),
        (SECOND, with_value("pcrs", [*(["AA"] * 25)])),
        (SECOND, with_value("pcrs", [""])),
    ],
)
def test_evidence_outside_its_schema_is_denied(
    evidence: FirstEvidence | SecondEvidence, spoil: Callable[[JsonObject], JsonObject]
) -> None:
    with pytest.raises(Denied) as denied:
        parse_evidence(spoil(evidence.to_json()))
    assert denied.value.reason is Reason.EVIDENCE_MALFORMED


@pytest.mark.parametrize(
    "pcrs",
    [
        {"bank": "sha1", "select": [0]},
        {"bank": "sha256", "select": []},
        {"bank": "sha256", "select": [7, 0]},
        {"bank": "sha256", "select": [0, 0]},
        {"bank": "sha256", "select": [24]},
        {"bank": "sha256", "select": [-1]},
        {"bank": "sha256"},
        [],
    ],
)
def test_a_challenge_with_another_selection_is_denied(pcrs: JsonValue) -> None:
    data = canonical_json.loads(CHALLENGE.to_text().encode())
    with pytest.raises(Denied):
        Challenge.parse(canonical_json.dumps(with_value("pcrs", pcrs)(data)).decode())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({*FIRST.to_json(), *SECOND.to_json()})


@given(st.sampled_from([FIRST, SECOND]), st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3))
def test_any_object_gives_evidence_or_denied(
    evidence: FirstEvidence | SecondEvidence, patch: dict[str, JsonValue]
) -> None:
    for data in (patch, {**evidence.to_json(), **patch}):
        with suppress(Denied):
            assert parse_evidence(data).to_json() == data


@given(st.text(alphabet=st.characters(codec=None)), st.integers(0, 300))
def test_any_text_gives_a_challenge_or_denied(text: str, at: int) -> None:
    good = CHALLENGE.to_text()
    for bad in (text, good[:at] + text + good[at:]):
        with suppress(Denied):
            assert Challenge.parse(bad).to_text() == bad
