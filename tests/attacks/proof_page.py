"""The rows of docs/proof/checks.md: for each declared check an attack, and the reason of its refusal.

The product has no switch for a check: its issuer has its lists as class variables, and its verifiers make a
``Checks`` of their own. Here a test's issuer has the declared list without one member, and ``removed`` lets one
name pass in every ``Checks``. Attacks on verifiers are rows of tests/attacks, whose ``evaluated`` removes their check.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from nodeattest_providers.checks import Checks

_PAGE: Final = Path(__file__).parents[2] / "docs" / "proof" / "checks.md"
_TABLE: Final = re.compile(r"<!-- table: (\w+) -->\n\|.*\n\|.*\n((?:\|.*\n)+)")
_ONE_OF_MANY: Final = re.compile(
    r"(PCR value|replays PCR|closes PCR|label)( [^ ]+)$|^[a-z]+: (of this machine)$|^(pinned ak)(V2)$"
)


class Row(NamedTuple):
    """One check."""

    part: str
    """The list of the check."""
    name: str
    attack: str
    reason: str
    models: str
    """Links to the runs of models that lack the same check."""

    @property
    def check(self) -> str:
        """``list: name``."""
        return f"{self.part}: {self.name}"


def _rows() -> list[Row]:
    return [
        Row(part, cells[0], cells[1], cells[2].strip("`"), cells[3] if len(cells) > 3 else "")
        for part, table in _TABLE.findall(_PAGE.read_text(encoding="utf-8"))
        for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    ]


ROWS: Final = _rows()
CONTROLLERS: Final = frozenset({"attested", "kubelet"})
"""Lists of the controller; all others are of verifiers."""
CHECK_OF: Final[Mapping[str, str]] = {
    row.attack.partition(":")[0]: row.name for row in ROWS if row.part not in CONTROLLERS | {"parsers"}
}
"""Checks of verifiers, by the attack that they refuse."""
NAMES: Final = frozenset(row.name for row in ROWS) | {
    *("policy section", "provider ID", "partition", "signed headers", "identity document", "PKCS#7 structure"),
    *("signed document", "attested document", "identity certificate", "endorsement key: pinned by the ledger"),
    *("STS confirms the signature", "empty evidence", "first join", "looked"),
}
"""Every check that verifiers record; those beside the page's return a value that was read, or cannot fail, or are of a
provider that proves nothing."""


def plain(name: str) -> str:
    """Name a check that is asked of each register, label, part or version once, whichever it is."""
    return _ONE_OF_MANY.sub(r"\1\3\4", re.sub("^(tpm|challenge): ", "", name))


@contextmanager
def removed(name: str) -> Generator[None]:
    """Let a check of this name pass in every verification."""
    names, require = {name, name.removeprefix("EC2: ")}, Checks.require

    def passing(checks: Checks, passed: bool, called: str, **rest: Any) -> None:
        require(checks, passed or plain(called) in names, called, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checks, "require", passing)
        yield
