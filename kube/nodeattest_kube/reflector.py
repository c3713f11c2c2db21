"""A cache of one collection that follows the API server forever.

It lists in pages, then watches from the list's resourceVersion with bookmarks. It lists again:

- after 410, and after a watch that its server does not end in time
- if every watch from a version fails, or ends early without an event
- if the server was set back to a backup
- every five minutes while something is left out for its size or its name

``on_change`` must return at once. It is called after the cache changed, once for each version of an object.
``on_recovery`` is called when the collection is followed at first, and after an error.
Source: client-go tools/cache/reflector.go; Kubernetes API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final

from nodeattest_kube.answers import TRUSTED, WatchEvent, WatchType, is_before, version_of
from nodeattest_kube.client import WATCH_SECONDS, ApiClient
from nodeattest_kube.errors import ApiError, Gone, Malformed, Unreachable, WatchHung
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.paths import is_segment
from nodeattest_kube.periodic import RECONNECT
from nodeattest_kube.store import BATCH, MemoryBudget, MemoryPool, Store, Version, in_batches, object_size
from nodeattest_parsing.objects import key_of, text
from nodeattest_parsing.values import JsonObject, JsonValue

_HEALTHY: Final = 10.0
"""Seconds that a watch must have lasted for the server to count as healthy again."""
_RELIST_AFTER: Final = 5
"""Short watches in a row from one resourceVersion, after which the version may be bad. A server restored from a backup
refuses versions of its future forever (504). One without a watch cache may answer 200 and end a watch from a compacted
version at once, without an event, in place of 410."""
_NOT_ITS_FAULT: Final = frozenset({0, 429})
"""Statuses that say nothing about the version: no answer, and a server that is overloaded."""
_AWAY: Final = frozenset({502, 503})
"""Statuses of a server that stops or starts."""
_ROOM_PERIOD: Final = 300.0
"""Seconds between two lists for what was left out."""
_LONGEST_NAME: Final = 1024
"""Characters of a name or namespace; Kubernetes has 253, but takes a request of any length for a name."""
_LOG_PERIOD: Final = 60.0
"""Seconds between two log lines of one kind about one collection."""
_MOST_NAMESPACES: Final = 10_000
"""Namespaces with objects that are left out: beyond, each may lack some."""

_log = logging.getLogger(__name__)

_Listed = dict[str, tuple[Version, JsonObject, int]]
"""Versions, objects and their bytes by key."""


class Reflector(Store):
    """The objects under one collection path, by ``namespace/name`` or ``name``."""

    def __init__(
        self,
        client: ApiClient,
        path: str,
        *,
        on_change: Callable[[str, JsonObject | None], None],
        on_recovery: Callable[[], None] = lambda: None,
        query: Mapping[str, str] | None = None,
        transform: Callable[[JsonObject], JsonObject] = lambda item: item,
        max_objects: int = 100_000,
        max_bytes: int | MemoryPool = 1 << 30,
        shares: bool = False,
        owner: str | None = None,
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``query`` holds selectors; ``transform`` may drop what nobody reads; ``clock`` is monotonic seconds.

        ``transform`` and index functions get whatever the server sent, so they must be total. A server that claims more
        than ``max_objects`` is not believed. Objects are kept in ``max_bytes`` of memory (a pool if several collections
        share it); an object above a 64th of what is left is skipped. ``shares``: namespaces are of different tenants,
        so none may fill the cache; what is over its share of either limit is skipped. ``owner``: the namespace of all
        objects, whatever they say. ``watch_seconds``: of each watch.
        """
        super().__init__()
        self.passed_over = 0
        """How often an object was skipped for its size or its name; ``left_out``: since the last list began."""
        self.left_out = 0
        self.last_error: ApiError | None = None
        self.hung: WatchHung | None = None
        """How a watch hung, until a list after it succeeded: changes that it hid are not in the cache."""
        self.last_contact = float("-inf")
        """When the server last said anything useful, on ``clock``."""
        self._client, self._path, self._query = client, path, dict(query or {})
        self._on_change, self._on_recovery, self._transform = on_change, on_recovery, transform
        self._max_objects, self._shares, self._watch_seconds = max_objects, shares, watch_seconds
        self._budget = MemoryBudget(max_bytes, objects=max_objects if shares else None, owner=owner)
        self._clock, self._random, self._sleep = clock, random, sleep
        self._synced, self._page_limit = asyncio.Event(), TRUSTED.objects
        self._version: str | None = None
        """Where the next watch starts; None to list first."""
        self._outdated = False
        """Whether a change was too large to be read; the next list shows which object it was."""
        self._interrupted = False
        """Whether a connection broke since the server's version was compared."""
        self._set_back = False
        """Whether versions that we know may mean other objects now."""
        self._recovered = False
        """Whether no error came since ``on_recovery``."""
        self._silent = False
        """Whether the last watch brought no event."""
        self._failures, self._log_lines = 0, EventLimiter(clock)
        self._lacking: set[str] = set()
        self._lacking_before: set[str] = set()
        """Namespaces with objects that were left out: since the last list began, and before it until it is done."""
        self._relist_at = float("-inf")
        """When it may be listed again for what was left out, on ``clock``."""

    def lacks_any_of(self, namespace: str) -> bool:
        """Whether an object of a namespace is left out for its size or name, or may be because very many are."""
        return any(namespace in each or len(each) >= _MOST_NAMESPACES for each in (self._lacking, self._lacking_before))

    @property
    def synced(self) -> bool:
        """Whether the cache has been complete once and ``on_change`` has seen all of it."""
        return self._synced.is_set()

    def is_current(self, seconds: float) -> bool:
        """Whether the cache is complete and followed without error, and the last contact is at most so old."""
        undisturbed = self.synced and self.last_error is None and self.hung is None
        return undisturbed and self._clock() - self.last_contact < seconds

    async def wait_synced(self, timeout: float) -> bool:  # noqa: ASYNC109 - a bounded wait whose end is an answer
        """Wait until the first list is in the cache; False when it is not after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self._synced.wait()
        except TimeoutError:
            return False

    def close(self) -> None:
        """Release the memory; nobody follows the collection any more."""
        self._budget.close()

    async def run(self) -> None:
        """List and watch until canceled; server trouble is waited out, other exceptions (bugs) are raised."""
        while True:
            error, lasted = await self._follow()
            if self._outdated or (self.left_out and self._clock() >= self._relist_at):
                self._version = None
            if lasted >= _HEALTHY:
                self._failures = 0
                if error is None:
                    continue
            self._failures += 1
            if error is not None:
                self._complain(error)
                self._interrupted |= isinstance(error, Unreachable) or error.status in _AWAY
            if self._is_bad_version(error):
                self._version = None
            await self._sleep(RECONNECT.delay(self._failures, self._random, error))

    def _is_bad_version(self, error: ApiError | None) -> bool:
        if isinstance(error, Gone | WatchHung):
            return True
        is_suspect = self._silent if error is None else error.status not in _NOT_ITS_FAULT
        return is_suspect and self._failures % _RELIST_AFTER == 0

    async def _follow(self) -> tuple[ApiError | None, float]:
        """List if need be and watch once; return how it ended and how long the watch lasted."""
        started: float | None = None
        try:
            if self._version is not None and self._interrupted:
                await self._compare_version(self._version)
            if self._version is None:
                await self._list()
            started = self._clock()
            await self._watch(self._version or "")
        except ApiError as error:
            self.last_error = error.with_traceback(None)  # Its frames hold all that a list had read.
            self.hung = error if isinstance(error, WatchHung) else self.hung
            self._recovered = False
            return error, 0.0 if started is None else self._clock() - started
        return None, self._clock() - started

    async def _compare_version(self, reached: str) -> None:
        """List again if the server's version is before the one that we reached, or if the server does not tell it.

        An API server whose etcd was restored from a backup takes a watch from a version of its future, and shows
        nothing until it gets there. Versions are compared as Kubernetes 1.35 allows (KEP-5504); what is no number says
        nothing.
        """
        try:
            # Whether the one object fits says nothing: the list's own version is asked for.
            async with aclosing(self._client.pages(self._path, self._query, 1, skipped=lambda: None)) as pages:
                page = await anext(pages)
        except ApiError as error:
            if error.status in _NOT_ITS_FAULT | _AWAY:
                raise
            self._complain(error)
            self._version, self._set_back = None, True
            return
        version = text(page, "metadata", "resourceVersion")
        if is_before(version, reached):
            _log.warning("%s was set back from version %s to %s and is listed again", self._where, reached, version)
            self._version, self._set_back = None, True
        self._interrupted = False

    async def _list(self) -> None:
        listed: _Listed = {}
        if len(self._lacking_before) < _MOST_NAMESPACES:
            self._lacking_before |= self._lacking
        self._lacking, self.left_out = set(), 0
        try:
            version = await self._read_pages(listed)
        except BaseException:
            for key in listed:
                if self.get(key) is None:
                    self._budget.release(key)
            raise
        self._page_limit = TRUSTED.objects
        self._budget.keep({key: size for key, (_version, _item, size) in listed.items()})
        await self._take_over(listed)
        self._lacking_before.clear()
        self._version, self._relist_at = version, self._clock() + _ROOM_PERIOD
        self._outdated = self._interrupted = self._set_back = False
        self.hung = None
        self._synced.set()

    async def _read_pages(self, listed: _Listed) -> str:
        """Collect the objects of all pages; returns the list's version."""
        version, count = "", 0
        try:
            pages = self._client.pages(self._path, self._query, self._page_limit, skipped=self._too_large)
            async with aclosing(pages):
                async for page in pages:
                    version = text(page, "metadata", "resourceVersion")
                    count += 1
                    self._bound(count)  # Pages may be empty, but not without end.
                    await self._read_page(page, listed)
                    self._contact()
        except Gone:
            # The list took longer than the server keeps its snapshot: without pages it needs none (client-go pager).
            self._page_limit = 0
            raise
        if not version:
            raise self._malformed("a list without a resourceVersion")
        return version

    async def _read_page(self, page: JsonObject, listed: _Listed) -> None:
        """Collect the objects of a page in slices; a list that was asked for without pages may be long.

        Objects get the kind and apiVersion that items of a list lack, unlike events.
        """
        items = page.get("items") or []
        if not isinstance(items, list):
            raise self._malformed("a list without items")
        kind = text(page, "kind").removesuffix("List")
        for number, item in enumerate(items, start=1):
            if number % BATCH == 0:
                await self._client.pause()
            key, version, found = self._identify(item)
            if kind:
                found.setdefault("kind", kind)
                found.setdefault("apiVersion", page.get("apiVersion"))
            known = self.get(key) if self._knows(key, version) else None
            kept = self._transform(found) if known is None else known
            size = object_size(key, version, kept) if known is None else self._budget.of(key)
            # Until the list is taken over, the cache holds the former version, too.
            if self._is_usable(key, found) and self._has_room(key, max(size, self._budget.of(key))):
                listed[key] = version, kept, size
            if not self._shares:
                self._bound(len(listed))

    async def _take_over(self, listed: _Listed) -> None:
        """Make the cache equal to a list, then report what changed, in slices."""
        gone = [key for key in self.keys() if key not in listed]
        changed = [(key, *entry[:2]) for key, entry in listed.items() if not self._knows(key, entry[0])]
        for key in gone:
            self.remove(key)
        for key, version, item in changed:
            self.put(key, version, item)
        for key in gone:
            self._on_change(key, None)
        async for key, _version, _item in in_batches(changed, pause=self._client.pause):
            self._on_change(key, self.get(key))  # as it is by now: others may have read it again meanwhile

    async def _watch(self, version: str) -> None:
        self._silent = True
        query = {**self._query, "resourceVersion": version}
        watch = self._client.watch(
            self._path, query, opened=self._opened, skipped=self._too_large, seconds=self._watch_seconds
        )
        async with aclosing(watch) as events:
            async for event in events:
                self._silent = False
                self._handle(event)
                self._contact()

    def _handle(self, event: WatchEvent) -> None:
        if event.type is not WatchType.BOOKMARK:
            key, version, item = self._identify(event.object)
            if event.type is WatchType.DELETED:
                self._drop(key)
            elif self._is_usable(key, item) and not self.has(key, version):
                if not self._shares:
                    self._bound(len(self))
                self._put(key, version, self._transform(item))
        reached = text(event.object, "metadata", "resourceVersion")
        if not reached:
            raise self._malformed("an event without a resourceVersion")
        self._version = reached

    def _put(self, key: str, version: Version, item: JsonObject) -> None:
        """Keep an object if there is room; an older version of it is not kept in its place."""
        if self._has_room(key, object_size(key, version, item)):
            self.put(key, version, item)
            self._on_change(key, item)
        else:
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._budget.release(key)
        if self.remove(key):
            self._on_change(key, None)

    def _knows(self, key: str, version: Version) -> bool:
        return not self._set_back and self.has(key, version)

    def _identify(self, item: JsonValue) -> tuple[str, Version, JsonObject]:
        if not isinstance(item, dict) or not text(item, "metadata", "name"):
            raise self._malformed("an object without a name")
        return key_of(item), version_of(item), item

    def _bound(self, count: int) -> None:
        if count > self._max_objects:
            raise self._malformed(f"more than {self._max_objects} objects")

    def _is_usable(self, key: str, item: JsonObject) -> bool:
        """Whether an object can be asked for by its name, and its name be kept in queues and logs."""
        name, namespace = text(item, "metadata", "name"), text(item, "metadata", "namespace")
        if is_segment(name) and (is_segment(namespace) or not namespace) and len(name + namespace) <= _LONGEST_NAME:
            return True
        self._pass_over(key.partition("/")[0], "its name is too long, or none for a path")
        return False

    def _has_room(self, key: str, size: int) -> bool:
        """Reserve memory for an object; False if there is none."""
        if self._budget.take(key, size):
            return True
        why = f"{key} would take {size} bytes where {self._budget.left} are left, or its namespace has its share"
        self._pass_over(key.partition("/")[0], why)
        return False

    def _too_large(self) -> None:
        self._outdated = True
        self._pass_over("", "it is larger than an answer may be")

    def _pass_over(self, namespace: str, why: str) -> None:
        self.passed_over += 1
        self.left_out += 1
        if len(self._lacking) < _MOST_NAMESPACES:
            self._lacking.add(namespace)
        if self._log_lines.allow("passed over", _LOG_PERIOD):
            _log.warning("passed over an object of %s: %s (%d in all)", self._where, why, self.passed_over)

    def _complain(self, error: ApiError) -> None:
        """Log trouble in our own words; a first Gone is none, and a hung watch is for ``hung``."""
        if isinstance(error, Gone) and self._failures == 1:
            return
        if isinstance(error, WatchHung):
            _log.debug("%s is listed again: %s", self._where, error)
        elif self._client.has_reported(error):
            _log.debug("cannot follow %s: %s", self._where, error)
        elif self._log_lines.allow("trouble", _LOG_PERIOD):
            ours = isinstance(error, Malformed | Unreachable)
            _log.warning("cannot follow %s: %s", self._where, error if ours else f"{error.status} {error.reason}")

    @property
    def _where(self) -> str:
        return f"{self._client.log_name}{self._path}"

    def _contact(self) -> None:
        self.last_contact = self._clock()
        self.last_error = None

    def _opened(self) -> None:
        self._contact()
        if not self._recovered:
            self._recovered = True
            self._on_recovery()

    def _malformed(self, what: str) -> Malformed:
        return Malformed(200, "MalformedAnswer", f"GET {self._path}: {what}")
