"""Each check of a provider's verifier is removed, alone and then with what else refuses its attack."""

from __future__ import annotations

import pytest
from mutants import Ended, plain
from part_rows import CHALLENGE_ROWS, COMPOSITE_ROWS, Removed, sound_parts, sound_secret
from rows import Row, steps
from soft_rows import ROWS as TPM_ROWS

from nodeattest_providers.errors import Check

SHARED = frozenset(row.check.removeprefix("tpm: ") for row in TPM_ROWS) | {
    "same PKCS#10 bytes",
    "challenge answered in time",
}
"""Checks of the two steps, which all providers of two steps share with the TPM protocol."""


def own(checks: tuple[Check, ...], *parsers: str) -> set[str]:
    """Name what a verification recorded, without parsers and what is shared."""
    return {plain(check.name) for check in checks} - SHARED - {"evidence schema", *parsers}


def names(rows: tuple[Row[Removed], ...]) -> set[str]:
    return {row.check.partition(": ")[2] for row in rows}


@pytest.mark.parametrize("row", [*CHALLENGE_ROWS, *COMPOSITE_ROWS], ids=lambda row: row.check)
async def test_an_attack_on_a_part_is_refused_by_its_check_and_without_it_ends_as_the_row_says(
    row: Row[Removed],
) -> None:
    removed: list[str] = []
    seen: list[Ended] = []
    for name, _ in steps(row):
        seen.append(await row.run(frozenset(removed)))
        removed.append(name)
    assert seen == steps(row)


async def test_every_check_of_challenge_has_one_row() -> None:
    assert own((await sound_secret()).checks) == names(CHALLENGE_ROWS)


async def test_every_check_of_composite_has_one_row() -> None:
    recorded = tuple(check for check in (await sound_parts()).checks if not is_a_parts(check))
    assert own(recorded, "policy section") == names(COMPOSITE_ROWS)


def is_a_parts(check: Check) -> bool:
    """Tell whether a part's own verifier recorded it."""
    return check.name.startswith(("tpm: ", "challenge: ")) and plain(check.name) == check.name
