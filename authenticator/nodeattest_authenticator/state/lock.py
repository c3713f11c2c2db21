"""One process at a time: flock on a file of the cache directory, waited for no longer than the deadline.

The kernel drops the lock when its holder dies, however it dies. The file is never removed: removing it would let two
processes hold two different locks of the same name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery.node.clock import Deadline

LOCK_FILE: Final = "lock"
_POLL: Final = 0.02
"""Seconds between attempts: flock itself has no timeout, and an alarm signal would be the caller's business."""


@contextmanager
def exclusive(storage: Storage, deadline: Deadline, *, name: str = LOCK_FILE) -> Generator[None]:
    """Hold the lock; raises ``AgentError`` when another process keeps it until the deadline."""
    descriptor = _open(storage, name)
    try:
        while not _acquire(descriptor):
            if deadline.passed:
                raise AgentError(
                    AgentReason.LOCK_TIMEOUT,
                    f"another kubelet-authenticator has held {storage.path}/{name} for too long",
                    remedy="it gives up at its own deadline; if it hangs, end it",
                    kind=FailureKind.TEMPORARY,
                )
            deadline.waits_for("lock", f"another kubelet-authenticator, which holds {storage.path}/{name}")
            deadline.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_if_free(storage: Storage) -> Generator[bool]:
    """Hold the lock if nobody else does; yields whether it is held."""
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
            remedy="remove it if it is not a plain file, and make room if the disk is full",
        ) from None


def _acquire(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
