"""Renews the certificate in a detached process while the plugin returns the old one.

client-go holds a lock that blocks every request of kubelet while the plugin runs, so the plugin must not wait. The
detached process closes the caller's pipes, because client-go reads until they are closed. It holds the lock, and gives
up at the deadline. If the cluster was discovered, a child process refreshes it first, so that its failures cannot
affect the renewal.
Source: client-go plugin/pkg/client/auth/exec/exec.go.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from nodeattest_authenticator import watchdog
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.enrollment.issue import issue_and_store
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.storage import exclusive_if_free
from nodeattest_discovery.node.clock import Deadline

LOG_FILE: Final = "renewal.log"
_LOG_LIMIT: Final = 64 << 10
"""Bytes after which the log is truncated."""
_SOON: Final = 10.0
"""Seconds after which client-go asks again, plus up to half as much jitter."""
_REFRESH_LIMIT: Final = 10
"""Seconds for the refresh before a renewal."""
_DESCRIPTORS: Final = 1024
"""The highest inherited descriptor to close."""


def spawn(context: AgentContext, credential: CachedCredential) -> float:
    """Start a renewal unless a failure's pause lasts. Return when the client should ask again (epoch seconds)."""
    now = context.clock.now()
    last = context.backing_off()
    if last is not None:
        ask_again = last.until + _SOON / 2 * context.random()
    else:
        _detach(context, lambda: run(context, guard=watchdog.start))
        ask_again = now + _SOON + _SOON / 2 * context.random()
    return min(ask_again, credential.not_after)


def run(context: AgentContext, *, guard: Callable[[int], None] | None = None) -> None:
    """Renew the credential if it is still due and no other process renews it. Failures are logged and stored.

    ``guard`` starts a watchdog with a limit in seconds.
    """
    with exclusive_if_free(context.storage) as held:
        found = context.load_valid_credential() if held else None
        if found is None or context.clock.now() < found.credential.renew_at:
            return
        if not _has_room(context):
            # Without the stored pause, every call would send a request.
            context.log("the renewal is postponed: the cache directory is not writable")
            return
        context = _refreshed(context)
        if guard is not None:
            guard(context.settings.timeout_seconds)
        deadline = Deadline.after(context.clock, context.settings.timeout_seconds)
        try:
            issue_and_store(context, found.credential, deadline)
        except AgentError as failure:
            context.log(f"the renewal failed: {failure}")


def _refreshed(context: AgentContext) -> AgentContext:
    """Refresh a discovered cluster and return the context with the new configuration. The caller holds the lock."""
    if context.settings.discovery is None:
        return context
    try:
        child = os.fork()
    except OSError as error:  # EAGAIN, ENOMEM
        context.log(f"the refresh before the renewal failed: cannot start a process: {error.strerror}")
        return context
    if not child:
        _refresh(context)
    os.waitpid(child, 0)
    try:
        return context.reload_config()
    except (AgentError, OSError):
        return context


def _refresh(context: AgentContext) -> None:
    try:
        watchdog.start(_REFRESH_LIMIT)
        from nodeattest_authenticator.refresh import run_locked

        said = run_locked(context, limit=_REFRESH_LIMIT)
        if said != "nothing changed":
            context.log(said)
    except AgentError as failure:
        context.log(f"the refresh before the renewal failed: {failure}")
    except BaseException as error:  # noqa: BLE001 - the process must end here
        context.log(f"the refresh before the renewal failed: {type(error).__name__}")
    finally:
        os._exit(0)


def _has_room(context: AgentContext) -> bool:
    try:
        context.storage.check_room()
    except OSError:
        return False
    return True


def _detach(context: AgentContext, work: Callable[[], None]) -> None:
    """Run ``work`` in a grandchild in its own session, and return at once.

    If no process can be started (fork(2): EAGAIN, ENOMEM), the next call tries again.
    """
    watchdog.stop()
    try:
        child = os.fork()
    except OSError as error:
        context.log(f"the renewal is postponed: cannot start a process: {error.strerror}")
        return
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _redirect(context)
            work()
    except OSError as error:
        context.log(f"the renewal is postponed: {error.strerror}")
    finally:
        os._exit(0)


def _redirect(context: AgentContext) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        log = os.open(LOG_FILE, flags, 0o600, dir_fd=context.storage.directory)
        if os.fstat(log).st_size > _LOG_LIMIT:
            os.ftruncate(log, 0)
    except OSError:
        log = null
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, context.storage.directory)
    os.closerange(context.storage.directory + 1, _DESCRIPTORS)
