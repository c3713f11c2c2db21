"""Publishes: reads the store, plans, writes, until nothing is left to write.

Promises: objects that are as desired are not written. At whatever instant it is killed, tokens verify and the next run
finishes. After a write conflict it reads and plans again. It ends, even if a store never keeps what is written.
Leaves to others: what to write (``plan``), the public URL (``verify_public``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.issuer.documents import Documents
from nodeattest_identity.publish.paths import object_paths
from nodeattest_identity.publish.plan import Current, Plan, Write, plan
from nodeattest_identity.publish.state import Desired, IssuerState
from nodeattest_identity.publish.store import ObjectStore, StoreRefusedError, WriteConflictError

__all__ = ["PublishResult", "dry_run", "publish", "read_current"]

_ATTEMPTS: Final = 16
"""Three without conflicts: write the documents, write their time, see that nothing is left. A conflict takes one."""
_READ_ATTEMPTS: Final = 8
_MAX_PAUSE: Final = 2.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """The result of a run."""

    documents: Documents
    state: IssuerState
    writes: tuple[Write, ...]
    """Writes of this run; empty if everything was as desired."""
    notes: tuple[str, ...]
    unknown: frozenset[str]
    """Ids of keys to remove that this run never saw."""


async def read_current(store: ObjectStore, desired: Desired) -> Current:
    """Read a consistent snapshot: the key set is the same before and after the state object was read.

    Otherwise a key that another run publishes meanwhile would be in the state object and missing in the key set.
    Raises ``WriteConflictError`` if it changes each time.
    """
    place = object_paths(desired.issuer, desired.jwks_uri)
    for _ in range(_READ_ATTEMPTS):
        configuration = await store.read(place.configuration)
        jwks = await store.read(place.jwks)
        state = await store.read(place.state)
        if await store.read(place.jwks) == jwks:
            return Current(configuration=configuration, jwks=jwks, state=state)
    raise WriteConflictError(f"{store.name}: {place.jwks} is written by others all the time")


async def dry_run(store: ObjectStore, desired: Desired, *, clock: Callable[[], float]) -> Plan:
    """Plan without writing."""
    return plan(await read_current(store, desired), desired, int(clock()))


async def _random_pause(conflicts: int) -> None:
    """Wait for a random time that grows with each conflict."""
    await asyncio.sleep(random.SystemRandom().uniform(0, min(_MAX_PAUSE, 0.05 * 2**conflicts)))


async def publish(
    store: ObjectStore,
    desired: Desired,
    *,
    clock: Callable[[], float],
    pause: Callable[[int], Awaitable[None]] = _random_pause,
) -> PublishResult:
    """Publish the desired documents; ``clock`` returns seconds since the epoch, ``pause`` waits after a conflict.

    Raises ``PublishError``, ``KeysError`` and ``UrlError``.
    """
    written: list[Write] = []
    notes: dict[str, None] = {}
    conflict: WriteConflictError | None = None
    conflicts = 0
    unknown = desired.revoked
    for _ in range(_ATTEMPTS):
        plan_now = await dry_run(store, desired, clock=clock)
        notes |= dict.fromkeys(plan_now.notes)
        unknown &= plan_now.unknown
        if not plan_now.writes:
            return PublishResult(
                documents=plan_now.documents,
                state=plan_now.state,
                writes=tuple(written),
                notes=tuple(notes),
                unknown=unknown,
            )
        try:
            written += await _write(store, plan_now)
        except WriteConflictError as error:
            conflict, conflicts = error, conflicts + 1
            await pause(conflicts)
    raise conflict or _not_kept(store, await dry_run(store, desired, clock=clock))


async def _write(store: ObjectStore, plan_now: Plan) -> tuple[Write, ...]:
    for each in plan_now.writes:
        await store.write(
            each.path,
            each.body,
            content_type=each.content_type,
            cache_control=each.cache_control,
            version=each.version,
        )
    return plan_now.writes


def _not_kept(store: ObjectStore, plan_now: Plan) -> StoreRefusedError:
    """Name what the store does not keep, however often it is written."""
    lost = ", ".join(f"{write.path} {write.why}" for write in plan_now.writes)
    return StoreRefusedError(
        f"{store.name}: expected to read what was written, got otherwise each time ({lost}); a place that changes "
        "bytes or loses headers cannot hold an issuer's documents, or somebody else writes there all the time"
    )
