"""Stores of issuers' documents: how they are named, what each must do, and a directory as one of them.

A write replaces one object as a whole, and only if it still is the version that was read. In a directory writers
exclude each other by a file lock, and symbolic links are not followed, even if a path becomes one meanwhile.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from nodeattest_kube.paths import is_segment

MAX_OBJECT: Final = 1 << 20
"""Bytes of an object; the limit of a key set."""
FORMS: Final = "dir:PATH, s3://BUCKET/PREFIX, azblob://ACCOUNT/CONTAINER/PREFIX or gs://BUCKET/PREFIX"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._~$-]+", re.ASCII)
_MAX_LENGTH: Final = 1024
_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755
_LOCK: Final = ".nodeattest/lock"
_LOCK_INTERVAL: Final = 0.05
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_UNFINISHED: Final = ".nodeattest-unfinished"
"""The file that is being written; one that a killed run left is overwritten."""


class PublishError(Exception):
    """The documents could not be published."""


class ForeignIssuerError(PublishError):
    """The stored documents are of another issuer or owner, or it is unknown whose they are. Nothing was overwritten."""


class StoreRefusedError(PublishError):
    """The store does not exist or denies access; an operator must act."""


class StoreUnavailableError(PublishError):
    """The store is unreachable or throttles; retry."""


class WriteConflictError(PublishError):
    """An object changed since it was read: read again, and plan again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in a store, as it was read."""

    body: bytes = field(repr=False)
    e_tag: str | None
    generation: str | None = None
    """What the store compares; a generation in Google Cloud Storage only."""
    content_type: str | None = None
    cache_control: str | None = None
    """Both None if the store has no headers; its web server sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A conditional write of one object."""

    path: str
    body: bytes = field(repr=False)
    content_type: str = ""
    cache_control: str = ""
    replaces: StoredObject | None
    """The object as it was read; None: there was none."""
    why: str = ""


class ObjectStore(ABC):
    """One prefix of one bucket, container or directory."""

    name: str
    """The location for messages, such as ``s3://bucket/prefix``."""

    @abstractmethod
    async def read(self, path: str, /) -> StoredObject | None:
        """Read an object; None if it does not exist. Raises ``PublishError``."""

    @abstractmethod
    async def write(self, write: Write, /) -> None:
        """Write an object if it is as it was read; raises ``WriteConflictError`` and other ``PublishError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """A location by kind and parts."""

    kind: str
    """``dir``, ``s3``, ``azblob`` or ``gs``."""
    root: str
    """The directory, bucket or account."""
    container: str = ""
    """Of an Azure account."""
    prefix: str = ""

    def __str__(self) -> str:
        parts = [part for part in (self.root, self.container, self.prefix) if part]
        return f"{self.kind}:{'' if self.kind == 'dir' else '//'}{'/'.join(parts)}"

    def below(self, folder: str) -> StoreLocation:
        return replace(self, prefix=f"{self.prefix}/{folder}" if self.prefix else folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """Access to a store of a cloud."""

    region: str | None = None
    endpoint_url: str | None = None
    azure_key: str | None = field(default=None, repr=False)


def parse_location(text: str) -> StoreLocation:
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


class DirectoryStore(ObjectStore):
    """A prefix of a directory, which must exist."""

    def __init__(self, root: Path, prefix: str = "", *, lock_seconds: float = 30.0) -> None:
        """``lock_seconds``: how long to wait for another writer."""
        self._root = root
        self._prefix = f"{prefix}/" if prefix else ""
        self._lock_seconds = lock_seconds
        self.name = f"dir:{root / prefix}"

    async def read(self, path: str, /) -> StoredObject | None:
        return await asyncio.to_thread(self._read, self._prefix + path)

    async def write(self, write: Write, /) -> None:
        await asyncio.to_thread(self._write, self._prefix + write.path, write)

    def _read(self, path: str) -> StoredObject | None:
        try:
            if not self._root.is_dir():
                raise StoreRefusedError(f"{self.name}: expected a directory, got none; make it, or mount it first")
            with self._opened(path) as (folder, name):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            if not stat.S_ISREG(mode := os.fstat(file).st_mode):
                os.close(file)
                if stat.S_ISDIR(mode):
                    return None
                raise StoreRefusedError(f"{self.name}: {path}: expected a file, got a pipe or a device; remove it")
            with os.fdopen(file, "rb") as opened:
                body = opened.read(MAX_OBJECT + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._refused(path, error) from None
        if len(body) > MAX_OBJECT:
            raise StoreRefusedError(f"{self.name}: {path}: expected at most {MAX_OBJECT} bytes, got more")
        return StoredObject(body=body, e_tag=hashlib.sha256(body).hexdigest())

    def _write(self, path: str, write: Write) -> None:
        try:
            with self._locked(), self._opened(path, make=True) as (folder, name):
                found = self._read(path)
                if (found and found.e_tag) != (write.replaces and write.replaces.e_tag):
                    raise WriteConflictError(f"{self.name}: {path} was written by another program meanwhile")
                _replace(folder, name, write.body)
        except OSError as error:
            raise self._refused(path, error) from None

    @contextmanager
    def _opened(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """Open the directory of a file, segment by segment and never by a link; yields it and the file's name."""
        *segments, name = path.split("/")
        folder = os.open(self._root, _FOLDER)
        try:
            for segment in segments:
                outer, folder = folder, _inner(folder, segment, make=make)
                os.close(outer)
            yield folder, name
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self) -> Generator[None]:
        with self._opened(self._prefix + _LOCK, make=True) as (folder, name):
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            until = time.monotonic() + self._lock_seconds
            while not _try_lock(lock):
                if time.monotonic() > until:
                    raise StoreUnavailableError(
                        f"{self.name}: expected the lock {_LOCK} within {self._lock_seconds:.0f} s, got none; end the "
                        "publisher that holds it"
                    )
                time.sleep(_LOCK_INTERVAL)
            yield
        finally:
            os.close(lock)

    def _refused(self, path: str, error: OSError) -> StoreRefusedError:
        return StoreRefusedError(
            f"{self.name}: {path}: expected to read and write there, got {error.strerror!r}; check owner, mode, kind "
            "(no symbolic link) and free space, and that it is mounted writable"
        )


def _inner(folder: int, segment: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(segment, mode=_DIRECTORY_MODE, dir_fd=folder)
            made = os.open(segment, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.fchmod(made, _DIRECTORY_MODE)
            return made
    return os.open(segment, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def _try_lock(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _replace(folder: int, name: str, body: bytes) -> None:
    """Write another file, then rename it: a reader sees the old bytes or the new ones. The lock must be ours."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(_UNFINISHED, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(body)
        file.flush()
        os.fchmod(file.fileno(), _FILE_MODE)
        os.fsync(file.fileno())
    os.rename(_UNFINISHED, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)
