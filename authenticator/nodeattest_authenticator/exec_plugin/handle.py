"""The exec credential call off the warm path: check the call, find or get a credential, answer.

With a certificate that is still valid nothing is waited for; without one, one process asks and the others wait for it.
"""

from __future__ import annotations

from dataclasses import replace

from nodeattest_authenticator.context import Agent, issue_and_store, refuse_while_paused, remember_answer, usable
from nodeattest_authenticator.exec_plugin import fast_path
from nodeattest_authenticator.formats import exec_credential
from nodeattest_authenticator.state.credential_cache import Cached
from nodeattest_authenticator.state.lock import exclusive, exclusive_if_free
from nodeattest_discovery.node.clock import Deadline

__all__ = ["credential"]


def credential(agent: Agent, info: bytes | None) -> bytes:
    """Answer one call with an ExecCredential; raises ``Failure``."""
    call = exec_credential.parse(info)
    exec_credential.check_cluster(call, agent.settings)
    raw = info or b""
    found = usable(agent)
    if found is None:
        return _first(agent, raw, call.api_version)
    if agent.settings.renewable and agent.clock.now() >= found.credential.renew_at:
        from nodeattest_authenticator.exec_plugin import background_renewal

        return found.credential.answer(call.api_version, expires_at=background_renewal.begin(agent, found.credential))
    with exclusive_if_free(agent.storage) as held:
        if held:
            remember_answer(agent, found, raw, call.api_version)
    return found.credential.answer(call.api_version)


def _first(agent: Agent, info: bytes, api_version: str) -> bytes:
    deadline = Deadline.after(agent.clock, agent.settings.timeout_seconds)
    refuse_while_paused(agent)
    with exclusive(agent.storage, deadline):
        # Whoever held the lock before may have finished the work.
        ready = _ready(agent, info)
        if ready is not None:
            return ready
        refuse_while_paused(agent)
        quiet = replace(agent, tell=_already_told)
        found: Cached = usable(quiet) or issue_and_store(agent, None, deadline, call=(info, api_version))
        remember_answer(agent, found, info, api_version)
        return found.credential.answer(api_version)


def _already_told(_message: str) -> None:
    """Swallow what is wrong with the cache: it was told before the wait."""


def _ready(agent: Agent, info: bytes) -> bytes | None:
    found = fast_path.lookup(agent.storage.path, agent.config, info, agent.clock.now())
    return found[1] if found is not None and found[0] == 0 else None
