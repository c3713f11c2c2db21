"""EC2 instances as the controller sees them: DescribeInstances for many requests at once, remembered for a moment.

Promises: requests that come within a few milliseconds share one call, by account and region, of which two at most are
under way; an instance that is not there fails nobody else, a call that fails fails those that waited for it and no
more. An instance found is remembered for three seconds; one that was not found never is. Nothing blocks the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from nodeattest_providers.errors import Unavailable

BATCH: Final = 100
"""Instances of one call; a filter takes 200 values (EC2, "DescribeInstances")."""
_WINDOW: Final = 0.005
"""Seconds for which the first request waits for others."""
_REMEMBERED: Final = 3.0
"""Seconds: two reads of one request, and a serving request right after."""
_MAX_REMEMBERED: Final = 4096
_CALLS: Final = 2
"""Calls under way, by account and region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Instance:
    """What DescribeInstances says, as far as it is read."""

    instance_id: str
    owner: str
    """The account."""
    state: str
    zone: str
    has_tpm: bool = False
    """Whether it was launched with NitroTPM."""
    tags: Mapping[str, str] = field(repr=False)
    vpc: str
    private_dns_name: str
    addresses: tuple[tuple[str, str], ...]
    """(type, address) as in ``Machine.status.addresses``."""


class Realm(NamedTuple):
    """Whose instances, and where."""

    account: str
    region: str


class Describe(Protocol):
    """Asks EC2; called in a thread."""

    def __call__(self, realm: Realm, instance_ids: Sequence[str], /) -> Sequence[Ec2Instance]:
        """Return those that exist; raises Unavailable."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Instances:
    """Looks up instances for requests that are verified at the same time."""

    def __init__(self, describe: Describe, *, monotonic: Callable[[], float], random: Callable[[], float]) -> None:
        """``monotonic``: seconds; ``random``: from 0 to 1."""
        self._describe = describe
        self._monotonic = monotonic
        self._random = random
        self._queues: dict[Realm, _Queue] = {}
        self._remembered: dict[tuple[Realm, str], tuple[float, Ec2Instance]] = {}

    async def find(self, realm: Realm, instance_id: str) -> Ec2Instance | None:
        """Look an instance up; None when there is none. Raises Unavailable."""
        known = self._remembered.get((realm, instance_id))
        if known is not None and self._monotonic() < known[0]:
            return known[1]
        queue = self._queues.setdefault(realm, _Queue(realm, self._describe))
        try:
            instance = await queue.find(instance_id)
        except Unavailable as error:
            raise self._spread(error) from None
        if instance is not None:
            self._remember((realm, instance_id), instance)
        return instance

    def _spread(self, error: Unavailable) -> Unavailable:
        """Let those that waited for one call not come back together."""
        later = error.retry_after * (1.0 + self._random())
        return Unavailable(error.reason, error.detail, remedy=error.remedy, retry_after=later)

    def _remember(self, key: tuple[Realm, str], instance: Ec2Instance) -> None:
        self._remembered.pop(key, None)
        self._remembered[key] = (self._monotonic() + _REMEMBERED, instance)
        if len(self._remembered) > _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    async def aclose(self) -> None:
        """Let the threads end; calls under way are not waited for."""
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
        self._describe.close()


class _Queue:
    """The requests for one realm."""

    def __init__(self, realm: Realm, describe: Describe) -> None:
        self._realm = realm
        self._describe = describe
        self._threads = ThreadPoolExecutor(_CALLS, thread_name_prefix=f"aws-ec2-{realm.region}")
        self._free = asyncio.Semaphore(_CALLS)
        self._waiting: dict[str, asyncio.Future[Ec2Instance | None]] = {}
        self._flushes: set[asyncio.Task[None]] = set()

    async def find(self, instance_id: str) -> Ec2Instance | None:
        future = self._waiting.get(instance_id)
        if future is None:
            if not self._waiting:
                self._spawn()
            future = self._waiting[instance_id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(future)  # a caller that gives up must not take the answer from the others

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _spawn(self) -> None:
        task = asyncio.create_task(self._flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush(self) -> None:
        """Collect for a moment, and longer while other calls are under way; then ask for all at once."""
        await asyncio.sleep(_WINDOW)
        async with self._free:
            batch = {one: self._waiting.pop(one) for one in list(self._waiting)[:BATCH]}
            if self._waiting:
                self._spawn()
            await self._ask(batch)

    async def _ask(self, batch: Mapping[str, asyncio.Future[Ec2Instance | None]]) -> None:
        try:
            call = asyncio.get_running_loop().run_in_executor(self._threads, self._describe, self._realm, list(batch))
            found = {instance.instance_id: instance for instance in await call}
        except BaseException as error:  # callers that wait must learn of its end, a cancellation included
            for future in batch.values():
                _fail(future, error)
            if not isinstance(error, Exception):
                raise
            return
        for instance_id, future in batch.items():
            if not future.done():
                future.set_result(found.get(instance_id))


def _fail(future: asyncio.Future[Ec2Instance | None], error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
        return
    future.set_exception(error)
    future.exception()  # a caller that waits sees it; there may be no caller left
