"""The steps of a key rotation: which is due, when the next may come, and what would break live tokens. Pure.

    make → publish the new key beside the old → wait until no cache lacks it → sign with it
         → keep the old until its last token has expired → retire

Promises: ``sign`` is never due before every compliant cache holds the new key, ``retire`` never before the longest
token lifetime after the old key stopped signing. Times of later steps are the earliest possible ones.
Leaves to others: doing it. The caller says which key signs: only the API servers know.
Source: kube-apiserver --service-account-key-file ("may be specified multiple times"; all verify),
--service-account-signing-key-file (one signs); kube-controller-manager --service-account-private-key-file (signs legacy
tokens); Kubernetes pkg/serviceaccount/jwt.go (a new key is published before it signs); kubernetes/kubernetes#20165.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeattest_identity.publish.state import RETIRE_AFTER, IssuerState, KeyRecord
from nodeattest_identity.tokens.jwt import printable

__all__ = ["SLACK", "RotationStep", "Status", "StepName", "Timeline", "may_sign_from", "timeline"]

SLACK: Final = 600
"""Seconds beyond max-age: clocks differ, and libraries hold key sets for five or ten minutes of their own."""


class StepName(StrEnum):
    """The steps in their order."""

    MAKE = "make"
    PUBLISH = "publish"
    WAIT = "wait"
    SIGN = "sign"
    KEEP = "keep"
    RETIRE = "retire"


class Status(StrEnum):
    """The status of a step."""

    DONE = "done"
    DUE = "due"
    WAITING = "waiting"
    """Nothing to do until its time."""
    LATER = "later"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationStep:
    """One step."""

    name: StepName
    status: Status
    at: int | None
    """Done: when, if known. Waiting: until when. Due and later: the earliest time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The state of a rotation."""

    steps: tuple[RotationStep, ...]
    signer: str
    """Id of the key that signs now."""
    new: str | None
    """Id of the key that signs next."""
    old: tuple[str, ...]
    """Ids of the keys whose last tokens have not expired."""
    problems: tuple[str, ...]
    """What breaks live tokens now; fix it before anything else."""

    def step(self, name: StepName) -> RotationStep:
        """Return one step."""
        return next(step for step in self.steps if step.name is name)


def timeline(
    state: IssuerState | None,
    signer: str,
    new: str | None = None,
    *,
    now: int,
    slack: int = SLACK,
    token_life: int = RETIRE_AFTER,
) -> Timeline:
    """Return the steps; ``new`` is the id of the next key, found by itself if it was published after the signer's."""
    records = {record.key.kid: record for record in (state.keys if state is not None else ())}
    new = _next(records, signer) if new is None or new == signer else new
    old = tuple(kid for kid in records if kid not in {signer, new})
    problems = (*_signer_problems(records, signer, now), *_too_early(records, old, signer, now, token_life))
    if new is None and old:
        steps = _after_switch([records[kid] for kid in old], now, token_life)
    else:
        record = None if new is None else records.get(new)
        ready = None if record is None else may_sign_from(record, slack)
        if ready is None:
            ready = now + (state.max_age if state is not None else 0) + slack
        steps = _before_switch(record, new, now, ready, token_life)
    return Timeline(steps=tuple(steps), signer=signer, new=new, old=old, problems=problems)


def may_sign_from(record: KeyRecord, slack: int = SLACK) -> int | None:
    """Return from when on a key may sign; None: not published yet.

    A key of the first key set may sign at once: no cache and no library can hold an older set.
    """
    if record.settled is None or record.settled == record.published:
        return record.settled
    return record.settled + slack


def _next(records: dict[str, KeyRecord], signer: str) -> str | None:
    """Find the newest desired key that settles after the signing key."""
    signing = records.get(signer)
    if signing is None or signing.settled is None:
        return None
    later = [
        (record.settled, kid)
        for kid, record in records.items()
        if record.retire is None and record.settled is not None and record.settled > signing.settled
    ]
    return max(later)[1] if later else None


def _signer_problems(records: dict[str, KeyRecord], signer: str, now: int) -> list[str]:
    """Problems of the signing key."""
    record = records.get(signer)
    if record is None or record.published is None:
        return [f"{signer} signs and is not published: nobody can verify its tokens; publish it now"]
    if record.retire is not None:
        return [f"{signer} signs and is to go at its retire time: give publish its file again now"]
    if record.settled is not None and record.settled > now:
        return [
            f"{signer} signs and is younger than caches: relying parties may refuse its tokens until it has settled"
        ]
    return []


def _too_early(records: dict[str, KeyRecord], old: Sequence[str], signer: str, now: int, token_life: int) -> list[str]:
    """Old keys that are removed while tokens by them may live: they signed until the signer could, or longer."""
    signing = records.get(signer)
    since = signing.settled if signing is not None and signing.settled is not None else now
    early = [kid for kid in old if (retire := records[kid].retire) is not None and retire < since + token_life]
    return [
        f"{printable(kid)} is to go before the last token that it may have signed has expired: publish it again"
        for kid in early
    ]


def _before_switch(
    record: KeyRecord | None, new: str | None, now: int, ready: int, token_life: int
) -> list[RotationStep]:
    """Return the steps until the new key signs, which it may from ``ready`` on."""
    published = record.published if record is not None else None
    waiting = Status.LATER if published is None else Status.DONE if ready <= now else Status.WAITING
    made = RotationStep(
        name=StepName.MAKE, status=Status.DUE if new is None else Status.DONE, at=now if new is None else None
    )
    publish = Status.LATER if new is None else Status.DUE if published is None else Status.DONE
    sign = max(ready, now)
    return [
        made,
        RotationStep(name=StepName.PUBLISH, status=publish, at=now if published is None else published),
        RotationStep(name=StepName.WAIT, status=waiting, at=ready),
        RotationStep(name=StepName.SIGN, status=Status.DUE if waiting is Status.DONE else Status.LATER, at=sign),
        RotationStep(name=StepName.KEEP, status=Status.LATER, at=sign),
        RotationStep(name=StepName.RETIRE, status=Status.LATER, at=sign + token_life),
    ]


def _after_switch(old: list[KeyRecord], now: int, token_life: int) -> list[RotationStep]:
    """Return the steps after the switch: old keys are removed from the input of publish, then expire."""
    done = [RotationStep(name=name, status=Status.DONE, at=None) for name in list(StepName)[:4]]
    until = max(now + token_life if record.retire is None else record.retire for record in old)
    desired = any(record.retire is None for record in old)
    over = not desired and until <= now
    keep = Status.DUE if desired else Status.DONE if over else Status.WAITING
    return [
        *done,
        RotationStep(name=StepName.KEEP, status=keep, at=now if desired else until),
        RotationStep(name=StepName.RETIRE, status=Status.DUE if over else Status.LATER, at=until),
    ]
