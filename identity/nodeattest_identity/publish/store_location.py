"""Parses a store location such as ``s3://bucket/prefix``, and opens the store.

Promises: a store's library is imported only when that store is used; if it is missing the error names the extra.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_identity.publish.store import ObjectStore, StoreRefusedError
from nodeattest_kube.client import ApiClient
from nodeattest_kube.paths import is_segment

__all__ = ["FORMS", "StoreAccess", "StoreLocation", "open_store", "parse_location"]

FORMS: Final = "dir:PATH, s3://BUCKET/PREFIX, azblob://ACCOUNT/CONTAINER/PREFIX or configmap:NAMESPACE/NAME"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._~$-]+", re.ASCII)
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.ASCII)
_MAX_LENGTH: Final = 1024


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A location by kind and parts."""

    kind: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """Access to stores."""

    region: str | None = None
    endpoint_url: str | None = None
    azure_key: str | None = field(default=None, repr=False)
    cluster: Callable[[], ApiClient] | None = None
    """Makes the client of the cluster that holds the ConfigMap."""


def parse_location(text: str) -> StoreLocation:
    """Parse a location; raises ``StoreRefusedError``."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "dir" and rest:
        return StoreLocation("dir", (rest,))
    if colon and kind in {"s3", "azblob"} and rest.startswith("//") and len(text) <= _MAX_LENGTH:
        parts = rest[2:].removesuffix("/").split("/")
        heads = 1 if kind == "s3" else 2
        if len(parts) >= heads and all(_SEGMENT.fullmatch(part) and is_segment(part) for part in parts):
            return StoreLocation(kind, (*parts[:heads], "/".join(parts[heads:])))
    if colon and kind == "configmap":
        namespace, slash, name = rest.partition("/")
        if slash and _NAME.fullmatch(namespace) and _NAME.fullmatch(name):
            return StoreLocation("configmap", (namespace, name))
    raise StoreRefusedError(f"--to: expected {FORMS}, got {text[:80]!a}")


def open_store(target: StoreLocation, access: StoreAccess) -> ObjectStore:
    """Open the store; raises ``StoreRefusedError``."""
    if target.kind == "dir":
        from nodeattest_identity.publish.stores.directory import DirectoryStore

        return DirectoryStore(Path(target.parts[0]))
    if target.kind == "configmap":
        from nodeattest_identity.publish.stores.configmap import ConfigMapStore

        if access.cluster is None:
            raise StoreRefusedError("--to configmap:: expected a cluster's kubeconfig, got none")
        return ConfigMapStore(access.cluster(), *target.parts)
    return _s3(target, access) if target.kind == "s3" else _azure(target, access)


def _s3(target: StoreLocation, access: StoreAccess) -> ObjectStore:
    try:
        from nodeattest_identity.publish.stores.s3 import S3Store
    except ImportError:
        raise _missing("boto3") from None
    bucket, prefix = target.parts
    return S3Store(bucket, prefix, region=access.region, endpoint_url=access.endpoint_url)


def _azure(target: StoreLocation, access: StoreAccess) -> ObjectStore:
    try:
        from nodeattest_identity.publish.stores.azure_blob import AzureBlobStore
    except ImportError:
        raise _missing("azure-storage-blob and azure-identity") from None
    account, container, prefix = target.parts
    return AzureBlobStore(account, container, prefix, endpoint_url=access.endpoint_url, key=access.azure_key)


def _missing(library: str) -> StoreRefusedError:
    return StoreRefusedError(
        f"--to: expected the library {library}, got none; install requirements-cli.txt of the release (docs/install.md)"
    )
