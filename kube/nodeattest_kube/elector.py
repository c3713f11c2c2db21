"""Leader election on a coordination.k8s.io/v1 Lease, as client-go's ``leaderelection`` does it, bugs of clocks aside.

Promises: another's lease is taken only after *we* saw it unchanged for its whole duration on our own monotonic clock,
so the replicas' clocks need not agree; we stop leading ``renew_deadline`` after the *start* of the last renewal that
succeeded, before anybody else may start; ``lead`` has ended before the lease is released. Once led by, a lease that is
gone, nobody's, or was another's in between is lost: who led meanwhile wrote what we do not know of.
Leaves to others: fencing. A paused process may write after it lost the lease, so every write is a compare-and-swap, and
what must be true of several objects is made known only after ``still_leads``, which asks no clock.
Source: client-go tools/leaderelection/leaderelection.go; defaults of component-base's LeaderElectionConfiguration.
"""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Generic, NoReturn, TypeVar

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, NotFound, Unreachable
from nodeattest_kube.paths import collection_path, object_path
from nodeattest_parsing.objects import dig, text
from nodeattest_parsing.values import JsonObject, JsonValue

_JITTER: Final = 1.2
"""client-go's JitterFactor: candidates ask after one to 2.2 retry periods."""
T = TypeVar("T")
_GROUP: Final = ("coordination.k8s.io", "v1", "leases")


LeaseTerm = tuple[str, str, int]
"""Whose a lease is, and since which change of its holder: the holder, the object's UID, and ``leaseTransitions``."""


class LostLease(Exception):
    """We led, and may no longer: the lease was not renewed in time, or somebody else holds it."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class NextRead(Generic[T]):
    """One read for everybody who needs to know how something is after now.

    An answer is of a read that began after it was asked for. At most one read is under way, and all who ask meanwhile
    share the next. A caller that is cancelled takes nothing from the others.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._begun: asyncio.Task[T] | None = None
        """The read under way; it began too early for whoever asks now."""
        self._next: asyncio.Task[T] | None = None

    async def read(self) -> T:
        """Return what the next read gives, or raise what it raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._begun))
            self._next.add_done_callback(self._ended)
        return await asyncio.shield(self._next)

    async def _after(self, begun: asyncio.Task[T] | None) -> T:
        if begun is not None:
            await asyncio.wait({begun})
        self._begun, self._next = self._next, None
        return await self._read()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if self._begun is task:
            self._begun = None
        if self._next is task:  # cancelled before it began
            self._next = None
        if not task.cancelled():
            task.exception()  # retrieved: who waits has it


class LeaseElector:
    """One candidate; ``identity`` must differ from every other candidate's, so a host name alone will not do."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
        random: Callable[[], float] = random_module.random,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """``clock`` decides; ``now`` is only written into the lease, for people to read.

        ``annotations`` are set with every write, so that they are the holder's; others' stay.
        """
        if not identity or not lease_duration > renew_deadline > retry_period * _JITTER > 0:
            raise ValueError("expected an identity and lease_duration > renew_deadline > 1.2 * retry_period > 0")
        self.last_error: ApiError | None = None
        self._client = client
        self._collection = collection_path(*_GROUP, namespace=namespace)
        self._path = object_path(*_GROUP, name, namespace=namespace)
        self._metadata: JsonObject = {"name": name, "namespace": namespace}
        self._annotations: JsonObject = dict(annotations or {})
        self._identity = identity
        self._duration, self._deadline, self._period = lease_duration, renew_deadline, retry_period
        self._clock, self._now, self._random = clock, now, random
        self._lease: JsonObject | None = None
        """The lease as last read or written."""
        self._seen_at = 0.0
        """When, on our clock, the lease's spec was first seen as it is now."""
        self._renewed = float("-inf")
        """When the last renewal that succeeded was *begun*."""
        self._leading = False
        self._term: LeaseTerm = ("", "", 0)
        """That of the lease when we began to lead."""
        self._next_read = NextRead(lambda: read_lease(client, self._path, renew_deadline / 2))

    @property
    def is_leader(self) -> bool:
        """Whether we lead at this instant; turns False by time alone, even while the event loop stands still."""
        return self._leading and self._clock() < self._renewed + self._deadline

    @property
    def leader(self) -> str:
        """The identity that held the lease when last seen, empty if none."""
        return text(self._lease, "spec", "holderIdentity")

    async def still_leads(self) -> bool:
        """Return whether nobody else has led up to now, by a read of the lease that begins now; raises ApiError.

        What was written before this call is then found by whoever leads next and lists after taking the lease: even
        where our own clock stood still. One read serves all who wait for one to begin.
        """
        return term_of(await self._next_read.read()) == self._term and self.is_leader

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait until we lead, then run ``lead``; return when it returns, raise ``LostLease`` when we may not lead on.

        ``lead`` is cancelled, and awaited, when the lease is lost or we are cancelled. The lease is released after
        every end of ``lead`` but a lost lease.
        """
        while not await self._attempt():  # noqa: ASYNC110 - what is awaited lies on a server
            await asyncio.sleep(self._period * (1.0 + _JITTER * self._random()))
        self._term, self._leading = term_of(self._lease), True
        work = asyncio.ensure_future(lead())
        renewals = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait({work, renewals}, return_when=asyncio.FIRST_COMPLETED)
            lost = renewals.exception() if renewals.done() and not work.done() else None
        finally:
            await self._end(work, renewals)
        if lost is None:
            work.result()
        elif work.cancelled() or work.exception() is None:
            raise lost
        else:
            raise lost from work.exception()

    async def _end(self, work: asyncio.Future[None], renewals: asyncio.Task[None]) -> None:
        """End both tasks, then give the lease back if it is still ours; never while ``lead`` is at work."""
        work.cancel()
        renewals.cancel()
        await asyncio.gather(work, renewals, return_exceptions=True)
        held = self.is_leader
        self._leading = False
        if held and self.leader == self._identity:
            await self._release()

    async def _renew_until_lost(self) -> NoReturn:
        """Renew each period; raise ``LostLease`` at the deadline, or as soon as the lease is seen to be another's."""
        while True:
            await asyncio.sleep(min(self._period, max(self._left(), 0.0)))
            await self._attempt()
            if not self.is_leader:
                raise LostLease(f"{self._path} was not renewed within {self._deadline:g} s") from self.last_error
            if self.leader != self._identity:
                raise LostLease(f"{self._path} is held by {self.leader or 'nobody'}")
            if term_of(self._lease) != self._term:
                raise LostLease(f"{self._path} was another's meanwhile")

    def _left(self) -> float:
        """Seconds until the deadline."""
        return self._renewed + self._deadline - self._clock()

    async def _attempt(self) -> bool:
        """Try to take or renew the lease once; trouble with the server, or half a deadline without answer, is no."""
        begun = self._clock()
        limit = self._deadline / 2
        try:
            async with asyncio.timeout(min(limit, max(self._left(), 0.0)) if self._leading else limit):
                held = await self._take(begun)
        except TimeoutError:
            self.last_error = Unreachable(f"{self._path}: no answer within half the renew deadline")
            return False
        except ApiError as error:
            self.last_error = error
            return False
        self.last_error = None
        if held:
            self._renewed = begun
        return held

    async def _take(self, begun: float) -> bool:
        """Write the lease if it is ours, free or expired (client-go tryAcquireOrRenew)."""
        if self._leading and self._lease is not None:
            with suppress(Conflict, NotFound):  # The fast path: one request while nobody interferes.
                self._observe(await self._client.replace(self._path, self._ours(self._lease)), begun)
                return True
        try:
            lease = await self._client.get(self._path)
        except NotFound:
            if self._leading:
                self._lease = None
                return False
            self._observe(await self._client.create(self._collection, self._ours(None)), begun)
            return True
        self._observe(lease, self._clock())
        if self._leading and term_of(lease) != self._term:
            return False
        if self.leader not in {"", self._identity} and self._clock() < self._seen_at + self._duration_of(lease):
            return False
        self._observe(await self._client.replace(self._path, self._ours(lease)), begun)
        return True

    def _observe(self, lease: JsonObject, at: float) -> None:
        """Remember a lease, and when its spec was new to us."""
        if self._lease is None or lease.get("spec") != self._lease.get("spec"):
            self._seen_at = at
        self._lease = lease

    def _duration_of(self, lease: JsonObject) -> float:
        """How long its holder may stay silent: as it wrote itself, else as long as we do."""
        seconds = dig(lease, "spec", "leaseDurationSeconds")
        return float(seconds) if isinstance(seconds, int) and not isinstance(seconds, bool) else self._duration

    def _ours(self, lease: JsonObject | None) -> JsonObject:
        """Build the lease with us as its holder; acquireTime and leaderTransitions change with the holder only."""
        now = _micro_time(self._now())
        held = text(lease, "spec", "holderIdentity") == self._identity
        transitions = dig(lease, "spec", "leaseTransitions")
        count = transitions if isinstance(transitions, int) else 0
        spec: JsonObject = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(round(self._duration), 1),
            "acquireTime": (text(lease, "spec", "acquireTime") or now) if held else now,
            "renewTime": now,
            "leaseTransitions": count if held or lease is None else count + 1,
        }
        return self._with_spec(lease, spec)

    def _with_spec(self, lease: JsonObject | None, spec: JsonObject) -> JsonObject:
        """Keep a lease's metadata, and with it the resourceVersion that makes the write a compare-and-swap."""
        metadata: JsonValue = self._metadata if lease is None else lease.get("metadata")
        if self._annotations and isinstance(metadata, dict):
            known = metadata.get("annotations")
            metadata = {**metadata, "annotations": {**(known if isinstance(known, dict) else {}), **self._annotations}}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    async def _release(self) -> None:
        """Give the lease back, so that the next leader need not wait for it to expire; it does so all the same."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self._period):
                if self._lease is not None:
                    with suppress(Conflict):
                        await self._client.replace(self._path, self._free(self._lease))
                        return
                # We were stopped amid a renewal whose answer we never read: its version is news to us.
                lease = await self._client.get(self._path)
                if text(lease, "spec", "holderIdentity") == self._identity:
                    await self._client.replace(self._path, self._free(lease))

    def _free(self, lease: JsonObject) -> JsonObject:
        """Build the lease with no holder (client-go release)."""
        now = _micro_time(self._now())
        transitions = dig(lease, "spec", "leaseTransitions")
        spec: JsonObject = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
        return self._with_spec(lease, {**spec, "leaseTransitions": transitions})


def term_of(lease: JsonObject | None) -> LeaseTerm:
    """Read the term of a lease; nobody's, where there is none."""
    transitions = dig(lease, "spec", "leaseTransitions")
    count = transitions if isinstance(transitions, int) and not isinstance(transitions, bool) else 0
    return text(lease, "spec", "holderIdentity"), text(lease, "metadata", "uid"), count


async def read_lease(client: ApiClient, path: str, limit: float) -> JsonObject | None:
    """Read a lease as it is now, not as a cache of the server has it; None where there is none."""
    try:
        async with asyncio.timeout(limit):
            return await client.get(path)
    except NotFound:
        return None
    except TimeoutError:
        raise Unreachable(f"{path}: no answer within half the renew deadline") from None


def _micro_time(moment: datetime) -> str:
    """metav1.MicroTime: RFC 3339 in UTC with six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
