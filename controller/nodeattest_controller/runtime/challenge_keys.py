"""The master keys that challenges are derived from: the current and the previous one, in a Secret of ours.

The leader creates the Secret and rotates the keys by compare-and-swap. The previous key stays for one rotation, much
longer than any challenge is valid. If the Secret is lost, nodes with open challenges file new requests.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Malformed
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_kube.secret_store import SecretContent, SecretStore, secret_bytes
from nodeattest_parsing.objects import moment, rfc3339, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.node_interface import SecretBytes

_LOG: Final = logging.getLogger(__name__)

SECRET_NAME: Final = "node-attestation-challenge-keys"
ROTATED_AT: Final = "attestation.cluster.x-k8s.io/rotated-at"
KEY_BYTES: Final = 32
_RESYNC: Final = ResyncConfig(spread=0.0, period=60.0, min_interval=1.0, retry=2.0, max_retry=2.0)
"""An operator's change of the Secret is noticed within the period."""


class ChallengeKeys(PeriodicReconciler):
    """The keys as of the last read."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        rotate_after: timedelta,
        now: Callable[[], datetime],
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        super().__init__(_RESYNC)
        self._store = SecretStore(client, namespace=namespace, name=SECRET_NAME)
        self._rotate_after = rotate_after
        self._now = now
        self._token_bytes = random
        self._keys: tuple[SecretBytes, ...] = ()

    def keys(self) -> tuple[SecretBytes, ...]:
        """Return the keys, newest first; raises Unavailable before the first read."""
        if not self._keys:
            raise Unavailable(
                Reason.API_UNAVAILABLE, "the challenge keys are not loaded yet", remedy="wait", retry_after=1.0
            )
        return self._keys

    async def reconcile(self) -> float | None:
        """Read, create or rotate the keys; returns the seconds until the next run. Raises ApiError."""
        secret = await self._store.update(self._next_content)
        keys = _read(secret)
        if secret is None or not keys:
            raise Malformed(
                200, "MalformedSecret", f"Secret {self._store.name} has no key; delete it, and a new one is made"
            )
        self._keys = keys
        return min(max(self._due_in(secret).total_seconds(), 1.0), _RESYNC.period)

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        more = fields(error=str(error), failures=failures, delay=delay)
        _LOG.warning("cannot read the challenge keys", extra=more)

    def _next_content(self, secret: JsonObject | None) -> SecretContent | None:
        if secret is not None and self._due_in(secret) > timedelta(0):
            return None
        data = {"current": self._token_bytes(KEY_BYTES)}
        previous = secret_bytes(secret, "current")
        if previous is not None:
            data["previous"] = previous
        return SecretContent(data, {ROTATED_AT: rfc3339(self._now())})

    def _due_in(self, secret: JsonObject) -> timedelta:
        rotated = moment(text(secret, "metadata", "annotations", ROTATED_AT))
        if rotated is None or not _read(secret):
            return timedelta(0)
        return rotated + self._rotate_after - self._now()


def _read(secret: JsonObject | None) -> tuple[SecretBytes, ...]:
    found = (secret_bytes(secret, name) for name in ("current", "previous"))
    return tuple(SecretBytes(key) for key in found if key is not None and len(key) == KEY_BYTES)
