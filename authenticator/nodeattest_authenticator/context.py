"""The agent on one machine: its settings, its cache directory, and the two things done there under the lock or not.

``usable`` finds the credential that may be handed out; ``issue_and_store`` gets a new one. Promises: nothing that fails
a check is handed out; a credential that cannot be stored is still good for this answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from nodeattest_authenticator.config.settings import Settings, load
from nodeattest_authenticator.errors import Failure, Fate, Local
from nodeattest_authenticator.exec_plugin.fast_path import FAILURE_FILE, UnsafeFileError, config_identity
from nodeattest_authenticator.state import credential_cache, failure_backoff
from nodeattest_authenticator.state.credential_cache import Cached, Credential
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery.node.clock import Backoff, Clock, Deadline

__all__ = [
    "Agent",
    "issue_and_store",
    "refuse_while_paused",
    "remember",
    "remember_answer",
    "reopened",
    "usable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What every command works with."""

    settings: Settings
    config: str
    """Path of the configuration file."""
    identity: bytes
    """Its content's identity; a cached credential is bound to it."""
    storage: Storage
    clock: Clock
    random: Callable[[], float]
    tell: Callable[[str], None]
    """Says something to whoever reads the log."""

    @classmethod
    def open(
        cls,
        config: str,
        cache_dir: str,
        *,
        hostname: str,
        clock: Clock,
        random: Callable[[], float],
        tell: Callable[[str], None],
        create: bool = True,
    ) -> Self:
        """Read the configuration and open the cache directory, made if need be; raises ``Failure``."""
        try:
            identity = config_identity(config)  # before reading, so that a race makes it older, never newer
        except OSError:
            identity = b"none"  # and now load says why
        settings = load(config, hostname=hostname)
        storage = Storage(cache_dir, create=create)
        return cls(
            settings=settings,
            config=config,
            identity=identity,
            storage=storage,
            clock=clock,
            random=random,
            tell=tell,
        )


def reopened(agent: Agent) -> Agent:
    """Read the configuration again if it was replaced; raises ``Failure``, and OSError when it is gone."""
    identity = config_identity(agent.config)
    if identity == agent.identity:
        return agent
    return replace(agent, settings=load(agent.config, hostname=agent.settings.node_name), identity=identity)


def usable(agent: Agent) -> Cached | None:
    """Load the cached credential if it may be used; says why not. Raises ``Failure`` when only the clock is wrong."""
    try:
        found = credential_cache.load(agent.storage)
    except (UnsafeFileError, ValueError) as error:
        agent.tell(f"the cached credential is not used: {error}")
        return None
    now = agent.clock.now()
    if found is None or now >= found.credential.not_after:
        return None
    from nodeattest_authenticator.certificate import (
        Wanted,
        check_credential,
    )

    wanted = Wanted(node_name=agent.settings.node_name, ca_pem=agent.settings.every_ca_pem)
    try:
        check_credential(found.credential, wanted, now=now)
    except Failure as failure:
        if failure.reason == Local.CLOCK_OFF:
            raise
        agent.tell(f"the cached credential is not used: {failure.message}")
        return None
    return found


def refuse_while_paused(agent: Agent, *, name: str = FAILURE_FILE) -> None:
    """Repeat the last refusal while its pause lasts; raises ``Failure``."""
    last = failure_backoff.load(agent.storage, agent.identity, name=name)
    left = last.until - agent.clock.now() if last is not None else 0
    if last is not None and 0 < left <= failure_backoff.LONGEST:
        said = last.text.removeprefix(f"{last.reason}: ")
        raise Failure(last.reason, f"still refused: {said}", remedy=f"the next attempt is in {left:.0f} s")


def issue_and_store(
    agent: Agent, current: Credential | None, deadline: Deadline, *, call: tuple[bytes, str] | None = None
) -> Cached:
    """Get a new credential and store it; ``current`` is the valid one to be renewed. Hold the lock.

    ``call`` is the exec info and its version to be answered warm from now on. Raises ``Failure``, which is remembered
    with its pause.
    """
    from nodeattest_authenticator.enrollment.issue import issue
    from nodeattest_authenticator.state.pending_request import StoredDrafts
    from nodeattest_authenticator.transport.probe import reachable

    drafts = StoredDrafts(agent.storage, used_key_pem=current.key_pem if current else None)
    try:
        settings = reachable(agent.settings, deadline, agent.tell)
        credential = issue(settings, agent.storage, current, drafts=drafts, deadline=deadline, random=agent.random)
    except Failure as failure:
        if failure.fate is not Fate.USAGE:
            remember(agent, failure, current)
        raise
    _tell_of_older_evidence(agent)
    made = Cached(credential=credential, identity=agent.identity)
    if call is not None:
        made = made.with_answer(*call)
    try:
        credential_cache.save(agent.storage, made)
        failure_backoff.forget(agent.storage)
        drafts.discard()
    except OSError as error:
        # The draft stays: the next attempt gets this very certificate again.
        agent.tell(f"the credential is good but cannot be stored: {error.strerror}")
    return made


def _tell_of_older_evidence(agent: Agent) -> None:
    """Say so when the controller is older than this agent: nobody else sees that this was a node's second choice."""
    from nodeattest_authenticator.state.evidence_version_store import StoredAgreement

    agreed, provider = StoredAgreement(agent.storage, agent.settings).load(), agent.settings.provider
    if agreed is not None:
        agent.tell(
            f"the certificate was got with evidence {provider}/v{agreed.version}, because the controller refused "
            f"{provider}/v{agreed.newest}; upgrade the controller"
        )


def remember_answer(agent: Agent, cached: Cached, info: bytes, api_version: str) -> None:
    """Let the warm path serve this exec info from now on. Hold the lock."""
    if cached.has_answer(info) and cached.identity == agent.identity:
        return
    answers = cached.answers if cached.identity == agent.identity else ()
    with contextlib.suppress(OSError):  # then the next call is not warm
        bound = replace(cached, identity=agent.identity, answers=answers)
        credential_cache.save(agent.storage, bound.with_answer(info, api_version))


def remember(agent: Agent, failure: Failure, current: Credential | None, *, name: str = FAILURE_FILE) -> None:
    """Write a failure down with its pause; ``current`` is what is still valid. Hold the lock."""
    now, pause = agent.clock.now(), failure_backoff.FIRST
    if current is not None:
        # Several attempts must fit into what is left of the certificate's life.
        usual = failure_backoff.RENEWAL.denied
        bounded = Backoff(usual.first, min(usual.longest, (current.not_after - now) / 8))
        pause = failure_backoff.Pause(temporary=bounded, denied=bounded)
    with contextlib.suppress(OSError):
        failure_backoff.remember(
            agent.storage, agent.identity, failure, pause=pause, now=now, random=agent.random, name=name
        )
