"""``bootstrap-signer``: keeps one signature in cluster-info for each token that may sign.

``data.kubeconfig`` is signed as the exact string. Other keys with the signature prefix are removed; everything else
stays unchanged. Each change causes one write. A token's signature is removed when the token expires, even if nobody
deletes the token. A failed write is retried after reading cluster-info again. A write that is reverted repeatedly is
repeated less and less often. The event loop runs after each signed mebibyte, and checking tokens takes at most a tenth
of the time, so a cluster with thousands of tokens delays no other.
Source: kubernetes pkg/controller/bootstrap/bootstrapsigner.go, which gives up on a failed write (kubernetes#109233) and
leaves stale signatures if the kubeconfig key is missing.
"""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Protocol

from nodeattest_discovery import jws
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, NAME, NAMESPACE, PATH, SIGNATURE_PREFIX
from nodeattest_discovery.informers import watch_cluster_info
from nodeattest_discovery.secret import Expiry, expiry, signing_token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.answers import version_of
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.periodic import BackoffPolicy, RateLimiter
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.workqueue import Timer, WorkQueue, loop_timer
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject

RECHECK: Final = 60.0
"""Maximum seconds until an expiry is checked again, because the clock may jump."""
_RETRY: Final = BackoffPolicy(initial=0.25, cap=30.0, jitter=0.25)
"""Short, because a join may be waiting for the signature."""


class TokenController(StrEnum):
    """The controllers of a cluster's tokens, named as in ``--controllers``."""

    SIGNER = "bootstrap-signer"
    CLEANER = "token-cleaner"


class Observer(Protocol):
    """Is told what the controllers did. Methods must not block."""

    def signed(self, tokens: int, seconds: float) -> None:
        """Note that cluster-info was signed by ``tokens``, ``seconds`` after the first pending change."""

    def cleaned(self, name: str) -> None:
        """Note that the Secret of an expired token was deleted."""

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        """Note that a write failed and is retried after ``delay`` seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDeps:
    """Clocks, timers and randomness."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Wall clock for expirations; it may jump."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    timer: Timer = loop_timer
    random: Callable[[], float] = random_module.random

    def queue(self) -> WorkQueue[str]:
        """Make a queue with retries."""
        return WorkQueue(backoff=_RETRY, clock=self.clock, random=self.random, timer=self.timer)


def seconds_until(moment: datetime, now: datetime) -> float:
    """Return the seconds until a time, at most ``RECHECK``."""
    return min(max((moment - now).total_seconds(), 0.0), RECHECK)


_KEY: Final = f"{NAMESPACE}/{NAME}"
"""The only key of the queue."""
_SYNC_LIMIT: Final = 60.0
_REST: Final = 9.0
"""Seconds of rest for each second of work, because other clusters share the event loop."""
_SAME_WRITES: Final = 4
"""Burst of writes of the same signatures. More happen only if another writer reverts ours."""
_SAME_WRITE_PAUSE: Final = 30.0
"""Seconds until the next write after the burst."""
_SLICE: Final = 1 << 20
"""Bytes to sign before other tasks run; about five milliseconds."""

Signatures = Mapping[BootstrapToken, str]


def find_signing_tokens(
    secrets: Iterable[JsonObject], now: datetime
) -> tuple[tuple[BootstrapToken, ...], datetime | None]:
    """Return the tokens that sign now, and when the first of them expires (None: never)."""
    tokens: list[BootstrapToken] = []
    ends: list[datetime] = []
    for secret in secrets:
        token = signing_token(secret, now)
        if token is not None:
            tokens.append(token)
            state, moment = expiry(secret, now)
            if state is Expiry.PENDING and moment is not None:
                ends.append(moment)
    return tuple(tokens), min(ends, default=None)


def desired_cluster_info(config_map: JsonObject, signatures: Signatures) -> JsonObject | None:
    """Return cluster-info with exactly these signatures, or None if it has them already."""
    data = mapping(config_map, "data")
    wanted = {key: value for key, value in data.items() if not key.startswith(SIGNATURE_PREFIX)}
    if isinstance(data.get(KUBECONFIG_KEY), str):
        wanted |= {SIGNATURE_PREFIX + token.id: signature for token, signature in signatures.items()}
    return None if wanted == data else {**config_map, "data": wanted}


def current_signatures(config_map: JsonObject) -> JsonObject:
    """Return the keys of cluster-info that have the signature prefix."""
    return {key: value for key, value in mapping(config_map, "data").items() if key.startswith(SIGNATURE_PREFIX)}


async def sign_all(content: bytes, tokens: Iterable[BootstrapToken], known: Signatures) -> Signatures:
    """Sign with each token unless its signature is known. Other tasks run after each slice."""
    signatures: dict[BootstrapToken, str] = {}
    signed = 0
    for token in tokens:
        if token not in known:
            signed += len(content)
        signatures[token] = known.get(token) or jws.sign(content, token)
        if signed >= _SLICE:
            signed = 0
            await asyncio.sleep(0)
    return signatures


class BootstrapSigner:
    """Signs the cluster-info of one cluster."""

    def __init__(self, client: ApiClient, tokens: Reflector, *, observer: Observer, deps: ControllerDeps) -> None:
        self.info = watch_cluster_info(client, lambda _key, _found: self._enqueue())
        self._client = client
        self._tokens = tokens
        self._observer = observer
        self._deps = deps
        self._queue = deps.queue()
        self._signed: tuple[bytes, Signatures] = (b"", {})
        """The last content and its signatures."""
        self._rest_until = float("-inf")
        self._pending_since: float | None = None
        """Monotonic time of the first change that is not reconciled yet."""
        self._written: tuple[tuple[str, str] | None, JsonObject] | None = None
        """The cached version at the last write, and the object written, which is newer until the cache changes."""
        self._writes = RateLimiter(burst=_SAME_WRITES, per_second=1 / _SAME_WRITE_PAUSE, clock=deps.clock)

    def token_changed(self) -> None:
        """Reconcile after a token was added, changed or deleted."""
        self._enqueue()

    async def run(self) -> None:
        """Run until canceled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.info.run())
                tasks.create_task(self._enqueue_once_synced())
                tasks.create_task(self._queue.run(self._process, 1))
        finally:
            self._queue.shut_down()

    async def _enqueue_once_synced(self) -> None:
        for reflector in (self._tokens, self.info):
            while not await reflector.wait_synced(_SYNC_LIMIT):
                pass
        self._enqueue()

    def _enqueue(self) -> None:
        self._mark_pending()
        self._queue.add(_KEY)

    def _mark_pending(self) -> float:
        if self._pending_since is None:
            self._pending_since = self._deps.clock()
        return self._pending_since

    async def _process(self, key: str) -> None:
        if not (self._tokens.synced and self.info.synced):
            return
        self._mark_pending()  # a token expires without a change
        wait = self._rest_until - self._deps.clock()
        if wait > 0:
            self._queue.add_after(key, wait)
            return
        try:
            current = await self._current(key)
            await self._reconcile(key, current)
        except ApiError as error:
            if isinstance(error, NotFound) and self.info.get(_KEY) is None:
                self._settle(key)  # the watch reports it when cluster-info exists again
                return
            self._observer.failed(TokenController.SIGNER, error, self._queue.retry(key, error))

    async def _reconcile(self, key: str, current: JsonObject | None) -> None:
        started = self._deps.clock()
        tokens, until = find_signing_tokens(self._tokens.values(), self._deps.now())
        now = self._deps.clock()
        self._rest_until = now + _REST * (now - started)
        if until is not None:
            self._queue.add_after(key, seconds_until(until, self._deps.now()))
        wanted = desired_cluster_info(current, await self._signatures(current, tokens)) if current is not None else None
        if wanted is None:
            self._settle(key)
            return
        made = current_signatures(wanted)
        if not self._writes.take(frozenset(made.items())):
            self._queue.add_after(key, _SAME_WRITE_PAUSE)
            return
        cached = self._cached_version()
        written = await self._client.replace(PATH, wanted)
        self._written = cached, written
        self._observer.signed(len(made), self._deps.clock() - self._mark_pending())
        self._settle(key)

    async def _signatures(self, config_map: JsonObject, tokens: Iterable[BootstrapToken]) -> Signatures:
        content = text(config_map, "data", KUBECONFIG_KEY).encode()
        if self._signed[0] != content:
            self._signed = content, {}
        self._signed = content, await sign_all(content, tokens, self._signed[1])
        return self._signed[1]

    def _settle(self, key: str) -> None:
        self._queue.forget(key)
        self._pending_since = None

    async def _current(self, key: str) -> JsonObject | None:
        """Return cluster-info as watched or written last; read it again after a failed write."""
        if self._queue.failures(key):
            return await self._client.get(PATH)
        if self._written is not None:
            base, written = self._written
            if base == self._cached_version():
                return written
            self._written = None
        return self.info.get(_KEY)

    def _cached_version(self) -> tuple[str, str] | None:
        cached = self.info.get(_KEY)
        return version_of(cached) if cached is not None else None
