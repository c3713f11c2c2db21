"""Both bootstrap token controllers of one cluster, on one informer of its tokens."""

from __future__ import annotations

import asyncio

from nodeattest_discovery.controllers.bootstrap_signer.reconciler import BootstrapSigner
from nodeattest_discovery.controllers.deps import ControllerDeps, Observer, TokenController, token_informer
from nodeattest_discovery.controllers.token_cleaner.reconciler import TokenCleaner
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.reflector import Reflector

__all__ = ["TokenControllers"]


class TokenControllers:
    """Those that are enabled, for one connection."""

    def __init__(
        self,
        client: ApiClient,
        enabled: frozenset[TokenController],
        *,
        observer: Observer,
        deps: ControllerDeps | None = None,
    ) -> None:
        deps = deps or ControllerDeps()
        self._tokens = token_informer(client, self._changed)
        self._signer = (
            BootstrapSigner(client, self._tokens, observer=observer, deps=deps)
            if TokenController.SIGNER in enabled
            else None
        )
        self._cleaner = (
            TokenCleaner(client, self._tokens, observer=observer, deps=deps)
            if TokenController.CLEANER in enabled
            else None
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tokens.run())
            if self._signer is not None:
                tasks.create_task(self._signer.run())
            if self._cleaner is not None:
                tasks.create_task(self._cleaner.run())

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been read once."""
        return all(reflector.synced for reflector in self._watched())

    @property
    def last_error(self) -> ApiError | None:
        """What keeps a watch from being followed; None while all is well."""
        return next((reflector.last_error for reflector in self._watched() if reflector.last_error is not None), None)

    def _watched(self) -> tuple[Reflector, ...]:
        return (self._tokens,) if self._signer is None else (self._tokens, self._signer.info)

    def _changed(self, key: str, secret: JsonObject | None) -> None:
        if self._signer is not None:
            self._signer.token_changed()
        if self._cleaner is not None:
            self._cleaner.token_changed(key, secret)
