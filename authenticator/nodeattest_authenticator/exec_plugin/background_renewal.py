"""Renewal beside the running client: a detached process gets the new certificate while the old one is handed out.

client-go holds a lock that stalls every request of kubelet while the plugin runs, so the plugin does not wait. The
detached process holds none of the caller's pipes (client-go reads until they are closed), works under the lock, and
gives up at the deadline. Source: client-go plugin/pkg/client/auth/exec/exec.go.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from nodeattest_authenticator import watchdog
from nodeattest_authenticator.context import Agent, issue_and_store, usable
from nodeattest_authenticator.errors import Failure
from nodeattest_authenticator.state import failure_backoff
from nodeattest_authenticator.state.credential_cache import Credential
from nodeattest_authenticator.state.lock import exclusive_if_free
from nodeattest_discovery.node.clock import Deadline

__all__ = ["LOG_FILE", "begin", "run"]

LOG_FILE: Final = "renewal.log"
_LOG_LIMIT: Final = 64 << 10
"""Bytes after which the log starts afresh."""
_SOON: Final = 10.0
"""Seconds after which client-go is to ask for the result; up to half as much again as jitter."""
_PROBE_FILE: Final = "probe"
_PROBE_SIZE: Final = 32 << 10
"""Bytes: more than a credential file has."""
_DESCRIPTORS: Final = 1024
"""Descriptors that are closed; neither kubelet nor kubectl leaves one open on purpose."""


def _unguarded(_seconds: int) -> None:
    """Leave the process to its caller."""


def begin(agent: Agent, credential: Credential) -> float:
    """Start a renewal unless one failed just now; returns when the client should ask again (epoch seconds)."""
    now = agent.clock.now()
    last = failure_backoff.load(agent.storage, agent.identity)
    if last is not None and now < last.until <= now + failure_backoff.LONGEST:
        ask_again = last.until + _SOON / 2 * agent.random()
    else:
        _detach(agent, lambda: run(agent, guard=watchdog.start))
        ask_again = now + _SOON + _SOON / 2 * agent.random()
    return min(ask_again, credential.not_after)


def run(agent: Agent, *, guard: Callable[[int], None] = _unguarded) -> None:
    """Renew the credential if that is still wanted and nobody else is at it; failures are told and remembered.

    ``guard`` starts what ends this process if it hangs for so many seconds.
    """
    with exclusive_if_free(agent.storage) as held:
        found = usable(agent) if held else None
        if found is None or agent.clock.now() < found.credential.renew_at:
            return
        if not _has_room(agent):
            # Neither the new certificate nor the pause after a failure could be kept: each call would ask again.
            agent.tell("the renewal waits: nothing can be written to the cache directory")
            return
        agent = _refreshed(agent)
        guard(agent.settings.timeout_seconds)
        deadline = Deadline.after(agent.clock, agent.settings.timeout_seconds)
        try:
            issue_and_store(agent, found.credential, deadline)
        except Failure as failure:
            agent.tell(f"the renewal failed: {failure}")


def _refreshed(agent: Agent) -> Agent:
    """Follow the cluster first, where it was discovered: a renewal needs its present CAs and place."""
    if agent.settings.discovery is None:
        return agent
    from nodeattest_authenticator.cluster.refresh_subprocess import refreshed

    return refreshed(agent)


def _has_room(agent: Agent) -> bool:
    try:
        agent.storage.write(_PROBE_FILE, bytes(_PROBE_SIZE), durable=False)
        agent.storage.remove(_PROBE_FILE)
    except OSError:
        return False
    return True


def _detach(agent: Agent, work: Callable[[], None]) -> None:
    """Run ``work`` in a grandchild that belongs to init, in a Unix session of its own, and return at once.

    A system that has no process left (fork(2), EAGAIN and ENOMEM) costs this renewal, not the answer: the credential
    is still valid, and the next call tries again.
    """
    watchdog.stop()
    try:
        child = os.fork()
    except OSError as error:
        agent.tell(f"the renewal waits: no process can be started for it: {error.strerror}")
        return
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _redirect(agent)
            work()
    except OSError as error:
        agent.tell(f"the renewal waits: {error.strerror}")
    finally:
        os._exit(0)


def _redirect(agent: Agent) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        log = os.open(LOG_FILE, flags, 0o600, dir_fd=agent.storage.directory)
        if os.fstat(log).st_size > _LOG_LIMIT:
            os.ftruncate(log, 0)
    except OSError:
        log = null
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for descriptor in range(3, _DESCRIPTORS):
        if descriptor != agent.storage.directory:
            _close(descriptor)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return
