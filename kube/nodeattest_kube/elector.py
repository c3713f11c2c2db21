"""Leader election on a coordination.k8s.io/v1 Lease, as client-go does it, but without trust in wall clocks.

Another's lease is taken only after *we* saw it unchanged for its whole duration on our own monotonic clock, so the
replicas' clocks need not agree. We stop leading ``renew_deadline`` after the *start* of the last successful renewal,
before anybody else may start, and ``lead`` has ended before the lease is released. A lease that we lead by is lost once
it is gone, nobody's, or was another's in between: that leader wrote what we do not know of.
Out of scope: fencing. A paused process may write after it lost the lease, so every write is a compare-and-swap, and
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
from typing import Final, NoReturn

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, NotFound, Unreachable
from nodeattest_kube.paths import collection_path, object_path
from nodeattest_parsing.objects import dig, mapping, text
from nodeattest_parsing.values import JsonObject

_JITTER: Final = 1.2
"""client-go's JitterFactor: candidates ask after one to 2.2 retry periods."""
_GROUP: Final = ("coordination.k8s.io", "v1", "leases")


LeaseTerm = tuple[str, str, int]
"""Whose a lease is, and since which change of its holder: the holder, the object's UID, and ``leaseTransitions``."""


class LostLease(Exception):
    """We led, and may no longer: the lease was not renewed in time, or somebody else holds it."""


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
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
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
        self._reading = asyncio.Lock()
        self._reads = 0
        """How many reads of ``still_leads`` have begun."""
        self._last_read: tuple[int, LeaseTerm | ApiError] = (0, self._term)
        """The number of the last read that ended, and its result."""

    @property
    def is_leader(self) -> bool:
        """Whether we lead at this instant; turns False by time alone, even while the event loop stands still."""
        return self._leading and self._clock() < self._renewed + self._deadline

    @property
    def leader(self) -> str:
        """Who held the lease when it was last seen; empty if nobody."""
        return text(self._lease, "spec", "holderIdentity")

    async def still_leads(self) -> bool:
        """Return whether nobody else has led up to now, by a read of the lease that begins now; raises ApiError.

        What was written before this call is then found by whoever leads next and lists after taking the lease: even
        where our own clock stood still. One read serves all who wait for one to begin.
        """
        begun_before = self._reads
        async with self._reading:
            if self._last_read[0] <= begun_before:
                await asyncio.sleep(0)  # who asks in the same turn of the loop shares this read
                self._reads += 1
                self._last_read = self._reads, await self._read_term()
        term = self._last_read[1]
        if isinstance(term, ApiError):
            raise term
        return term == self._term and self.is_leader

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait until we lead, then run ``lead``; return when it returns, raise ``LostLease`` when we may not lead on.

        ``lead`` is canceled, and awaited, when the lease is lost or we are canceled. The lease is released after
        every end of ``lead`` but a lost lease.
        """
        while not await self._attempt():  # noqa: ASYNC110 - what is awaited lies on a server
            await asyncio.sleep(self._period * (1.0 + _JITTER * self._random()))
        self._term, self._leading = _term_of(self._lease), True
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
        """End both tasks, then release the lease if it is still ours; never while ``lead`` is at work."""
        work.cancel()
        renewals.cancel()
        await asyncio.gather(work, renewals, return_exceptions=True)
        held, self._leading = self.is_leader, False
        if not held:
            return
        with suppress(ApiError, TimeoutError):  # the lease expires in any case
            async with asyncio.timeout(self._period):
                lease = await self._client.get(self._path)  # a renewal whose answer we never read may have changed it
                if _term_of(lease) == self._term:
                    await self._client.replace(self._path, self._held_by("", lease))

    async def _renew_until_lost(self) -> NoReturn:
        """Renew each period; raise ``LostLease`` at the deadline, or as soon as the lease is seen to be another's."""
        while True:
            await asyncio.sleep(min(self._period, self._left()))
            await self._attempt()
            if not self.is_leader:
                raise LostLease(f"{self._path} was not renewed within {self._deadline:g} s") from self.last_error
            if self.leader != self._identity:
                raise LostLease(f"{self._path} is held by {self.leader or 'nobody'}")
            if _term_of(self._lease) != self._term:
                raise LostLease(f"{self._path} was another's meanwhile")

    def _left(self) -> float:
        return max(self._renewed + self._deadline - self._clock(), 0.0)

    async def _attempt(self) -> bool:
        """Try to take or renew the lease once; trouble with the server, or half a deadline without answer, is no."""
        begun = self._clock()
        limit = self._deadline / 2
        try:
            async with asyncio.timeout(min(limit, self._left()) if self._leading else limit):
                held = await self._take(begun)
        except TimeoutError:
            self.last_error = self._no_answer()
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
                return await self._write(self._lease, begun)
        try:
            lease = await self._client.get(self._path)
        except NotFound:
            if self._leading:
                self._lease = None
                return False
            return await self._write(None, begun)
        self._observe(lease, self._clock())
        if self._leading and _term_of(lease) != self._term:
            return False
        seconds = dig(lease, "spec", "leaseDurationSeconds")  # as its holder wrote it
        duration = float(seconds) if type(seconds) is int else self._duration
        if self.leader not in {"", self._identity} and self._clock() < self._seen_at + duration:
            return False
        return await self._write(lease, begun)

    async def _write(self, lease: JsonObject | None, begun: float) -> bool:
        ours = self._held_by(self._identity, lease)
        if lease is None:
            self._observe(await self._client.create(self._collection, ours), begun)
        else:
            self._observe(await self._client.replace(self._path, ours), begun)
        return True

    def _observe(self, lease: JsonObject, at: float) -> None:
        if self._lease is None or lease.get("spec") != self._lease.get("spec"):
            self._seen_at = at
        self._lease = lease

    def _held_by(self, holder: str, lease: JsonObject | None) -> JsonObject:
        """Build the lease with a holder, empty for none; acquireTime and leaseTransitions change with it only."""
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # metav1.MicroTime
        before, _, transitions = _term_of(lease)
        stays = holder == before
        spec: JsonObject = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(round(self._duration), 1) if holder else 1,
            "acquireTime": (text(lease, "spec", "acquireTime") or now) if stays else now,
            "renewTime": now,
            "leaseTransitions": transitions if stays or lease is None or not holder else transitions + 1,
        }
        metadata: JsonObject = self._metadata if lease is None else mapping(lease, "metadata")
        if self._annotations:
            annotations: JsonObject = {**mapping(metadata, "annotations"), **self._annotations}
            metadata = {**metadata, "annotations": annotations}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    async def _read_term(self) -> LeaseTerm | ApiError:
        try:
            async with asyncio.timeout(self._deadline / 2):
                return _term_of(await self._client.get(self._path))
        except NotFound:
            return _term_of(None)
        except TimeoutError:
            return self._no_answer()
        except ApiError as error:
            return error

    def _no_answer(self) -> Unreachable:
        return Unreachable(f"{self._path}: no answer within half the renew deadline")


def _term_of(lease: JsonObject | None) -> LeaseTerm:
    transitions = dig(lease, "spec", "leaseTransitions")
    count = transitions if type(transitions) is int else 0
    return text(lease, "spec", "holderIdentity"), text(lease, "metadata", "uid"), count
