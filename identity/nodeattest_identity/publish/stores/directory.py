"""A directory that some web server serves: each object a file.

Promises: a file is replaced by one rename after its bytes are on the disk; readable for everybody (0644, directories
0755), because another user's web server reads it. Writers exclude each other by a lock, so of two who read the same one
gets ``WriteConflictError``. Symbolic links below the directory are not followed,
nor what becomes one meanwhile: a writer there cannot lead a publisher elsewhere.
Leaves to others: content types and Cache-Control, which the web server sets.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nodeattest_identity.publish.store import MAX_OBJECT, StoredObject, StoreRefusedError, WriteConflictError

__all__ = ["DirectoryStore", "explained"]

_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755
_LOCK: Final = ".nodeattest/lock"
_OWNER: Final = "run as the owner of the directory, or correct owner and mode"
_ROOM: Final = "make room on that disk"
_WRITABLE: Final = "mount it writable"
_IN_THE_WAY: Final = "what is there is of another kind: remove it"
_REMEDIES: Final = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: _WRITABLE,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.ELOOP: "what is there is a symbolic link: remove it",
}
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BESIDE: Final = ".nodeattest-"
"""How files begin that are being written."""


class DirectoryStore:
    """A directory, which must exist; implements ``ObjectStore``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.name: Final = f"dir:{root}"

    async def read(self, path: str) -> StoredObject | None:
        """Read a file."""
        return await asyncio.to_thread(self._read, path)

    async def write(
        self,
        path: str,
        body: bytes,
        *,
        content_type: str,
        cache_control: str,
        version: str | None,
    ) -> None:
        """Replace a file."""
        del content_type, cache_control  # the web server sets the headers
        await asyncio.to_thread(self._write, path, body, version)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _read(self, path: str) -> StoredObject | None:
        try:
            if not self._root.is_dir():
                raise StoreRefusedError(f"{self.name}: expected a directory, got none; make it, or mount it first")
            with self._opened(path) as (folder, name):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused(path, error) from None
        try:
            with os.fdopen(file, "rb") as opened:
                body = opened.read(MAX_OBJECT + 1)
        except OSError as error:
            raise self._refused(path, error) from None
        if len(body) > MAX_OBJECT:
            raise StoreRefusedError(f"{self.name}: {path}: expected at most {MAX_OBJECT} bytes, got more")
        return StoredObject(body=body, version=hashlib.sha256(body).hexdigest())

    def _write(self, path: str, body: bytes, version: str | None) -> None:
        try:
            with self._locked(), self._opened(path, make=True) as (folder, name):
                found = self._read(path)
                if (None if found is None else found.version) != version:
                    raise WriteConflictError(f"{self.name}: {path} was written by somebody else meanwhile")
                for left in os.listdir(folder):  # noqa: PTH208 - a path could lead elsewhere by now
                    if left.startswith(_BESIDE):  # by a run that was killed: the lock is ours
                        os.unlink(left, dir_fd=folder)
                _replace(folder, name, body)
        except OSError as error:
            raise self._refused(path, error) from None

    @contextmanager
    def _opened(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """Open the directory of a file, segment by segment and never by a link; gives it, and the file's name in it."""
        *segments, name = path.split("/")
        folder = os.open(self._root, _FOLDER)
        try:
            for segment in segments:
                inner = self._inner(folder, segment, make=make)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    def _inner(self, folder: int, segment: str, *, make: bool) -> int:
        """Open a directory in a directory."""
        made = False
        if make:
            with suppress(FileExistsError):
                os.mkdir(segment, mode=_DIRECTORY_MODE, dir_fd=folder)
                made = True
        try:
            inner = os.open(segment, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            if stat.S_ISLNK(os.stat(segment, dir_fd=folder, follow_symlinks=False).st_mode):
                raise StoreRefusedError(
                    f"{self.name}: expected no symbolic link at {segment}, got one; remove it"
                ) from None
            raise
        if made:
            os.fchmod(inner, _DIRECTORY_MODE)
        return inner

    @contextmanager
    def _locked(self) -> Generator[None]:
        with self._opened(_LOCK, make=True) as (folder, name):
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _refused(self, path: str, error: OSError) -> StoreRefusedError:
        return StoreRefusedError(f"{self.name}: {path}: {explained(error)}")


def explained(error: OSError) -> str:
    """Say what the system said, and what helps."""
    said = os.strerror(error.errno) if error.errno else "an error without a number"
    return f"expected to read and write there, got {said!r}; {_REMEDIES.get(error.errno or 0, 'check the disk')}"


def _replace(folder: int, name: str, body: bytes) -> None:
    """Write beside, then rename: a reader sees the old bytes or the new ones."""
    beside = f"{_BESIDE}{secrets.token_hex(8)}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fchmod(file.fileno(), _FILE_MODE)
            os.fsync(file.fileno())
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:  # a signal, too: no file stays beside
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=folder)
        raise
    os.fsync(folder)
