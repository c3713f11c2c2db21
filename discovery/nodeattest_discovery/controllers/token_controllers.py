"""``token-cleaner``, and both bootstrap token controllers of one cluster on one informer.

A bug in one controller stops neither the informer nor the other controller. The cleaner deletes a Secret only in the
version that it checked, and only if type and name are a token's. An invalid expiration counts as past. A token that is
valid by the API server's clock is not deleted, because our clock may be wrong. A failed delete is retried.
Source: kubernetes pkg/controller/bootstrap/tokencleaner.go, which gives up on a failed delete and deletes Secrets of
the type under any name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any, Final

from nodeattest_discovery.controllers.bootstrap_signer import (
    RECHECK,
    BootstrapSigner,
    ControllerDeps,
    Observer,
    TokenController,
    seconds_until,
)
from nodeattest_discovery.informers import watch_tokens
from nodeattest_discovery.secret import NAMESPACE, Expiry, expiry, is_token_secret
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, NotFound
from nodeattest_kube.periodic import notify
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import key_of, text
from nodeattest_parsing.values import JsonObject

_WORKERS: Final = 4
"""Concurrent deletes; hundreds of tokens may expire together."""
_CLOCKS_DIFFER: Final = 30.0
"""Seconds by which our clock may differ from the API server's."""


class TokenCleaner:
    """Deletes expired tokens of one cluster."""

    def __init__(self, client: ApiClient, tokens: Reflector, *, observer: Observer, deps: ControllerDeps) -> None:
        self._client = client
        self._tokens = tokens
        self._observer = observer
        self._deps = deps
        self._queue = deps.queue()

    def token_changed(self, key: str, secret: JsonObject | None) -> None:
        """Process a token now or when it expires."""
        if secret is None or not _may_be_deleted(secret):
            return
        state, moment = expiry(secret, self._deps.now())
        if state is Expiry.PAST:
            self._queue.add(key)
        elif moment is not None:
            self._process_at(key, moment)

    async def run(self) -> None:
        """Run until canceled."""
        try:
            await self._queue.run(self._process, _WORKERS)
        finally:
            self._queue.shut_down()

    def _process_at(self, key: str, moment: datetime) -> None:
        self._queue.add_after(key, seconds_until(moment, self._deps.now()))

    async def _process(self, key: str) -> None:
        secret = self._tokens.get(key)
        if secret is None or not _may_be_deleted(secret):
            self._queue.forget(key)
            return
        state, moment = expiry(secret, self._deps.now())
        if state is not Expiry.PAST:
            self._queue.forget(key)
            if moment is not None:
                self._process_at(key, moment)
            return
        if moment is not None and (early := self._early(moment)) > _CLOCKS_DIFFER:
            error = ApiError(0, "ClocksDiffer", f"by the API server's clock it expires in {early:.0f} s")
            self._observer.failed(TokenController.CLEANER, error, RECHECK)
            self._queue.add_after(key, RECHECK)
            return
        try:
            await self._delete(secret)
        except ApiError as error:
            self._observer.failed(TokenController.CLEANER, error, self._queue.retry(key, error))
            return
        self._queue.forget(key)
        self._queue.add_after(key, RECHECK)  # by then the watch has delivered the deletion

    def _early(self, moment: datetime) -> float:
        """Return the seconds until it expires by the API server's clock."""
        theirs = self._client.server_time()
        return 0.0 if theirs is None else (moment - theirs).total_seconds()

    async def _delete(self, secret: JsonObject) -> None:
        name = text(secret, "metadata", "name")
        uid, version = text(secret, "metadata", "uid"), text(secret, "metadata", "resourceVersion")
        path = paths.core_path("secrets", name, namespace=NAMESPACE)
        try:
            await self._client.delete(path, uid=uid, resource_version=version)
        except (NotFound, Conflict):
            return  # deleted or changed by somebody else: the watch delivers it
        self._observer.cleaned(name)


def _may_be_deleted(secret: JsonObject) -> bool:
    # Without a UID, the delete could hit another Secret.
    return (
        is_token_secret(secret)
        and bool(text(secret, "metadata", "uid"))
        and not text(secret, "metadata", "deletionTimestamp")
    )


_KEPT_DATA: Final = ("token-id", "token-secret", "expiration", "usage-bootstrap-signing")
_MAX_OBJECTS: Final = 100_000
_MAX_BYTES: Final = 16 << 20
"""Bytes of cached tokens of one cluster, about ten thousand."""

Supervise = Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]
"""Runs a named controller and restarts it after a bug."""


async def _run_once(_name: str, run: Callable[[], Awaitable[None]]) -> None:
    await run()


class TokenControllers:
    """The enabled controllers of one cluster."""

    def __init__(
        self,
        client: ApiClient,
        enabled: frozenset[TokenController],
        *,
        observer: Observer,
        deps: ControllerDeps | None = None,
        supervise: Supervise = _run_once,
    ) -> None:
        self._client = client
        self._enabled = enabled
        self._observer = observer
        self._deps = deps or ControllerDeps()
        self._supervise = supervise
        self._tokens = watch_tokens(
            client, self._changed, data_keys=_KEPT_DATA, max_objects=_MAX_OBJECTS, max_bytes=_MAX_BYTES
        )
        self._signer: BootstrapSigner | None = None
        self._cleaner: TokenCleaner | None = None

    async def run(self) -> None:
        """Run until canceled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tokens.run())
            for name in sorted(self._enabled):
                run = self._run_signer if name is TokenController.SIGNER else self._run_cleaner
                tasks.create_task(self._supervise(name, run))

    @property
    def synced(self) -> bool:
        """Whether each controller runs and each watch has its first list."""
        signs, cleans = TokenController.SIGNER in self._enabled, TokenController.CLEANER in self._enabled
        if (signs and self._signer is None) or (cleans and self._cleaner is None):
            return False
        return all(reflector.synced for reflector in self._watched())

    @property
    def last_error(self) -> ApiError | None:
        """The error of a failing watch, or None."""
        return next((reflector.last_error for reflector in self._watched() if reflector.last_error is not None), None)

    async def _run_signer(self) -> None:
        self._signer = BootstrapSigner(self._client, self._tokens, observer=self._observer, deps=self._deps)
        try:
            await self._signer.run()
        finally:
            self._signer = None

    async def _run_cleaner(self) -> None:
        self._cleaner = TokenCleaner(self._client, self._tokens, observer=self._observer, deps=self._deps)
        for secret in tuple(self._tokens.values()):  # after a bug, the informer has all of them already
            notify(self._cleaner.token_changed, key_of(secret), secret)
        try:
            await self._cleaner.run()
        finally:
            self._cleaner = None

    def _watched(self) -> tuple[Reflector, ...]:
        return (self._tokens,) if self._signer is None else (self._tokens, self._signer.info)

    def _changed(self, key: str, secret: JsonObject | None) -> None:
        if self._signer is not None:
            notify(self._signer.token_changed)
        if self._cleaner is not None:
            notify(self._cleaner.token_changed, key, secret)
