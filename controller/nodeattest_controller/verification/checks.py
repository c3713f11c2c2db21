"""Declared checks: what each is called, its rule, its source, what it needs, and the order in which they run.

A list of checks is a value, and a ``Pipeline`` runs those that apply, in the declared order; the first that refuses
ends the evaluation. The controller runs them on its caches and live reads, ``nodeattest explain`` the same objects on
stored documents. An empty list is a failure, and so is a request to which no check applies.
Leaves to others: the lists (``controllers.csr.checks``, ``controllers.kubelet_serving.checks``), and the facts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from nodeattest_providers.identifiers import Purpose


class Needs(StrEnum):
    """The most costly source that a check asks."""

    REQUEST = "the parsed request"
    MEMORY = "the caches of the management cluster"
    LIVE = "a live read"
    PROVIDER = "the provider's verification"


class Round(StrEnum):
    """Which request of a join or renewal it is."""

    FIRST = "first"
    """The first request of a provider of two steps; its verification ends in a challenge."""
    FINAL = "final"
    """The request that gets the certificate; a provider of one round has no other."""


class Stage(StrEnum):
    """When a check runs."""

    EVALUATE = "evaluate"
    ISSUE = "issue"
    """While key, node name and fingerprints are reserved, directly before a new certificate is signed."""


BOTH_ROUNDS: Final = frozenset(Round)
EVERY_PURPOSE: Final = frozenset(Purpose)


class Evaluated(Protocol):
    """What decides which checks apply to a request."""

    @property
    def purpose(self) -> Purpose:
        """What the certificate is for."""
        ...

    def round(self) -> Awaitable[Round]:
        """Return which round it is; raises Denied where the evidence does not say."""
        ...


F = TypeVar("F", bound=Evaluated)
F_contra = TypeVar("F_contra", bound=Evaluated, contravariant=True)


@dataclass(frozen=True, slots=True)
class RequestCheck(Generic[F_contra]):
    """One declared check."""

    name: str
    """Unique in its list; ``explain`` shows it."""
    rule: str
    """What must hold, in a sentence."""
    source: str
    """Where the rule comes from: an identity rule of docs/identity-rules.md, a decision, an RFC."""
    needs: Needs
    run: Callable[[F_contra], Awaitable[None]]
    """Raises Denied, Unavailable or ChallengeRequired."""
    _: KW_ONLY
    purposes: frozenset[Purpose] = EVERY_PURPOSE
    rounds: frozenset[Round] = BOTH_ROUNDS
    stage: Stage = Stage.EVALUATE

    async def applies(self, facts: F_contra) -> bool:
        """Return whether the check is one for this request."""
        if facts.purpose not in self.purposes:
            return False
        return self.rounds == BOTH_ROUNDS or await facts.round() in self.rounds


class Pipeline(Generic[F]):
    """Runs checks in their declared order."""

    def __init__(self, checks: Sequence[RequestCheck[F]]) -> None:
        names = [check.name for check in checks]
        if not checks or len(names) != len(set(names)):
            raise ValueError("a list of checks has checks, each with a name of its own")
        self._checks = tuple(checks)

    def __iter__(self) -> Iterator[RequestCheck[F]]:
        """Yield the checks in their order."""
        return iter(self._checks)

    async def run(self, facts: F, stage: Stage = Stage.EVALUATE) -> tuple[str, ...]:
        """Run what applies; returns the names of the checks that passed, never none; raises what a check raises."""
        passed: list[str] = []
        for check in self._checks:
            if check.stage is stage and await check.applies(facts):
                await check.run(facts)
                passed.append(check.name)
        if not passed:
            raise RuntimeError(f"no check of the stage {stage} applies to the request")
        return tuple(passed)
