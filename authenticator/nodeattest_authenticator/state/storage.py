"""The private cache directory (0700, files 0600), atomic writes, and its lock.

Readers see the old or the new content, after a durable write even after a power cut. Writers hold the lock, so one
temporary name is enough. The lock is flock(2) on a file, which the kernel releases when the holder dies. The file is
never removed, because then two processes could hold different locks of the same name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Self

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.state.cache_files import UnsafeFileError, open_directory, read_private
from nodeattest_discovery.node.clock import Deadline

_PROBE_SIZE: Final = 32 << 10
"""Bytes, more than a credential file has."""


class Storage:
    """The cache directory. All access is relative to its descriptor. Raises ``AgentError`` if it is unsafe."""

    def __init__(self, path: str, *, create: bool = True) -> None:
        self.path = path
        try:
            self.directory = self._open(create=create)
        except UnsafeFileError as error:
            remedy = f"make {path} a directory of the user who runs kubelet, mode 0700"
            raise AgentError(AgentReason.CACHE_UNSAFE, str(error), remedy=remedy) from None
        except OSError as error:
            remedy = "choose another directory with --cache-dir, or create it with mode 0700"
            raise AgentError(AgentReason.CACHE_UNSAFE, f"{path}: {error.strerror}", remedy=remedy) from None

    def _open(self, *, create: bool) -> int:
        try:
            return open_directory(self.path)
        except FileNotFoundError:
            if not create:
                raise
        make_folders(self.path, 0o700, 0o700)
        return open_directory(self.path)

    def close(self) -> None:
        """Close the directory."""
        os.close(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, name: str) -> bytes | None:
        """Read a file. Return None if it is absent. Raises ``UnsafeFileError`` if other users can access it."""
        try:
            return read_private(self.directory, name)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a file atomically; ``durable`` syncs it to disk. Raises OSError. The caller holds the lock."""
        write_atomically(name, data, mode=0o600, durable=durable, directory=self.directory)

    def check_room(self, name: str = "probe") -> None:
        """Raise OSError if a credential cannot be stored now."""
        self.write(name, bytes(_PROBE_SIZE), durable=False)
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a file if it exists. The caller holds the lock."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.directory)


def write_atomically(name: str, data: bytes, *, mode: int, durable: bool = True, directory: int | None = None) -> None:
    """Write a temporary file and rename it. ``name`` is relative to ``directory`` if given."""
    temporary = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode, dir_fd=directory)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    if durable:
        _sync_directory(name, directory)


def _sync_directory(name: str, directory: int | None) -> None:
    if directory is not None:
        os.fsync(directory)
        return
    descriptor = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: str, mode: int, parent_mode: int) -> None:
    """Create a folder and its parents with these modes, regardless of the umask. Existing folders keep their modes."""
    if not path or os.path.isdir(path):
        return
    make_folders(os.path.dirname(path), parent_mode, parent_mode)
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.mkdir(path, mode)
        os.chmod(path, mode)


LOCK_FILE: Final = "lock"
_POLL: Final = 0.02
"""Seconds between attempts, because flock(2) has no timeout."""


@contextmanager
def exclusive(storage: Storage, deadline: Deadline, *, name: str = LOCK_FILE) -> Generator[None]:
    """Hold the lock. Raises ``AgentError`` if another process holds it until the deadline."""
    descriptor = _open(storage, name)
    try:
        while not _acquire(descriptor):
            if deadline.passed:
                raise AgentError(
                    AgentReason.LOCK_TIMEOUT,
                    f"another kubelet-authenticator has held {storage.path}/{name} for too long",
                    remedy="wait for its deadline, or kill it if it hangs",
                    kind=FailureKind.TEMPORARY,
                )
            deadline.waits_for("lock", f"another kubelet-authenticator, which holds {storage.path}/{name}")
            deadline.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_if_free(storage: Storage) -> Generator[bool]:
    """Try to take the lock. Yield whether it is held."""
    descriptor = _open(storage, LOCK_FILE)
    try:
        yield _acquire(descriptor)
    finally:
        os.close(descriptor)


def _open(storage: Storage, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600, dir_fd=storage.directory)
    except OSError as error:
        raise AgentError(
            AgentReason.CACHE_UNSAFE,
            f"{storage.path}/{name} cannot be opened: {error.strerror}",
            remedy="remove it if it is not a regular file, and free disk space if necessary",
        ) from None


def _acquire(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
