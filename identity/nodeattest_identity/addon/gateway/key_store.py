"""Keeps the gateway's signing keys in one Secret that all replicas share.

Promises: every write is a compare-and-swap on resourceVersion, so two replicas never overwrite each other's key, and a
replica that is killed leaves the old Secret or the new one. An unreadable Secret is never replaced. Keys that were not
compared with the Secret for longer than ``_STALE`` sign nothing, because another replica may have removed them.
Leaves to others: when keys change (``keyset``).
Source: Kubernetes API concepts, "Resource versions".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from nodeattest_identity.addon.gateway.keyset import (
    KeySet,
    KeySetError,
    RotationSchedule,
    encode_keyset,
    parse_keyset,
    rotate,
)
from nodeattest_identity.tokens.signing import SigningKey
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_kube.secret_store import SecretContent, SecretStore, secret_bytes
from nodeattest_providers.key_types import PrivateKey

__all__ = ["SECRET_NAME", "KeyStore"]

SECRET_NAME: Final = "addon-auth-gateway-keys"
_DATA: Final = "keys.json"
_RESYNC: Final = ResyncConfig(spread=0.0, period=60.0, min_interval=0.0, retry=2.0, max_retry=30.0)
"""The first read is at once, because nothing is signed before it; a new key waits more than an hour before it signs."""
_STALE: Final = 600.0
"""Seconds; less than a key stays published after it was succeeded (``RotationSchedule.behind``)."""

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
        self._secret = SecretStore(client, namespace=namespace, name=SECRET_NAME)
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
        secret = await self._secret.update(self._next_content)
        self._keyset, self._last_read, self._last_message = _keyset_of(secret), self._clock(), ""

    def _next_content(self, secret: JsonObject | None) -> SecretContent | None:
        """Return the Secret's content as it must be now; None if it needs no change."""
        keyset = KeySet() if secret is None else _keyset_of(secret)
        wanted = rotate(keyset, self._now(), self._schedule, self._make)
        if wanted is None:
            return None
        added = len({key.kid for key in wanted.published} - {key.kid for key in keyset.published})
        _log.info("changing the signing keys: %d new, %d in all", added, len(wanted.keys))
        return SecretContent({_DATA: encode_keyset(wanted)})

    async def run(self) -> None:
        """Keep the keys fresh until cancelled."""
        await PeriodicReconciler(self, _RESYNC).run()

    async def reconcile(self) -> float | None:
        """Refresh; an unreadable Secret is reported and read again soon. Raises ``ApiError``."""
        try:
            await self.refresh()
        except KeySetError as error:
            self._log_once(error)
            return _RESYNC.retry
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Log it once."""
        self._log_once(error)

    def _log_once(self, error: ApiError | KeySetError) -> None:
        """Log an error once."""
        message = f"Secret {self._secret.name}: {error}"
        if isinstance(error, KeySetError):
            message += "; delete it, and the gateway makes another: tokens of the last minute are lost"
        if message != self._last_message:
            _log.warning("cannot read or change the signing keys: %s", message)
        self._last_message = message


def _keyset_of(secret: JsonObject | None) -> KeySet:
    data = secret_bytes(secret, _DATA)
    if data is None:
        raise KeySetError(f"expected keys in {_DATA}, got something else")
    return parse_keyset(data)
