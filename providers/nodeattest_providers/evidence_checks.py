"""What every verifier does first with an evidence block, recorded like any other check.

Promises: a parser's refusal is in the record as the check that failed; its success is there too.
Source: docs/wire-format.md, "Evidence".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeVar

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.evidence_versions import annotations_for
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence

_SECTION: Final = "wire format, Evidence"
_WELL_FORMED: Final = "a well-formed value"

_T = TypeVar("_T")


def check_block(checks: Checks, evidence: Evidence, provider: ProviderName, versions: Collection[int]) -> None:
    """Check that the evidence is of this provider and of a version that it accepts."""
    checks.require(
        evidence.provider == provider,
        "evidence provider",
        section=_SECTION,
        reason=Reason.PROVIDER_MISMATCH,
        expected=provider,
        got=evidence.provider,
        remedy=f"send {provider} evidence to the signer of {provider}",
    )
    understood = ", ".join(f"v{version}" for version in versions)
    checks.require(
        evidence.version in versions,
        "evidence version",
        section=_SECTION,
        reason=Reason.EVIDENCE_VERSION_UNSUPPORTED,
        expected=understood,
        got=f"v{evidence.version}",
        remedy=f"send {provider} evidence of {understood}",
        annotations=annotations_for(provider, versions),
    )


def check_parsed(checks: Checks, name: str, section: str, parse: Callable[[], _T]) -> _T:
    """Parse, and record how it went."""
    try:
        value = parse()
    except Denied as denied:
        _record(checks, name, section, denied)
        raise  # not reached: the failed check raises, with the record so far
    _record(checks, name, section, None)
    return value


def _record(checks: Checks, name: str, section: str, denied: Denied | None) -> None:
    checks.require(
        denied is None,
        name,
        section=section,
        reason=denied.reason if denied else Reason.EVIDENCE_MALFORMED,
        expected=denied.expected if denied else _WELL_FORMED,
        got=denied.got if denied else _WELL_FORMED,
        remedy=denied.remedy if denied else "",
    )
