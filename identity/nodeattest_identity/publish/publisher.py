"""Publishes: reads the store, plans, writes, until nothing is left to write.

Promises: objects that are as desired are not written. At whatever instant it is killed, tokens verify and the next run
completes. After a write conflict it reads and plans again. It ends, even if a store never keeps what is written.
Out of scope: what to write (``plan``), the public URL (``verify_public``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.issuer.documents import Documents
from nodeattest_identity.publish.plan import CONFIGURATION, STATE, Current, Plan, Write, jwks_path, plan
from nodeattest_identity.publish.state import Desired, IssuerState
from nodeattest_identity.publish.store import ObjectStore, StoreRefusedError, WriteConflictError

__all__ = ["PublishResult", "dry_run", "publish"]

_ATTEMPTS: Final = 16
"""Two without conflicts: write, see that nothing is left. A conflict takes one."""
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
    """Ids of keys to revoke that this run never saw."""


async def dry_run(store: ObjectStore, desired: Desired, *, clock: Callable[[], float]) -> Plan:
    """Read and plan without writing.

    The state is read last. It is written before the documents, so it knows every key of a document that was read
    earlier; otherwise a concurrent run's key would look like a foreign one.
    """
    path = jwks_path(desired.issuer, desired.jwks_uri)
    configuration = await store.read(CONFIGURATION)
    jwks = await store.read(path)
    state = await store.read(STATE)
    return plan(Current(configuration=configuration, jwks=jwks, state=state), desired, int(clock()))


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
        next_plan = await dry_run(store, desired, clock=clock)
        notes |= dict.fromkeys(next_plan.notes)
        unknown &= next_plan.unknown
        if not next_plan.writes:
            return PublishResult(
                documents=next_plan.documents,
                state=next_plan.state,
                writes=tuple(written),
                notes=tuple(notes),
                unknown=unknown,
            )
        try:
            for write in next_plan.writes:
                await store.write(
                    write.path,
                    write.body,
                    content_type=write.content_type,
                    cache_control=write.cache_control,
                    replaces=write.replaces,
                )
                written.append(write)
        except WriteConflictError as error:
            conflict, conflicts = error, conflicts + 1
            await pause(conflicts)
    raise conflict or _not_kept(store, await dry_run(store, desired, clock=clock))


def _not_kept(store: ObjectStore, next_plan: Plan) -> StoreRefusedError:
    """Name what the store does not keep, however often it is written."""
    lost = ", ".join(f"{write.path} {write.why}" for write in next_plan.writes)
    return StoreRefusedError(
        f"{store.name}: expected to read what was written, got otherwise each time ({lost}); use a store that keeps "
        "bytes and headers, and stop other programs that write there"
    )
