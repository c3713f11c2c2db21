"""The controller ``token-cleaner``: deletes the Secrets of expired bootstrap tokens.

Promises: nothing is deleted but the very version that was judged of a Secret whose type and name are a token's; a
Secret that was made anew or changed meanwhile is judged anew. An expiration that nobody can read has passed. What the
API server's own clock says is good for a while is not deleted, since ours may be wrong. A failed delete is made again.
Leaves to others: whether a token has expired (``secret.expiry``), whether it may run.
Source: kubernetes pkg/controller/bootstrap/tokencleaner.go; it gives up on a failed delete, and deletes Secrets of the
type under any name.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from nodeattest_discovery.controllers.deps import RECHECK, ControllerDeps, Observer, TokenController, seconds_until
from nodeattest_discovery.secret import NAMESPACE, Expiry, expiry, is_token_secret
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject, dig_text
from nodeattest_kube.reflector import Reflector

__all__ = ["TokenCleaner"]

_WORKERS: Final = 4
"""Deletes at the same time: hundreds of tokens may expire together."""
_CLOCKS_DIFFER: Final = 30.0
"""Seconds; ours may be wrong by so much. What is deleted does not come back, and one clock serves many clusters."""


class TokenCleaner:
    """Cleans the tokens of one cluster."""

    def __init__(self, client: ApiClient, tokens: Reflector, *, observer: Observer, deps: ControllerDeps) -> None:
        """``tokens`` is followed by its owner, who calls ``token_changed``."""
        self._client = client
        self._tokens = tokens
        self._observer = observer
        self._deps = deps
        self._queue = deps.queue()

    def token_changed(self, key: str, secret: JsonObject | None) -> None:
        """Look at a token now, or when it will have expired."""
        if secret is None or not _may_be_deleted(secret):
            return
        state, moment = expiry(secret, self._deps.now())
        if state is Expiry.PAST:
            self._queue.add(key)
        elif moment is not None:
            self._process_at(key, moment)

    async def run(self) -> None:
        """Serve until cancelled."""
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
            self._observer.failed(TokenController.CLEANER, error, self._queue.retry(key))
            return
        self._queue.forget(key)
        self._queue.add_after(key, RECHECK)  # by then the watch has told what became of it

    def _early(self, moment: datetime) -> float:
        """Say for how many seconds more it is good by the API server's clock."""
        theirs = self._client.server_time()
        return 0.0 if theirs is None else (moment - theirs).total_seconds()

    async def _delete(self, secret: JsonObject) -> None:
        """Delete exactly this version of a Secret."""
        name = dig_text(secret, "metadata", "name")
        uid, version = dig_text(secret, "metadata", "uid"), dig_text(secret, "metadata", "resourceVersion")
        path = paths.core_path("secrets", name, namespace=NAMESPACE)
        try:
            await self._client.delete(path, uid=uid, resource_version=version)
        except (NotFound, Conflict):
            return  # somebody deleted it before, or it is no longer what was judged: the watch tells
        self._observer.cleaned(name)


def _may_be_deleted(secret: JsonObject) -> bool:
    """Tell whether a Secret is a token that nobody deletes yet; one without a UID could be any."""
    return (
        is_token_secret(secret)
        and bool(dig_text(secret, "metadata", "uid"))
        and not dig_text(secret, "metadata", "deletionTimestamp")
    )
