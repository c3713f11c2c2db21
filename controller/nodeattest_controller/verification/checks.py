"""Declared checks: what each is called, its rule, its source, and the order in which they run.

A ``Pipeline`` runs the checks that apply in their declared order; the first that refuses ends the evaluation. The
controller runs them on its caches and live reads, ``nodeattest explain`` the same objects on stored documents.
Out of scope: the lists, ``controllers.csr.checks`` and ``controllers.csr.kubelet_checks``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from nodeattest_controller.model.csr_request import Round
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_providers.identifiers import Purpose


class Stage(StrEnum):
    """When a check runs."""

    EVALUATE = "evaluate"
    ISSUE = "issue"
    """While key, node name and fingerprints are reserved, directly before a new certificate is signed."""


BOTH_ROUNDS: Final = frozenset(Round)


F = TypeVar("F", bound=RequestFacts)
F_contra = TypeVar("F_contra", bound=RequestFacts, contravariant=True)


@dataclass(frozen=True, slots=True)
class RequestCheck(Generic[F_contra]):
    """One declared check."""

    name: str
    """Unique in its list; ``explain`` shows it."""
    rule: str
    """What must hold, in a sentence."""
    source: str
    """Where the rule comes from: an identity rule of docs/identity-rules.md, a decision, an RFC."""
    run: Callable[[F_contra], Awaitable[None]]
    """Raises Denied, Unavailable or ChallengeRequired."""
    _: KW_ONLY
    purposes: frozenset[Purpose] = frozenset(Purpose)
    rounds: frozenset[Round] = BOTH_ROUNDS
    stage: Stage = Stage.EVALUATE

    async def applies(self, facts: F_contra) -> bool:
        """Return whether the check is one for this request."""
        if facts.purpose not in self.purposes:
            return False
        return self.rounds == BOTH_ROUNDS or await facts.round() in self.rounds


def declare(
    name: str,
    source: str,
    *,
    purposes: Iterable[Purpose] = Purpose,
    rounds: Iterable[Round] = Round,
    stage: Stage = Stage.EVALUATE,
) -> Callable[[Callable[[F], Awaitable[None]]], RequestCheck[F]]:
    """Make a check of a function, whose docstring is the rule."""

    def check(run: Callable[[F], Awaitable[None]]) -> RequestCheck[F]:
        rule = " ".join((run.__doc__ or "").split())
        applies_to = frozenset(purposes), frozenset(rounds)
        return RequestCheck(name, rule, source, run, purposes=applies_to[0], rounds=applies_to[1], stage=stage)

    return check


class Pipeline(Generic[F]):
    """Runs checks in their declared order."""

    def __init__(self, checks: Sequence[RequestCheck[F]]) -> None:
        names = [check.name for check in checks]
        if not checks or len(names) != len(set(names)):
            raise ValueError("a list of checks has checks, each with a name of its own")
        self._checks = tuple(checks)

    async def run(self, facts: F, stage: Stage = Stage.EVALUATE) -> None:
        """Run the checks that apply, of which there must be one; raises what a check raises."""
        has_run = False
        for check in self._checks:
            if check.stage is stage and await check.applies(facts):
                await check.run(facts)
                has_run = True
        if not has_run:
            raise RuntimeError(f"no check of the stage {stage} applies to the request")
