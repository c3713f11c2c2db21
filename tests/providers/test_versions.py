"""The annotation that names the versions a controller understands: one spelling, strictly read."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.evidence_versions import HIGHEST, MAX_TEXT, MAX_VERSIONS, parse, versions_to_text
from nodeattest_providers.names import ProviderName

TPM = ProviderName("tpm")
LONGEST = ProviderName("p" * 63)


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
    assert parse(text, TPM) == tuple(sorted(set(versions), reverse=True))[:MAX_VERSIONS]


def test_the_longest_text_is_read() -> None:
    text = versions_to_text(LONGEST, range(HIGHEST, 1, -1))
    assert len(text) <= MAX_TEXT
    assert len(parse(text, LONGEST)) == MAX_VERSIONS


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "tpm/v1,",
        ",tpm/v1",
        "tpm/v1,tpm/v2",
        "tpm/v1,tpm/v1",
        "tpm/v2, tpm/v1",
        "tpm/v2,tpm/v1\n",
        "tpm/v0",
        "tpm/v01",
        "tpm/v10000",
        "tpm/v-1",
        "tpm/v1.0",
        "tpm/v\u0661",
        "tpm/v",
        "tpm",
        "v1",
        "TPM/v1",
        "tpm/V1",
        "tpm/v1;tpm/v2",
        "challenge/v1",
        "tpm/v2,challenge/v1",
        "xtpm/v1",
        "tpm/vtpm/v1",
        "tpm/v1\x00",
        "tpm/v\ud800",
        ",".join(f"tpm/v{number}" for number in range(17, 0, -1)),
        "tpm/v1," * 100_000,
    ],
)
def test_any_other_text_is_denied(text: str) -> None:
    with pytest.raises(Denied) as denied:
        parse(text, TPM)
    assert denied.value.reason is Reason.EVIDENCE_VERSION_UNSUPPORTED
    assert denied.value.got == f"another text of {len(text)} characters"


@given(text=st.text() | st.from_regex(r"(tpm/v[0-9]{1,5},?){0,5}", fullmatch=True))
def test_any_text_gives_versions_or_denied(text: str) -> None:
    with contextlib.suppress(Denied):
        assert versions_to_text(TPM, parse(text, TPM)) == text
