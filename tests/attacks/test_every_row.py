"""The catalogue itself: each row has its case, each case its row, what was selected has run (``tests/conftest.py``)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from catalogue import FOLDER, ROWS, Surface, Verdict

from nodeattest_authenticator.errors import AgentReason
from nodeattest_identity.proxy.refusals import Refusal
from nodeattest_providers.errors import Reason

RUN = [row for row in ROWS.values() if not row.state]
HERE = Path(__file__).parent
API_REASONS = {
    *("AlreadyExists", "BadRequest", "Conflict", "Forbidden", "Invalid", "ServiceUnavailable", "Unauthorized"),
}
"""Reasons of an API server's Status (apimachinery pkg/apis/meta/v1/types.go) that rows expect."""


def written() -> Iterator[str]:
    """List the ids that stand in the tests, once for each time."""
    for path in sorted(HERE.glob("test_d*.py")):
        yield from re.findall(r'"(D[1-9][0-9]?-[0-9]{2,3})"', path.read_text(encoding="utf-8"))


def test_every_row_has_its_case_and_every_case_its_row() -> None:
    assert set(written()) == {row.id for row in RUN}


def reasons_of(surface: Surface) -> set[str]:
    match surface:
        case Surface.APISERVER:
            return API_REASONS
        case Surface.AGENT:
            return {*Reason, *AgentReason}
        case Surface.ADDON:
            return set(Refusal)
        case _:
            return set(Reason)


def test_every_reason_exists() -> None:
    refused = {Verdict.DENY, Verdict.WAIT}
    unknown = {
        row.id: row.expected.reason
        for row in RUN
        if (row.expected.reason or row.expected.verdict in refused)
        and row.expected.reason not in reasons_of(row.surface)
    }
    assert unknown == {}


def test_every_file_tells_its_section_and_what_a_row_is_against() -> None:
    for path in FOLDER.glob("*.toml"):
        section = str(tomllib.loads(path.read_text(encoding="utf-8"))["section"]).lower()
        assert re.fullmatch(rf"{section}[a-z]?_\w+\.toml", path.name)


def test_no_two_rows_tell_the_same_attack() -> None:
    told = [(row.surface, row.attack) for row in ROWS.values()]
    assert len(set(told)) == len(told)
