"""Decides the desired content of cluster-info. Pure.

Promises: ``data.kubeconfig`` is signed as the exact string that it is. Every other key with the signature prefix is
removed. Everything else stays unchanged, known or not.
Source: kubernetes pkg/controller/bootstrap/bootstrapsigner.go, which leaves stale signatures if the kubeconfig key is
missing: here they are removed, since they sign nothing.

Caches signatures of cluster-info, so that a cluster with many tokens delays no other.

Promises: a signature is made once for each text and token. The event loop runs after each signed mebibyte, so that
thousands of tokens over a large text delay no lease and no request. Checking all tokens takes at most a tenth of the
time. Leaves to others: what is signed (``decide``).

The reconciler of ``bootstrap-signer``: keeps the signatures of cluster-info equal to the tokens that sign.

Promises: one write per change, and none without; a token's signature is removed at its expiry, whether or not anybody
deletes the token. A failed write is retried after cluster-info was read again. Against a writer that reverts our writes
it backs off. Leaves to others: the desired signatures (``decide``), deletion of tokens (``token_cleaner``), leadership.
Source: kubernetes pkg/controller/bootstrap/bootstrapsigner.go; it gives up on a failed write (kubernetes#109233).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_discovery import jwt as jws
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, NAME, NAMESPACE, PATH, SIGNATURE_PREFIX
from nodeattest_discovery.controllers.deps import (
    ControllerDeps,
    Observer,
    TokenController,
    seconds_until,
    watch_cluster_info,
)
from nodeattest_discovery.secret import Expiry, expiry, signing_token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.jsontypes import version_of
from nodeattest_kube.periodic import BackoffPolicy
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningTokens:
    """Who signs at a moment."""

    tokens: tuple[BootstrapToken, ...]
    until: datetime | None
    """When the first of them will have expired; None: never."""


def find_signing_tokens(secrets: Iterable[JsonObject], now: datetime) -> SigningTokens:
    """Find the tokens that sign now."""
    tokens: list[BootstrapToken] = []
    ends: list[datetime] = []
    for secret in secrets:
        token = signing_token(secret, now)
        if token is None:
            continue
        tokens.append(token)
        state, moment = expiry(secret, now)
        if state is Expiry.PENDING and moment is not None:
            ends.append(moment)
    return SigningTokens(tokens=tuple(tokens), until=min(ends, default=None))


def signed_content(config_map: JsonObject) -> bytes | None:
    """Return what is to be signed; None where there is nothing."""
    kubeconfig = dig(config_map, "data", KUBECONFIG_KEY)
    return kubeconfig.encode() if isinstance(kubeconfig, str) else None


def desired_cluster_info(
    config_map: JsonObject,
    tokens: Iterable[BootstrapToken],
    sign: Callable[[bytes, BootstrapToken], str] = jws.sign,
) -> JsonObject | None:
    """Return cluster-info as it must be; None where it is so already."""
    found = dig(config_map, "data")
    data = found if isinstance(found, dict) else {}
    wanted = {key: value for key, value in data.items() if not key.startswith(SIGNATURE_PREFIX)}
    content = signed_content(config_map)
    if content is not None:
        wanted |= {SIGNATURE_PREFIX + token.id: sign(content, token) for token in tokens}
    return None if wanted == data else {**config_map, "data": wanted}


def current_signatures(config_map: JsonObject) -> dict[str, object]:
    """Return the signatures that are in cluster-info, and what else is spelt like one."""
    found = dig(config_map, "data")
    data = found if isinstance(found, dict) else {}
    return {key: value for key, value in data.items() if key.startswith(SIGNATURE_PREFIX)}


_SLICE: Final = 1 << 20
"""Bytes; some five milliseconds."""
_REST: Final = 9.0
"""Seconds of rest for a second of work: other clusters are served by the same event loop."""


class SignatureCache:
    """What is known to be the signature of a text by a token."""

    def __init__(self, make: Callable[[bytes, BootstrapToken], str] = jws.sign) -> None:
        self._make = make
        self._content = b""
        self._known: dict[BootstrapToken, str] = {}

    async def prepare(self, content: bytes, tokens: Iterable[BootstrapToken]) -> None:
        """Sign by all of these what they have not signed; what others signed is forgotten."""
        known = self._known if content == self._content else {}
        self._content, self._known = content, {}
        signed = 0
        for token in tokens:
            found = known.get(token)
            if found is None:
                found = self._make(content, token)
                signed += len(content)
            self._known[token] = found
            if signed >= _SLICE:
                signed = 0
                await asyncio.sleep(0)

    def sign(self, content: bytes, token: BootstrapToken) -> str:
        """Return a signature, which is made now where it was not prepared."""
        found = self._known.get(token) if content == self._content else None
        return self._make(content, token) if found is None else found


class DutyCycle:
    """How often something may be done that may take long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic seconds."""
        self._clock = clock
        self._next = float("-inf")

    def wait(self) -> float:
        """Say how many seconds to wait; 0: it may be done now."""
        return max(self._next - self._clock(), 0.0)

    def worked(self, since: float) -> None:
        """Note what was done since then, without a pause."""
        now = self._clock()
        self._next = now + _REST * (now - since)


_KEY: Final = f"{NAMESPACE}/{NAME}"
"""The one key of the queue: cluster-info is reconciled as a whole."""
_SYNC_LIMIT: Final = 60.0
_REVERT_BACKOFF: Final = BackoffPolicy(initial=1.0, cap=60.0, jitter=0.1)
"""Against a writer that reverts ours, such as another signer whose clock differs."""
_FREE_REVERTS: Final = 3
"""Reverted writes that are repeated at once: people edit cluster-info, too."""
_REVERTS_RESET: Final = 120.0
"""Seconds without a revert after which the count starts again."""


class BootstrapSigner:
    """Signs the cluster-info of one cluster."""

    def __init__(self, client: ApiClient, tokens: Reflector, *, observer: Observer, deps: ControllerDeps) -> None:
        """``tokens`` is run by its owner, who calls ``token_changed``."""
        self.info = watch_cluster_info(client, lambda _key, _found: self._enqueue())
        self._client = client
        self._tokens = tokens
        self._observer = observer
        self._deps = deps
        self._queue = deps.queue()
        self._signatures = SignatureCache()
        self._duty_cycle = DutyCycle(deps.clock)
        self._pending_since: float | None = None
        """When the first change came that is not reconciled yet, on the monotonic clock."""
        self._written: tuple[tuple[str, str] | None, JsonObject] | None = None
        """The version in the cache when we wrote, and what we wrote: newer than the cache until that moves on."""
        self._revert_backoff = RevertBackoff(deps)

    def token_changed(self) -> None:
        """Reconcile: a token was added, changed or deleted."""
        self._enqueue()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.info.run())
                tasks.create_task(self._enqueue_once_synced())
                tasks.create_task(self._queue.run(self._process, 1))
        finally:
            self._queue.shut_down()

    async def _enqueue_once_synced(self) -> None:
        """Reconcile for the first time once both informers are synced."""
        for reflector in (self._tokens, self.info):
            while not await reflector.wait_synced(_SYNC_LIMIT):
                pass
        self._enqueue()

    def _enqueue(self) -> None:
        self._mark_pending()
        self._queue.add(_KEY)

    def _mark_pending(self) -> float:
        """Remember since when a change is pending."""
        if self._pending_since is None:
            self._pending_since = self._deps.clock()
        return self._pending_since

    async def _process(self, key: str) -> None:
        if not (self._tokens.synced and self.info.synced):
            return
        self._mark_pending()  # a token's end comes without a change
        wait = self._duty_cycle.wait()
        if wait > 0:
            self._queue.add_after(key, wait)
            return
        try:
            current = await self._current(key)
            await self._reconcile(key, current)
        except ApiError as error:
            if isinstance(error, NotFound) and self.info.get(_KEY) is None:
                self._settle(key)  # when cluster-info is there again, the watch says so
                return
            self._observer.failed(TokenController.SIGNER, error, self._queue.retry(key, error))

    async def _reconcile(self, key: str, current: JsonObject | None) -> None:
        found = await self._found(current)
        if found.until is not None:
            self._queue.add_after(key, seconds_until(found.until, self._deps.now()))
        wanted = desired_cluster_info(current, found.tokens, self._signatures.sign) if current is not None else None
        if wanted is None:
            self._settle(key)
            return
        made = current_signatures(wanted)
        wait = self._revert_backoff.wait(made)
        if wait > 0:
            self._queue.add_after(key, wait)
            return
        cached = self._cached_version()
        written = await self._client.replace(PATH, wanted)
        self._written = cached, written
        self._revert_backoff.wrote(made)
        self._observer.signed(len(made), self._deps.clock() - self._mark_pending())
        self._settle(key)

    def _settle(self, key: str) -> None:
        """Note that everything is reconciled."""
        self._queue.forget(key)
        self._pending_since = None

    async def _found(self, current: JsonObject | None) -> SigningTokens:
        """Find the signing tokens, and prepare their signatures."""
        started = self._deps.clock()
        items: Iterable[JsonObject] = self._tokens.values()
        found = find_signing_tokens(items, self._deps.now())
        self._duty_cycle.worked(started)
        content = signed_content(current) if current is not None else None
        await self._signatures.prepare(content or b"", found.tokens if content is not None else ())
        return found

    async def _current(self, key: str) -> JsonObject | None:
        """Return cluster-info: as watched or written last, and read again after a failed write."""
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


class RevertBackoff:
    """Backoff against a writer that reverts our writes."""

    def __init__(self, deps: ControllerDeps) -> None:
        self._deps = deps
        self._last: dict[str, object] | None = None
        self._count = 0
        self._next = float("-inf")
        self._newest = float("-inf")

    def wait(self, wanted: dict[str, object]) -> float:
        """Return the seconds to wait before a write."""
        now = self._deps.clock()
        if wanted != self._last:
            return 0.0
        return max(self._next - now, 0.0)

    def wrote(self, wanted: dict[str, object]) -> None:
        """Note a write; the same write again means that the last was reverted."""
        now = self._deps.clock()
        again = wanted == self._last and now - self._newest < _REVERTS_RESET
        self._last, self._newest = wanted, now
        self._count = self._count + 1 if again else 0
        excess = self._count - _FREE_REVERTS
        self._next = now + _REVERT_BACKOFF.delay(excess, self._deps.random, None) if excess > 0 else now
