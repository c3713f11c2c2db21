"""Both bootstrap token controllers of one cluster, on one informer of its tokens.

A bug in one of them, or in what it does on a change, stops neither the informer nor the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from nodeattest_discovery.controllers.bootstrap_signer import BootstrapSigner
from nodeattest_discovery.controllers.deps import ControllerDeps, Observer, TokenController
from nodeattest_discovery.controllers.token_cleaner import TokenCleaner
from nodeattest_discovery.informers import watch_tokens
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.periodic import notify
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import key_of
from nodeattest_parsing.values import JsonObject

_KEPT_DATA: Final = ("token-id", "token-secret", "expiration", "usage-bootstrap-signing")
_MAX_OBJECTS: Final = 100_000
_MAX_BYTES: Final = 16 << 20
"""Of tokens kept of one cluster: some ten thousand."""

Supervise = Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]
"""Runs the controller of a name, and starts it anew after a bug."""


async def _run_once(_name: str, run: Callable[[], Awaitable[None]]) -> None:
    await run()


class TokenControllers:
    """Those that are enabled, for one connection."""

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
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tokens.run())
            for name in sorted(self._enabled):
                run = self._run_signer if name is TokenController.SIGNER else self._run_cleaner
                tasks.create_task(self._supervise(name, run))

    @property
    def synced(self) -> bool:
        """Whether each controller runs, and all that is watched has been read once."""
        signs, cleans = TokenController.SIGNER in self._enabled, TokenController.CLEANER in self._enabled
        if (signs and self._signer is None) or (cleans and self._cleaner is None):
            return False
        return all(reflector.synced for reflector in self._watched())

    @property
    def last_error(self) -> ApiError | None:
        """What keeps a watch from being followed; None while all is well."""
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
