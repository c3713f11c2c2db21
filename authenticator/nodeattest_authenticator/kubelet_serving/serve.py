"""One call that leaves a good serving certificate on disk and asks for a new one only where need be.

Promises: a certificate that is valid for the wanted names and not due costs no request; a new one is asked for by the
node's own certificate, never by a bootstrap token, and stored only when it passed every check; while that fails the old
file stays as it is. Failures are remembered as those of the client's certificate are, in a file of their own, and the
lock is another too: kubelet's credential never waits for this.
Source: docs/serving.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from nodeattest_authenticator.context import Agent, refuse_while_paused, remember, usable
from nodeattest_authenticator.errors import Failure, Fate, Local
from nodeattest_authenticator.kubelet_serving.names import Names, wanted_names
from nodeattest_authenticator.kubelet_serving.serving_file import FILE_NAME, ServingFile
from nodeattest_authenticator.state import failure_backoff
from nodeattest_authenticator.state.credential_cache import Cached, Credential
from nodeattest_authenticator.state.lock import exclusive
from nodeattest_discovery.node.clock import Deadline

__all__ = ["FAILURE_FILE", "Served", "file_of", "identity_of", "serve", "stored"]

FAILURE_FILE: Final = "serving.failure"
_LOCK_FILE: Final = "serving.lock"
_DRAFT_FILE: Final = "serving.draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is on disk now."""

    credential: Credential
    names: Names
    is_new: bool


def serve(agent: Agent) -> Served:
    """See to it that a good certificate is on disk; raises ``Failure``.

    1. The one that is there will do, or
    2. another process is asking for one, which then will do, or
    3. a new one is asked for, unless that was refused a moment ago.
    """
    if agent.settings.provider == "insecure":
        raise _no_serving()
    with ServingFile(file_of(agent)) as file:
        # 1
        found = stored(agent, file)
        try:
            names = wanted_names(agent.settings)
        except Failure:
            if found is None or _is_due(agent, found):
                raise
            names = found.names  # the network is down; nothing is known against the certificate
        agent = replace(agent, identity=identity_of(agent, names))
        if _will_do(agent, found, names) is None:
            deadline = Deadline.after(agent.clock, agent.settings.timeout_seconds)
            with exclusive(agent.storage, deadline, name=_LOCK_FILE):
                # 2
                found = stored(replace(agent, tell=_already_told), file)
                return _will_do(agent, found, names) or _renewed(agent, file, found, names, deadline)  # 3
    if found is None:
        raise AssertionError("what is not there does not do")
    return found


def stored(agent: Agent, file: ServingFile) -> Served | None:
    """Load the certificate on disk if it is of use, for whatever names; says why not. Raises ``Failure``."""
    try:
        cached = file.load()
    except ValueError as error:
        agent.tell(f"the stored serving certificate is not used: {error}")
        return None
    now = agent.clock.now()
    if cached is None or now >= cached.credential.not_after:
        return None
    from nodeattest_authenticator import certificate

    try:
        names = Names(*(tuple(kind) for kind in certificate.names_of(cached.credential.certificate_pem)))
        wanted = certificate.Wanted(node_name=agent.settings.node_name, ca_pem=agent.settings.every_ca_pem, names=names)
        certificate.check_credential(cached.credential, wanted, now=now)
    except (Failure, ValueError) as error:
        if isinstance(error, Failure) and error.reason == Local.CLOCK_OFF:
            raise
        agent.tell(f"the stored serving certificate is not used: {error}")
        return None
    return Served(credential=cached.credential, names=names, is_new=False)


def file_of(agent: Agent) -> str:
    """Tell where the certificate is kept."""
    configured = agent.settings.serving.file if agent.settings.serving else None
    return configured or f"{agent.storage.path}/{FILE_NAME}"


def identity_of(agent: Agent, names: Names) -> bytes:
    """Name configuration and names: a refusal is remembered for these, other ones deserve an attempt at once."""
    return agent.identity + b"." + hashlib.sha256(str(names).encode()).hexdigest()[:16].encode()


def _will_do(agent: Agent, found: Served | None, names: Names) -> Served | None:
    if found is None or _is_due(agent, found):
        return None
    if found.names != names:
        agent.tell(f"the serving certificate is for {found.names}; wanted is one for {names}")
        return None
    return found


def _is_due(agent: Agent, found: Served) -> bool:
    return agent.clock.now() >= found.credential.renew_at


def _renewed(agent: Agent, file: ServingFile, found: Served | None, names: Names, deadline: Deadline) -> Served:
    refuse_while_paused(agent, name=FAILURE_FILE)
    current = found.credential if found else None
    client = usable(agent)
    if client is None:
        raise _no_client(agent)
    from nodeattest_authenticator.enrollment.issue import issue_serving
    from nodeattest_authenticator.state.pending_request import StoredDrafts
    from nodeattest_authenticator.transport.probe import reachable

    drafts = StoredDrafts(agent.storage, used_key_pem=current.key_pem if current else None, name=_DRAFT_FILE)
    try:
        file.check_room()
        credential = issue_serving(
            reachable(agent.settings, deadline, agent.tell),
            agent.storage,
            client.credential,
            names,
            drafts=drafts,
            deadline=deadline,
            random=agent.random,
        )
        file.save(Cached(credential=credential, identity=agent.identity))
    except Failure as failure:
        if failure.fate is not Fate.USAGE:
            remember(agent, failure, current, name=FAILURE_FILE)
        raise
    failure_backoff.forget(agent.storage, name=FAILURE_FILE)
    drafts.discard()
    return Served(credential=credential, names=names, is_new=True)


def _already_told(_message: str) -> None:
    """Swallow what is wrong with the file: it was told before the wait."""


def _no_serving() -> Failure:
    return Failure(
        Local.CONFIGURATION_INVALID,
        "the insecure provider has no serving certificates",
        remedy="use another provider, or kubelet's own serverTLSBootstrap",
        fate=Fate.USAGE,
    )


def _no_client(agent: Agent) -> Failure:
    return Failure(
        Local.CLIENT_CERTIFICATE_MISSING,
        f"{agent.storage.path} holds no valid client certificate, by which the node asks",
        remedy="start kubelet, which gets one, or run kubelet-authenticator join; see kubelet-authenticator status",
        fate=Fate.TEMPORARY,
    )
