"""A ConfigMap: three keys of one object, for anyone who mounts it or reads it over the API.

Promises: other keys of the object stay; each write is a compare-and-swap on the object's ``resourceVersion`` after the
one key was seen to be what it was when it was read, so that writes to other keys are no lost race.
Leaves to others: content types and Cache-Control, which its server sets.
Source: Kubernetes API conventions, "Concurrency Control and Consistency"; api/core/v1 ConfigMap (1 MiB together).
"""

from __future__ import annotations

import hashlib
from typing import Final

from nodeattest_identity.publish.store import (
    PublishError,
    StoredObject,
    StoreRefusedError,
    StoreUnavailableError,
    WriteConflictError,
)
from nodeattest_kube import paths
from nodeattest_kube.client import (
    AlreadyExists,
    ApiClient,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from nodeattest_kube.jsontypes import JsonObject, dig, dig_text

__all__ = ["ConfigMapStore"]

_SERVER_ERROR: Final = 500
_TRIES: Final = 5
"""Of one write, while others write other keys of the object."""


class ConfigMapStore:
    """One ConfigMap, made when first written; implements ``ObjectStore``. The client is the caller's to close."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self.name: Final = f"configmap:{namespace}/{name}"
        self._client = client
        self._namespace = namespace
        self._object = name

    async def read(self, path: str) -> StoredObject | None:
        """Read one key."""
        found = await self._read()
        return None if found is None else self._stored(found, _key(path))

    async def write(
        self,
        path: str,
        body: bytes,
        *,
        content_type: str,
        cache_control: str,
        version: str | None,
    ) -> None:
        """Replace one key."""
        del content_type, cache_control  # the ConfigMap has no headers
        data: JsonObject = {_key(path): body.decode()}
        for _ in range(_TRIES):
            found = await self._read()
            there = None if found is None else self._stored(found, _key(path))
            if (None if there is None else there.version) != version:
                break
            if await self._written(found, data):
                return
        raise WriteConflictError(f"{self.name} was written by somebody else meanwhile")

    async def aclose(self) -> None:
        """Leave the client open."""

    async def _written(self, found: JsonObject | None, data: JsonObject) -> bool:
        """Write one key into the object as it was read; False where somebody else wrote any key of it meanwhile."""
        try:
            if found is None:
                await self._client.create(paths.core_path("configmaps", namespace=self._namespace), self._made(data))
            else:
                resource_version = dig_text(found, "metadata", "resourceVersion")
                patch: JsonObject = {"metadata": {"resourceVersion": resource_version}, "data": data}
                await self._client.merge_patch(self._path(), patch)
        except (Conflict, AlreadyExists):
            return False
        except ApiError as error:
            raise self._refused(error) from None
        return True

    async def _read(self) -> JsonObject | None:
        try:
            return await self._client.get(self._path())
        except NotFound:
            return None
        except ApiError as error:
            raise self._refused(error) from None

    def _stored(self, found: JsonObject, key: str) -> StoredObject | None:
        if dig(found, "binaryData", key) is not None:
            raise StoreRefusedError(f"{self.name}: expected text under {key}, got binaryData; remove that key")
        value = dig(found, "data", key)
        if not isinstance(value, str):
            return None
        body = value.encode()
        return StoredObject(body=body, version=hashlib.sha256(body).hexdigest())

    def _made(self, data: JsonObject) -> JsonObject:
        labels: JsonObject = {"app.kubernetes.io/managed-by": "nodeattest"}
        metadata: JsonObject = {"name": self._object, "namespace": self._namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def _path(self) -> str:
        return paths.core_path("configmaps", self._object, namespace=self._namespace)

    def _refused(self, error: ApiError) -> PublishError:
        """Tell whose matter an answer is."""
        if isinstance(error, Unreachable | TooManyRequests) or error.status >= _SERVER_ERROR:
            return StoreUnavailableError(f"{self.name}: {error}", retry_after=error.retry_after)
        remedy = "see the API server's answer"
        if isinstance(error, Unauthorized | Forbidden):
            remedy = "it needs get, create and patch on configmaps (docs/issuer-publish.md, ConfigMap)"
        elif isinstance(error, NotFound):
            remedy = "make the namespace first"
        elif isinstance(error, Invalid):
            remedy = "is it immutable? Then remove it first"
        return StoreRefusedError(f"{self.name}: {error}; {remedy}")


def _key(path: str) -> str:
    """Name the key after the last segment: ``jwks``, ``openid-configuration``, ``issuer-state.json``."""
    return path.rpartition("/")[2]
