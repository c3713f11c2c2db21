"""Keeps the gateway's signing keys in one Secret that all replicas share.

Promises: every write is a compare-and-swap on resourceVersion, so two replicas never overwrite each other's key, and a
replica that is killed leaves the old Secret or the new one. An unreadable Secret is never replaced. Keys that were not
compared with the Secret for longer than ``_STALE`` sign nothing, because another replica may have removed them.
Leaves to others: when keys change (``keyset``).
Source: Kubernetes API concepts, "Resource versions".
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import Final

from nodeattest_identity.addon.gateway.keyset import (
    KeySet,
    KeySetError,
    PrivateKey,
    RotationSchedule,
    encode_keyset,
    parse_keyset,
    rotate,
)
from nodeattest_identity.tokens.signing import SigningKey
from nodeattest_kube import paths
from nodeattest_kube.client import AlreadyExists, ApiClient, ApiError, Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject, dig_text
from nodeattest_parsing.strict_base64 import decode_base64

__all__ = ["SECRET_NAME", "KeyStore"]

SECRET_NAME: Final = "addon-auth-gateway-keys"
_DATA: Final = "keys.json"
_RESYNC: Final = 60.0
"""Seconds between two reads; a new key waits more than an hour before it signs."""
_RETRY: Final = 2.0
_STALE: Final = 600.0
"""Seconds; less than a key stays published after it was succeeded (``Schedule.behind``)."""
_ATTEMPTS: Final = 5

_log = logging.getLogger(__name__)


class KeyStore:
    """The keys of all replicas, as of the last read."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        schedule: RotationSchedule,
        make: Callable[[], PrivateKey],
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``now`` is seconds since the epoch, ``clock`` monotonic seconds."""
        self._client = client
        self._namespace = namespace
        self._collection = paths.core_path("secrets", namespace=namespace)
        self._path = paths.core_path("secrets", SECRET_NAME, namespace=namespace)
        self._schedule = schedule
        self._make = make
        self._now = now
        self._clock = clock
        self._keyset = KeySet()
        self._last_read = float("-inf")
        self._last_message = ""

    @property
    def keyset(self) -> KeySet:
        """The keys as of the last read; empty before the first."""
        return self._keyset

    def signer(self, now: float) -> SigningKey | None:
        """Return the signing key; None while no key is known to be current."""
        return None if self.unready_reason() else self._keyset.signer(now)

    def unready_reason(self) -> str | None:
        """Why nothing can be signed now; None if it can."""
        if not self._keyset.keys:
            return self._last_message or "the signing keys were not read yet"
        if self._clock() - self._last_read > _STALE:
            return f"the signing keys were not read for more than {_STALE:.0f} s"
        return None

    async def refresh(self) -> None:
        """Read the Secret, and create or update it if due; raises ``ApiError`` and ``KeySetError``."""
        for _ in range(_ATTEMPTS):
            secret = await self._get()
            keyset = KeySet() if secret is None else _keyset_of(secret)
            wanted = rotate(keyset, self._now(), self._schedule, self._make)
            if wanted is None:
                self._keyset, self._last_read, self._last_message = keyset, self._clock(), ""
                return
            if await self._put(wanted, secret):
                added = len({key.kid for key in wanted.published} - {key.kid for key in keyset.published})
                _log.info("changed the signing keys: %d new, %d in all", added, len(wanted.keys))
        raise KeySetError("expected to change the keys within some attempts, but others changed them each time")

    async def run(self) -> None:
        """Keep the keys fresh until cancelled."""
        while True:
            wait = _RESYNC
            try:
                await self.refresh()
            except (ApiError, KeySetError) as error:
                wait = _RETRY
                self._log_once(error)
            await asyncio.sleep(wait)

    def _log_once(self, error: ApiError | KeySetError) -> None:
        """Log an error once."""
        message = f"Secret {self._namespace}/{SECRET_NAME}: {error}"
        if isinstance(error, KeySetError):
            message += "; delete it, and the gateway makes another: tokens of the last minute are lost"
        if message != self._last_message:
            _log.warning("cannot read or change the signing keys: %s", message)
        self._last_message = message

    async def _get(self) -> JsonObject | None:
        try:
            return await self._client.get(self._path)
        except NotFound:
            return None

    async def _put(self, keyset: KeySet, old: JsonObject | None) -> bool:
        """Write the keys; False if another replica wrote meanwhile."""
        metadata: JsonObject = {"name": SECRET_NAME, "namespace": self._namespace}
        data: JsonObject = {_DATA: base64.b64encode(encode_keyset(keyset)).decode()}
        body: JsonObject = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
        try:
            if old is None:
                await self._client.create(self._collection, body)
            else:
                metadata["resourceVersion"] = dig_text(old, "metadata", "resourceVersion")
                await self._client.replace(self._path, body)
        except (AlreadyExists, Conflict, NotFound):
            return False
        return True


def _keyset_of(secret: JsonObject) -> KeySet:
    try:
        return parse_keyset(decode_base64(dig_text(secret, "data", _DATA)))
    except ValueError as error:
        if isinstance(error, KeySetError):
            raise
        raise KeySetError(f"expected keys in {_DATA}, got something else") from None
