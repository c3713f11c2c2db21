"""One Secret that replicas share, changed by compare-and-swap; labels and annotations of others stay.

A replica that is killed at any instant leaves the old Secret or the new one. Nothing of the content is logged.
Source: Kubernetes API concepts, "Resource versions"; core/v1 Secret (``type`` is immutable).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, Conflict, NotFound
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.strict_base64 import decode_base64, encode_base64
from nodeattest_parsing.values import JsonObject, ParseError

_ATTEMPTS: Final = 5
"""Writes that others were faster with, in one update."""


@dataclass(frozen=True, slots=True)
class SecretContent:
    """What a Secret is to hold."""

    data: Mapping[str, bytes] = field(repr=False)
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])


class SecretStore:
    """One Secret."""

    def __init__(self, client: ApiClient, *, namespace: str, name: str) -> None:
        self.name: Final = f"{namespace}/{name}"
        self._client = client
        self._metadata: Final[JsonObject] = {"name": name, "namespace": namespace}
        self._collection: Final = paths.core_path("secrets", namespace=namespace)
        self._path: Final = paths.core_path("secrets", name, namespace=namespace)

    async def read(self) -> JsonObject | None:
        """Read the Secret; None if there is none. Raises ``ApiError``."""
        try:
            return await self._client.get(self._path)
        except NotFound:
            return None

    async def update(self, next_content: Callable[[JsonObject | None], SecretContent | None]) -> JsonObject | None:
        """Read the Secret, write what ``next_content`` makes of it, and return what it is then.

        ``next_content`` gets the Secret (None: there is none) and returns None if nothing has to change; it is called
        again when another replica was faster. What it raises is passed on. Raises ``ApiError``; ``Conflict`` when
        others were faster each time.
        """
        for _ in range(_ATTEMPTS):
            secret = await self.read()
            content = next_content(secret)
            if content is None:
                return secret
            try:
                return await self._write(secret, content)
            except (AlreadyExists, Conflict, NotFound):
                continue
        raise Conflict(409, "Conflict", f"Secret {self.name}: other writers were faster {_ATTEMPTS} times")

    async def _write(self, old: JsonObject | None, content: SecretContent) -> JsonObject:
        metadata: JsonObject = dict(self._metadata)
        annotations: JsonObject = {**mapping(old, "metadata", "annotations"), **content.annotations}
        if annotations:
            metadata["annotations"] = annotations
        if labels := mapping(old, "metadata", "labels"):
            metadata["labels"] = labels
        document: JsonObject = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": text(old, "type") or "Opaque",
            "metadata": metadata,
            "data": {name: encode_base64(value) for name, value in content.data.items()},
        }
        if old is None:
            return await self._client.create(self._collection, document)
        metadata["resourceVersion"] = text(old, "metadata", "resourceVersion")
        return await self._client.replace(self._path, document)


def secret_bytes(secret: JsonObject | None, name: str) -> bytes | None:
    """Decode one value of a Secret's ``data``; None if it is absent, empty or no base64."""
    try:
        return decode_base64(text(secret, "data", name)) or None
    except ParseError:
        return None
