"""Parses a location such as ``s3://bucket/prefix``, and opens the store there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from nodeattest_identity.publish.store import ObjectStore, StoreAccess, StoreLocation, StoreRefusedError
from nodeattest_kube.paths import is_segment

__all__ = ["FORMS", "open_store", "parse_location"]

FORMS: Final = "dir:PATH, s3://BUCKET/PREFIX, azblob://ACCOUNT/CONTAINER/PREFIX or gs://BUCKET/PREFIX"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._~$-]+", re.ASCII)
_MAX_LENGTH: Final = 1024


def parse_location(text: str) -> StoreLocation:
    """Parse a location; raises ``StoreRefusedError``."""
    kind, _, rest = text.partition(":")
    if kind == "dir" and rest:
        return StoreLocation(kind=kind, root=rest)
    if kind in {"s3", "azblob", "gs"} and rest.startswith("//") and len(text) <= _MAX_LENGTH:
        root, *parts = rest[2:].removesuffix("/").split("/")
        container = [parts.pop(0)] if kind == "azblob" and parts else []
        if all(_SEGMENT.fullmatch(part) and is_segment(part) for part in (root, *container, *parts)) and (
            kind != "azblob" or container
        ):
            return StoreLocation(kind=kind, root=root, container="".join(container), prefix="/".join(parts))
    raise StoreRefusedError(f"--to: expected {FORMS}, got {text[:80]!a}")


def open_store(location: StoreLocation, access: StoreAccess) -> ObjectStore:
    """Open the store without connecting to it; raises ``StoreRefusedError``.

    A store's library is imported only when that store is used.
    """
    if location.kind == "dir":
        from nodeattest_identity.publish.directory import DirectoryStore

        return DirectoryStore(Path(location.root), location.prefix)
    try:
        from nodeattest_identity.publish.cloud import CloudStore
    except ImportError:
        raise StoreRefusedError(
            "--to: expected the library obstore, got none; install requirements-cli.txt of the release "
            "(docs/install.md)"
        ) from None
    return CloudStore(location, access)
