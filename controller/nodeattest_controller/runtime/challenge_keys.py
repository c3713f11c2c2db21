"""The master keys from which challenges are derived: who makes, keeps and rotates them.

One Secret in the controller's namespace holds the current key and the previous one. The leader creates it when absent
and rotates it when it is old; the previous key stays for one rotation, much longer than any challenge lives. Every
write is conditional on resourceVersion, so two replicas can never overwrite each other's key. Losing the Secret costs
open challenges only: the node files anew.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.objects import moment, rfc3339, text
from nodeattest_kube import paths
from nodeattest_kube.client import AlreadyExists, ApiClient, ApiError, Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.node_interface import SecretBytes

__all__ = ["ChallengeKeys"]

_LOG: Final = logging.getLogger(__name__)

SECRET_NAME: Final = "node-attestation-challenge-keys"
ROTATED_AT: Final = "attestation.cluster.x-k8s.io/rotated-at"
KEY_BYTES: Final = 32
RETRY: Final = 2.0
"""Seconds until the next try when the API server refuses or is away."""
REREAD: Final = 60.0
"""Seconds; how soon an operator's change of the Secret is noticed."""
_ATTEMPTS: Final = 5


class ChallengeKeys:
    """Keeps the master keys in step with their Secret."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        rotate_after: timedelta,
        now: Callable[[], datetime],
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._client = client
        self._collection = paths.core_path("secrets", namespace=namespace)
        self._path = paths.core_path("secrets", SECRET_NAME, namespace=namespace)
        self._namespace = namespace
        self._rotate_after = rotate_after
        self._now = now
        self._random = random
        self._keys: tuple[SecretBytes, ...] = ()

    def keys(self) -> tuple[SecretBytes, ...]:
        """Return the keys, newest first; raises Unavailable before the first ``refresh``."""
        if not self._keys:
            raise Unavailable(
                Reason.API_UNAVAILABLE, "the challenge keys are not loaded yet", remedy="wait", retry_after=1.0
            )
        return self._keys

    async def refresh(self) -> float:
        """Read, create or rotate; returns the seconds until the next rotation is due."""
        for _ in range(_ATTEMPTS):
            try:
                secret = await self._client.get(self._path)
            except NotFound:
                if not await self._create():
                    continue
                secret = await self._client.get(self._path)
            due = self._due(secret)
            if due <= timedelta(0) and not await self._rotate(secret):
                continue
            if due <= timedelta(0):
                secret = await self._client.get(self._path)
            self._keys = _read(secret)
            if self._keys:
                return max(self._due(secret).total_seconds(), 1.0)
        raise Unavailable(
            Reason.API_UNAVAILABLE,
            f"Secret {self._namespace}/{SECRET_NAME} has no readable key",
            remedy="delete the Secret; the controller makes a new one",
        )

    async def run(self) -> None:
        """Keep the keys fresh for ever."""
        while True:
            try:
                wait = min(await self.refresh(), REREAD)
            except (ApiError, Unavailable) as error:
                _LOG.warning("cannot read the challenge keys", extra=fields(error=str(error)))
                wait = RETRY
            await asyncio.sleep(wait)  # a period, not a poll for something another task could signal

    def _due(self, secret: JsonObject) -> timedelta:
        rotated = moment(text(secret, "metadata", "annotations", ROTATED_AT))
        if rotated is None or not _read(secret):
            return timedelta(0)
        return rotated + self._rotate_after - self._now()

    async def _create(self) -> bool:
        try:
            await self._client.create(self._collection, self._document(None))
        except AlreadyExists:
            return False
        return True

    async def _rotate(self, secret: JsonObject) -> bool:
        try:
            await self._client.replace(self._path, self._document(secret))
        except (Conflict, NotFound):
            return False
        return True

    def _document(self, old: JsonObject | None) -> JsonObject:
        data: JsonObject = {"current": base64.b64encode(self._random(KEY_BYTES)).decode()}
        meta: JsonObject = {
            "name": SECRET_NAME,
            "namespace": self._namespace,
            "annotations": {ROTATED_AT: rfc3339(self._now())},
        }
        if old is not None:
            meta["resourceVersion"] = text(old, "metadata", "resourceVersion")
            current = text(old, "data", "current")
            if current:
                data["previous"] = current
        return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta, "data": data}


def _read(secret: JsonObject) -> tuple[SecretBytes, ...]:
    keys: list[SecretBytes] = []
    for name in ("current", "previous"):
        try:
            key = decode_base64(text(secret, "data", name))
        except ValueError:
            continue
        if len(key) == KEY_BYTES:
            keys.append(SecretBytes(key))
    return tuple(keys)
