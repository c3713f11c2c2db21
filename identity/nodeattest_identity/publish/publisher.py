"""Making a place hold what is wanted: read, plan, write, until there is nothing left to write.

Promises: what stands there already is not written; whatever instant it is killed at, tokens verify and the next run
finishes; a race that is lost is read and judged anew. It ends, also where a place never holds what was written into it.
Leaves to others: what to write (``plan``), whether the public sees it (``readback``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.issuer.documents import Documents
from nodeattest_identity.publish.errors import StoreRefusedError, WriteConflictError
from nodeattest_identity.publish.paths import object_paths
from nodeattest_identity.publish.plan import Current, Desired, Plan, Write, plan
from nodeattest_identity.publish.state import IssuerState
from nodeattest_identity.publish.store import Store

__all__ = ["Published", "dry_run", "publish", "read_current"]

_ROUNDS: Final = 16
"""Three without others: write the documents, write their time, see that nothing is left. Lost races take one each."""
_READINGS: Final = 8
_LONGEST_PAUSE: Final = 2.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What stands in the place now."""

    documents: Documents
    state: IssuerState
    writes: tuple[Write, ...]
    """What this run wrote; empty where all was there."""
    notes: tuple[str, ...]
    unknown: frozenset[str]
    """Names of keys that were to be dropped, and that this run never saw."""


async def read_current(store: Store, desired: Desired) -> Current:
    """Read what stands there, all as it was at one moment: the key set is the same before and after the state.

    Else a key that another run publishes meanwhile would be one that the state names and the key set lacks. Raises
    ``WriteConflictError`` where it changes each time.
    """
    place = object_paths(desired.issuer, desired.jwks_uri)
    for _ in range(_READINGS):
        configuration = await store.read(place.configuration)
        jwks = await store.read(place.jwks)
        state = await store.read(place.state)
        if await store.read(place.jwks) == jwks:
            return Current(configuration=configuration, jwks=jwks, state=state)
    raise WriteConflictError(f"{store.name}: {place.jwks} is written by others all the time")


async def dry_run(store: Store, desired: Desired, *, clock: Callable[[], float]) -> Plan:
    """Plan without writing."""
    return plan(await read_current(store, desired), desired, int(clock()))


async def _some_time(races: int) -> None:
    """Wait longer after each lost race, and not as long as the one that it was lost to."""
    await asyncio.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.05 * 2**races)))  # noqa: S311 - no secret


async def publish(
    store: Store, desired: Desired, *, clock: Callable[[], float], pause: Callable[[int], Awaitable[None]] = _some_time
) -> Published:
    """Make the place hold what is wanted; ``clock`` gives seconds since the epoch, ``pause`` waits after a lost race.

    Raises ``PublishError``, ``KeysError`` and ``UrlError``.
    """
    written: list[Write] = []
    notes: dict[str, None] = {}
    lost: WriteConflictError | None = None
    races = 0
    unknown = desired.revoked
    for _ in range(_ROUNDS):
        plan_now = await dry_run(store, desired, clock=clock)
        notes |= dict.fromkeys(plan_now.notes)
        unknown &= plan_now.unknown
        if not plan_now.writes:
            return Published(
                documents=plan_now.documents,
                state=plan_now.state,
                writes=tuple(written),
                notes=tuple(notes),
                unknown=unknown,
            )
        try:
            written += await _write(store, plan_now)
        except WriteConflictError as race:
            lost, races = race, races + 1
            await pause(races)
    raise lost or _unholdable(store, await dry_run(store, desired, clock=clock))


async def _write(store: Store, plan_now: Plan) -> tuple[Write, ...]:
    for each in plan_now.writes:
        await store.write(
            each.path,
            each.body,
            content_type=each.content_type,
            cache_control=each.cache_control,
            version=each.version,
        )
    return plan_now.writes


def _unholdable(store: Store, plan_now: Plan) -> StoreRefusedError:
    """Tell what the place does not keep, however often it is written."""
    lost = ", ".join(f"{write.path} {write.why}" for write in plan_now.writes)
    return StoreRefusedError(
        f"{store.name}: expected to read what was written, got otherwise each time ({lost}); a place that changes "
        "bytes or loses headers cannot hold an issuer's documents, or somebody else writes there all the time"
    )
