"""The one file that kubelet reads: certificate chain and key in PEM, below a line with the renewal moment.

It is laid out as the client's credential file is (``credential_format``), so one rename replaces certificate, key and
renewal moment together; readers of PEM skip the line (RFC 7468 §2), kubelet among them. Promises: the file is 0600,
whole whenever it is read, and survives a power cut; nothing is read or replaced that another program put there: a
symbolic link, another user's file, one that is no file of ours, or anything in a directory that others may write.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.credential_cache import CacheEntry
from nodeattest_authenticator.state.credential_format import MAGIC
from nodeattest_authenticator.state.private_files import UnsafeFileError, read_private
from nodeattest_authenticator.state.storage import OpenDirectory, write_atomically

FILE_NAME: Final = "serving.pem"
"""In the cache directory, where nothing else is configured."""
_OTHERS_WRITE: Final = 0o022
_PROBE_SIZE: Final = 32 << 10
"""Bytes: more than the file has."""


class ServingFile(OpenDirectory):
    """The file, by way of its directory, which is opened once."""

    def __init__(self, path: str) -> None:
        self.path = path
        folder, self._name = os.path.split(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.directory = os.open(folder, flags)
        except OSError as error:
            raise _unsafe(
                f"{folder}: {error.strerror}", "make it a directory, or configure another serving.file"
            ) from None
        info = os.fstat(self.directory)
        if info.st_uid not in {0, os.geteuid()} or info.st_mode & _OTHERS_WRITE:
            self.close()
            raise _unsafe(f"others may write to {folder}", "let it be root's or the agent's alone, mode 0755 or less")

    def load(self) -> CacheEntry | None:
        """Read it; None when it is absent. Raises ValueError when it is ours but unusable, ``AgentError`` otherwise."""
        try:
            info = os.stat(self._name, dir_fd=self.directory, follow_symlinks=False)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
                raise _unsafe(f"{self.path} is no plain file of this user", "remove it, or configure another file")
            if not self._is_ours():
                remedy = "move it away, or configure another file"
                raise _unsafe(f"{self.path} was not written by kubelet-authenticator", remedy)
            return credential_cache.parse(read_private(self.directory, self._name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unsafe(f"{self.path}: {error.strerror}", "let it be a file of the agent's user, mode 0600") from None
        except UnsafeFileError as error:  # others could read the key: a new one takes its place
            raise ValueError(str(error)) from None

    def _is_ours(self) -> bool:
        """Return whether it begins as our files do; an empty one is what a power cut may leave of one."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self._name, flags, dir_fd=self.directory)
        try:
            return os.read(descriptor, len(MAGIC)) in {b"", MAGIC}
        finally:
            os.close(descriptor)

    def check_room(self) -> None:
        """Make sure that a certificate could be stored, before one is asked for; raises ``AgentError``."""
        probe = f"{self._name}.probe"
        try:
            write_atomically(probe, bytes(_PROBE_SIZE), mode=0o600, durable=False, directory=self.directory)
            os.unlink(probe, dir_fd=self.directory)
        except OSError as error:
            raise self._not_stored(error) from None

    def save(self, cached: CacheEntry) -> None:
        """Replace it durably; raises ``AgentError`` and leaves the old one then. Hold the lock."""
        try:
            write_atomically(self._name, credential_cache.render(cached), mode=0o600, directory=self.directory)
        except OSError as error:
            raise self._not_stored(error) from None

    def _not_stored(self, error: OSError) -> AgentError:
        return AgentError(
            AgentReason.SERVING_FILE_UNSAFE,
            f"{self.path} cannot be written: {error.strerror}",
            remedy="make room on the disk; run the agent as the user who runs kubelet, mostly root",
            kind=FailureKind.TEMPORARY,
        )


def _unsafe(message: str, remedy: str) -> AgentError:
    return AgentError(AgentReason.SERVING_FILE_UNSAFE, message, remedy=remedy)
