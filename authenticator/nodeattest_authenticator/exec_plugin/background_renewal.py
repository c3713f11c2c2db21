"""Background renewal: a detached process gets the new certificate while the old one is handed out.

client-go holds a lock that stalls every request of kubelet while the plugin runs, so the plugin does not wait. The
detached process holds none of the caller's pipes (client-go reads until they are closed), works under the lock, and
gives up at the deadline. When it is due: ``enroll.renewal_moment``; the pauses after failures:
``state.failure_backoff``. Where the cluster was discovered, a refresh comes first, in a process of its own, so that
none of its failures can affect the renewal; a fork must not find a second thread, hence no watchdog runs then.
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
from nodeattest_authenticator.state import failure_backoff
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.storage import exclusive_if_free
from nodeattest_discovery.node.clock import Deadline

LOG_FILE: Final = "renewal.log"
_LOG_LIMIT: Final = 64 << 10
"""Bytes after which the log starts afresh."""
_SOON: Final = 10.0
"""Seconds after which client-go is to ask for the result; up to half as much again as jitter."""
_REFRESH_LIMIT: Final = 10
"""Seconds; a certificate is renewed days before its end, but a person may watch."""
_DESCRIPTORS: Final = 1024
"""Descriptors that are closed; neither kubelet nor kubectl leaves one open on purpose."""


def spawn(context: AgentContext, credential: CachedCredential) -> float:
    """Start a renewal unless one failed just now; returns when the client should ask again (epoch seconds)."""
    now = context.clock.now()
    last = failure_backoff.load(context.storage, context.config_fingerprint)
    if last is not None and now < last.until <= now + failure_backoff.MAX_BACKOFF:
        ask_again = last.until + _SOON / 2 * context.random()
    else:
        _detach(context, lambda: run(context, guard=watchdog.start))
        ask_again = now + _SOON + _SOON / 2 * context.random()
    return min(ask_again, credential.not_after)


def run(context: AgentContext, *, guard: Callable[[int], None] | None = None) -> None:
    """Renew the credential if it is still due and no other process does; failures are logged and remembered.

    ``guard`` starts what ends this process if it hangs for so many seconds.
    """
    with exclusive_if_free(context.storage) as held:
        found = context.load_valid_credential() if held else None
        if found is None or context.clock.now() < found.credential.renew_at:
            return
        if not _has_room(context):
            # Neither the new certificate nor the pause after a failure could be kept: each call would ask again.
            context.log("the renewal waits: nothing can be written to the cache directory")
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
    """Follow a discovered cluster first; returns the agent under what is configured then. Hold the lock."""
    if context.settings.discovery is None:
        return context
    try:
        child = os.fork()
    except OSError as error:  # EAGAIN, ENOMEM: the renewal continues with what is known
        context.log(f"the cluster was not asked what changed: no process can be started: {error.strerror}")
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
        from nodeattest_authenticator.cluster.refresh import run_locked

        said = run_locked(context, limit=_REFRESH_LIMIT)
        if said != "nothing changed":
            context.log(said)
    except AgentError as failure:
        context.log(f"the cluster was not asked what changed: {failure}")
    except BaseException as error:  # noqa: BLE001 - a defect here must not look like one of the renewal
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
    """Run ``work`` in a grandchild that belongs to init, in a Unix session of its own, and return at once.

    A system that has no process left (fork(2), EAGAIN and ENOMEM) costs this renewal, not the answer: the credential
    is still valid, and the next call tries again.
    """
    watchdog.stop()
    try:
        child = os.fork()
    except OSError as error:
        context.log(f"the renewal waits: no process can be started for it: {error.strerror}")
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
        context.log(f"the renewal waits: {error.strerror}")
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
