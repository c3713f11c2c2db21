"""The catalogue of attacks: what is tried, where it is known from, and the one answer that is right.

Promises: ``ROWS`` holds each row of ``catalogue/*.toml`` once, with known fields only; a wrong file is a
``ValueError``.
Leaves to others: the attacks themselves (``test_d*.py``), that each row has one (``test_every_row.py``).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar, cast

import pytest
from _pytest.mark import ParameterSet
from proof_page import CHECK_OF, NAMES, plain, removed

from nodeattest_providers.errors import ChallengeRequired, Check, Denied, Unavailable

FOLDER: Final = Path(__file__).parent / "catalogue"
_ID: Final = re.compile(r"(D[1-9][0-9]?)-[0-9]{2,3}")
_ROW_FIELDS: Final = {"id", "attack", "known", "expect", "surface", "api", "state"}


class Verdict(StrEnum):
    """What becomes of the attack."""

    DENY = "deny"
    """Refused for good."""
    WAIT = "wait"
    """Left pending for a bounded time."""
    IGNORE = "ignore"
    """Not ours: left alone."""
    SHED = "shed"
    """Put off for the offender alone."""
    ACCEPT = "accept"
    """Looks like an attack and is none, or does no harm: refusing it would."""


class Surface(StrEnum):
    """What the attack is run against."""

    PARSER = "parser"
    """``envelope.decode``, ``controller.request.parse``."""
    VERIFIER = "verifier"
    """A provider's ``verify_…_attestation_data``."""
    RULES = "rules"
    """The controller's pure rules: review, ledger, policy."""
    CONTROLLER = "controller"
    """The controller's reconciler, with API servers in memory."""
    APISERVER = "apiserver"
    """The API server itself: sandbox and real; and the gateway, which answers as one."""
    AGENT = "agent"
    """``kubelet-authenticator``."""
    FRONT = "front"
    """The discovery front, its webhook, and the node that asks a front."""
    ADDON = "addon"
    """What stands between a caller and an add-on: the proxy that gateway and sidecar share, and the sidecar."""
    RELYING = "relying"
    """``nodeattest_identity.tokens``: whoever verifies tokens by an issuer's documents."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A verdict and its reason; the reason is empty where there is none to give."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attack."""

    id: str
    section: str
    attack: str
    known: str
    """CVE, advisory, project, RFC or rule that it is known from."""
    surface: Surface
    expected: Expected
    api: str = ""
    """What the API server does with the same bytes: ``stored`` or ``refused``; empty: not asked."""
    state: str = ""
    """Why the row is not run; empty: it is."""


def read(path: Path) -> list[Row]:
    """Read one file of the catalogue."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    if document.keys() - {"section", "title", "surface", "row"}:
        raise ValueError(f"{path.name}: unknown fields {sorted(document)}")
    default = str(document.get("surface", ""))
    rows = [_row(path.name, str(document["section"]), default, item) for item in document["row"]]
    numbers = [int(row.id.partition("-")[2]) for row in rows]
    if numbers != sorted(numbers):
        raise ValueError(f"{path.name}: rows stand in the order of their ids")
    return rows


def _row(file: str, section: str, surface: str, item: Mapping[str, object]) -> Row:
    if item.keys() - _ROW_FIELDS or not all(isinstance(value, str) and value for value in item.values()):
        raise ValueError(f"{file}: {item.get('id')}: known fields with text in them, {sorted(_ROW_FIELDS)}")
    fields = cast("Mapping[str, str]", item)
    match = _ID.fullmatch(fields["id"])
    if match is None or match[1] != section:
        raise ValueError(f"{file}: {fields['id']} is no id of section {section}")
    verdict, _, reason = fields["expect"].partition(" ")
    return Row(
        id=fields["id"],
        section=section,
        attack=fields["attack"],
        known=fields["known"],
        surface=Surface(fields.get("surface", surface)),
        expected=Expected(Verdict(verdict), reason),
        api=fields.get("api", ""),
        state=fields.get("state", ""),
    )


def _all() -> Mapping[str, Row]:
    rows: dict[str, Row] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for row in read(path):
            if row.id in rows:
                raise ValueError(f"{path.name}: {row.id} stands twice")
            rows[row.id] = row
    return MappingProxyType(rows)


ROWS: Final = _all()


T = TypeVar("T")


def attacks(table: Mapping[str, T]) -> list[ParameterSet]:
    """Make the parameters ``(row, value)`` of a test that runs these rows."""
    return [
        pytest.param(ROWS[row], value, id=f"{row} {ROWS[row].expected.reason}", marks=pytest.mark.attack(row))
        for row, value in table.items()
    ]


def evaluated(action: Callable[[], object], row: Row | None = None) -> Expected:
    """Tell the verdict; any exception that is none goes through and fails the test.

    A row that docs/proof/checks.md names is refused by the check of that page, and ends otherwise without it.
    """
    outcome, check = _ended(action)
    if row is not None and row.id in CHECK_OF:
        assert check == CHECK_OF[row.id], check
        with removed(check):
            try:
                is_necessary = _ended(action) != (outcome, check)
            except (AssertionError, AttributeError, LookupError, TypeError, ValueError):
                is_necessary = True
        assert is_necessary, check
    return outcome


def _ended(action: Callable[[], object]) -> tuple[Expected, str]:
    """Return the verdict and the check that refused; each check that was recorded is on the page."""
    outcome, recorded = Expected(Verdict.ACCEPT, ""), tuple[Check, ...]()
    try:
        recorded = getattr(action(), "checks", ())
    except Denied as denied:
        outcome, recorded = Expected(Verdict.DENY, denied.reason), denied.checks
    except Unavailable as unavailable:
        outcome, recorded = Expected(Verdict.WAIT, unavailable.reason), unavailable.checks
    except ChallengeRequired:
        pass
    names = [plain(check.name) for check in recorded]
    if not NAMES.issuperset(names):
        pytest.fail(f"docs/proof/checks.md does not name {set(names) - NAMES}")
    return outcome, names[-1] if names and outcome.reason else ""
