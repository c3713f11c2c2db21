"""The reconciler of ``token-cleaner``: deletes the Secrets of expired bootstrap tokens.

Promises: only the version that was checked is deleted, of a Secret whose type and name are a token's; a Secret that
changed or was recreated meanwhile is checked again. An unreadable expiration counts as past. A token that is valid by
the API server's clock is not deleted, because ours may be wrong. A failed delete is retried.
Source: kubernetes pkg/controller/bootstrap/tokencleaner.go; it gives up on a failed delete, and deletes Secrets of the
type under any name.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from nodeattest_discovery.controllers.deps import RECHECK, ControllerDeps, Observer, TokenController, seconds_until
from nodeattest_discovery.secret import NAMESPACE, Expiry, expiry, is_token_secret
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, NotFound
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

_WORKERS: Final = 4
"""Deletes at the same time: hundreds of tokens may expire together."""
_CLOCKS_DIFFER: Final = 30.0
"""Seconds that our clock may be wrong. A deletion is final, and one clock serves many clusters."""


class TokenCleaner:
    """Deletes expired tokens of one cluster."""

    def __init__(self, client: ApiClient, tokens: Reflector, *, observer: Observer, deps: ControllerDeps) -> None:
        """``tokens`` is run by its owner, who calls ``token_changed``."""
        self._client = client
        self._tokens = tokens
        self._observer = observer
        self._deps = deps
        self._queue = deps.queue()

    def token_changed(self, key: str, secret: JsonObject | None) -> None:
        """Process a token now, or when it will have expired."""
        if secret is None or not _may_be_deleted(secret):
            return
        state, moment = expiry(secret, self._deps.now())
        if state is Expiry.PAST:
            self._queue.add(key)
        elif moment is not None:
            self._process_at(key, moment)

    async def run(self) -> None:
        """Run until cancelled."""
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
        """Return for how many more seconds it is valid by the API server's clock."""
        theirs = self._client.server_time()
        return 0.0 if theirs is None else (moment - theirs).total_seconds()

    async def _delete(self, secret: JsonObject) -> None:
        """Delete exactly this version of a Secret."""
        name = text(secret, "metadata", "name")
        uid, version = text(secret, "metadata", "uid"), text(secret, "metadata", "resourceVersion")
        path = paths.core_path("secrets", name, namespace=NAMESPACE)
        try:
            await self._client.delete(path, uid=uid, resource_version=version)
        except (NotFound, Conflict):
            return  # deleted or changed by somebody else: the watch delivers it
        self._observer.cleaned(name)


def _may_be_deleted(secret: JsonObject) -> bool:
    """Whether a Secret is a token that is not being deleted; without a UID it could be any."""
    return (
        is_token_secret(secret)
        and bool(text(secret, "metadata", "uid"))
        and not text(secret, "metadata", "deletionTimestamp")
    )
