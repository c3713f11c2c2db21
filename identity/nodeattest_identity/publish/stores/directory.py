"""A directory that some web server serves: each object a file.

Promises: a file is replaced by one rename after its bytes are on the disk; readable for everybody (0644, directories
0755), because another user's web server reads it. Writers exclude each other by a lock, so of two who read the same one
gets ``LostRace``. Symbolic links below the directory are not followed.
Leaves to others: content types and Cache-Control, which the web server sets.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nodeattest_identity.publish.errors import LostRace, StoreRefused
from nodeattest_identity.publish.store import MAX_OBJECT, Stored

__all__ = ["DirectoryStore", "explained"]

_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755
_LOCK: Final = ".nodeattest/lock"
_OWNER: Final = "run as the owner of the directory, or correct owner and mode"
_ROOM: Final = "make room on that disk"
_WRITABLE: Final = "mount it writable"
_IN_THE_WAY: Final = "what stands there is of another kind: remove it"
_REMEDIES: Final = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: _WRITABLE,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.ELOOP: "what stands there is a symbolic link: remove it",
}
_BESIDE: Final = ".nodeattest-"
"""How files begin that are being written."""


class DirectoryStore:
    """A directory, which must exist; implements ``Store``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.name: Final = f"dir:{root}"

    async def read(self, path: str) -> Stored | None:
        """Read a file."""
        return await asyncio.to_thread(self._read, path)

    async def write(
        self,
        path: str,
        body: bytes,
        *,
        content_type: str,  # noqa: ARG002 - the web server's matter
        cache_control: str,  # noqa: ARG002 - the same
        version: str | None,
    ) -> None:
        """Replace a file."""
        await asyncio.to_thread(self._write, path, body, version)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _read(self, path: str) -> Stored | None:
        try:
            if not self._root.is_dir():
                raise StoreRefused(f"{self.name}: expected a directory, got none; make it, or mount it first")
            file = os.open(self._inside(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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
            raise StoreRefused(f"{self.name}: {path}: expected at most {MAX_OBJECT} bytes, got more")
        return Stored(body=body, version=hashlib.sha256(body).hexdigest())

    def _write(self, path: str, body: bytes, version: str | None) -> None:
        try:
            target = self._inside(path, make=True)
            with self._locked():
                found = self._read(path)
                if (None if found is None else found.version) != version:
                    raise LostRace(f"{self.name}: {path} was written by somebody else meanwhile")
                for left in target.parent.glob(f"{_BESIDE}*"):  # by a run that was killed: the lock is ours
                    left.unlink()
                _replace(target, body)
        except OSError as error:
            raise self._refused(path, error) from None

    def _inside(self, path: str, *, make: bool = False) -> Path:
        """Go down segment by segment, through directories that are no links."""
        folder = self._root
        for segment in path.split("/")[:-1]:
            folder /= segment
            if make:
                with suppress(FileExistsError):
                    folder.mkdir(mode=_DIRECTORY_MODE)
                    folder.chmod(_DIRECTORY_MODE)
            if folder.is_symlink():
                raise StoreRefused(f"{self.name}: expected no symbolic link at {folder.name}, got one; remove it")
        return folder / path.rpartition("/")[2]

    @contextmanager
    def _locked(self) -> Generator[None]:
        lock = os.open(self._inside(_LOCK, make=True), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _refused(self, path: str, error: OSError) -> StoreRefused:
        return StoreRefused(f"{self.name}: {path}: {explained(error)}")


def explained(error: OSError) -> str:
    """Say what the system said, and what helps."""
    said = os.strerror(error.errno) if error.errno else "an error without a number"
    return f"expected to read and write there, got {said!r}; {_REMEDIES.get(error.errno or 0, 'look at the disk')}"


def _replace(target: Path, body: bytes) -> None:
    """Write beside, then rename: a reader sees the old bytes or the new ones."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=_BESIDE)
    beside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fchmod(file.fileno(), _FILE_MODE)
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
