"""A verification's record: what was checked, from which source, what was expected and found.

``explain`` replays it, an auditor reads it years later. A verification without checks is a failure.
Source: docs/wire-format.md, "Evidence".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, final

from nodeattest_providers.errors import NO_ANNOTATIONS, Check, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Evidence, annotations_for

_FEW: Final = 8
_T = TypeVar("_T")


@final
@dataclass(slots=True)
class Checks:
    """Collects checks in order; the first one that fails raises ``Denied`` with the record so far.

    Each verification makes its own; nothing gives it one that refuses less.
    """

    _done: list[Check] = field(default_factory=list[Check])

    def require(
        self,
        passed: bool,
        name: str,
        *,
        section: str,
        reason: Reason,
        expected: str,
        got: str,
        remedy: str,
        annotations: Mapping[str, str] = NO_ANNOTATIONS,
    ) -> None:
        self._done.append(Check(name, section, expected, got, passed))
        if not passed:
            raise Denied(reason, expected=expected, got=got, remedy=remedy, checks=self._done, annotations=annotations)

    def outcome(self, name: str, section: str, denied: Denied | None) -> None:
        if denied is not None:
            raise self.refused(name, section, denied)
        self._done.append(Check(name, section, _WELL_FORMED, _WELL_FORMED, passed=True))

    def refused(self, name: str, section: str, denied: Denied) -> Denied:
        self._done.append(Check(name, section, denied.expected, denied.got, passed=False))
        return self.denied(denied)

    def unavailable(self, reason: Reason, detail: str, *, remedy: str, retry_after: float = 5.0) -> Unavailable:
        return Unavailable(reason, detail, remedy=remedy, retry_after=retry_after, checks=self._done)

    def recorded(self, error: Unavailable) -> Unavailable:
        return self.unavailable(error.reason, error.detail, remedy=error.remedy, retry_after=error.retry_after)

    def denied(self, error: Denied, part: str = "") -> Denied:
        """Make the same ``Denied`` with the record so far.

        ``part`` names whose refusal it is; the versions that a part supports are not the whole's.
        """
        annotations = NO_ANNOTATIONS if part else error.annotations
        return Denied(
            error.reason,
            expected=f"{part}: {error.expected}" if part else error.expected,
            got=error.got,
            remedy=error.remedy,
            checks=self._done,
            annotations=annotations,
        )

    def adopt(self, part: str, done: Iterable[Check]) -> None:
        self._done += [replace(check, name=f"{part}: {check.name}") for check in done]

    def record(self) -> tuple[Check, ...]:
        """Return what was checked so far; never empty after a verification that proved something."""
        return tuple(self._done)


def one_of(allowed: Collection[str], what: str) -> str:
    """Say what was expected where several values are allowed: a few by name, and of many how many they are.

    It is said of checks that pass, too, so it must not grow with a policy.
    """
    return " or ".join(sorted(allowed)) if len(allowed) <= _FEW else f"one of {len(allowed)} {what}"


@final
@dataclass(frozen=True, slots=True)
class Rules:
    """Checks of one section of a specification, which share its name and, unless one says otherwise, reason and remedy.

    ``got`` of ``require`` describes a failure: where a check passes, what was expected is recorded.
    """

    checks: Checks
    section: str
    reason: Reason
    remedy: str
    prefix: str = ""

    def require(
        self, passed: bool, name: str, expected: str, got: str, *, reason: Reason | None = None, remedy: str = ""
    ) -> None:
        self._record(passed, name, (expected, expected if passed else got), reason, remedy)

    def equal(self, name: str, expected: str, got: str, *, reason: Reason | None = None, remedy: str = "") -> None:
        self._record(expected == got, name, (expected, got), reason, remedy)

    def member(
        self, name: str, allowed: Collection[str], got: str, *, reason: Reason | None = None, remedy: str = ""
    ) -> None:
        expected = one_of(allowed, "values") or "none: the list is empty"
        self._record(got in allowed, name, (expected, got), reason, remedy)

    def present(
        self, value: _T | None, name: str, expected: str, *, reason: Reason | None = None, remedy: str = ""
    ) -> _T:
        self.require(value is not None, name, expected, "none", reason=reason, remedy=remedy)
        if value is None:
            raise AssertionError("a failed check raises Denied")
        return value

    def parsed(self, name: str, parse: Callable[[], _T]) -> _T:
        return check_parsed(self.checks, name, self.section, parse)

    def _record(self, passed: bool, name: str, compared: tuple[str, str], reason: Reason | None, remedy: str) -> None:
        self.checks.require(
            passed,
            self.prefix + name,
            section=self.section,
            reason=reason or self.reason,
            expected=compared[0],
            got=compared[1],
            remedy=remedy or self.remedy,
        )


_SECTION: Final = "wire format, Evidence"
_WELL_FORMED: Final = "a well-formed value"


def check_block(checks: Checks, evidence: Evidence, provider: ProviderName, versions: Collection[int]) -> None:
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
    try:
        value = parse()
    except Denied as denied:
        raise checks.refused(name, section, denied) from None
    checks.outcome(name, section, None)
    return value
