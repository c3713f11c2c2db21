"""Following a cluster over its life: its CAs are replaced, its servers move.

Promises: only what a server that is trusted now says is believed, and it is obeyed only if the cluster answers there
and so; whatever is written appears whole, in an order in which a crash after any step leaves a node that works and a
next refresh that finishes: configuration, kubelet's CA file, credential, kubeconfig. The credential stays as it is: a
new one is due at once only where the CA that issued it is no longer the cluster's.
Leaves to ``nodeattest_discovery.node.refresh`` whom to ask and what to believe, to kubelet's next start what it reads
only then. Source: docs/discovery.md; companion proposals 000 and 001, "client caching and update".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator.certificate import ca_pins, is_issued_by
from nodeattest_authenticator.cluster import last_refresh
from nodeattest_authenticator.cluster.discover import cluster_of, environment_of
from nodeattest_authenticator.config.discovery import CLUSTER_INFO_FILE, Cluster, Discovery
from nodeattest_authenticator.config.settings import Settings, to_json
from nodeattest_authenticator.context import Agent, reopened
from nodeattest_authenticator.errors import Failure, Fate, Local, refusal
from nodeattest_authenticator.exec_plugin.fast_path import UnsafeFileError, config_identity
from nodeattest_authenticator.formats import exec_credential, kubeconfig
from nodeattest_authenticator.state import credential_cache, kubelet_files
from nodeattest_authenticator.state.lock import exclusive
from nodeattest_authenticator.transport.probe import fault_of
from nodeattest_discovery.node.clock import Deadline
from nodeattest_providers.errors import Denied, Unavailable

if TYPE_CHECKING:
    from nodeattest_discovery.node.result import Found

__all__ = ["run", "run_locked"]

_PROBE_LIMIT: Final = 5.0
"""Seconds for one look at the server that the cluster now names."""


def run(agent: Agent, *, limit: float) -> str:
    """Refresh once, for a person; returns what changed. Raises ``Failure``."""
    with exclusive(agent.storage, Deadline.after(agent.clock, limit)):
        return run_locked(reopened(agent), limit=limit)


def run_locked(agent: Agent, *, limit: float) -> str:
    """Refresh once and write down how it went. Hold the lock. Raises ``Failure``."""
    try:
        changes = _refresh(agent, limit)
    except Failure as failure:
        last_refresh.save(
            agent.storage, last_refresh.Last(at=int(agent.clock.now()), outcome="failed", text=str(failure))
        )
        raise
    said = "; ".join(changes) if changes else "nothing changed"
    outcome = "changed" if changes else "unchanged"
    last_refresh.save(agent.storage, last_refresh.Last(at=int(agent.clock.now()), outcome=outcome, text=said))
    return f"{said}; restart kubelet to use it" if changes else said


def _refresh(agent: Agent, limit: float) -> list[str]:
    section = agent.settings.discovery
    if section is None:
        raise Failure(
            Local.CONFIGURATION_INVALID,
            "this node was told its cluster (join --server), so there is nothing to ask",
            remedy="join by discovery, or join again with the new server or CA file",
            fate=Fate.USAGE,
        )
    found = _ask(agent, section, limit)
    step = _Step(agent, agent)
    changes: list[str] = []
    if found is not None:
        new = _news(agent.settings, section, found)
        old = agent.settings.cluster
        if new != old:
            _check_answers(agent, new)
            step = _Step(agent, _configured(agent, section.after(old, new).knowing(new.endpoint), new))
            changes = _differences(old, new)
    changes += step.follow()
    if found is not None:
        try:
            agent.storage.write(CLUSTER_INFO_FILE, found.kubeconfig.encode(), durable=False)
        except OSError:
            agent.tell("what was seen cannot be written down: the next refresh compares anew")
    return changes


def _ask(agent: Agent, section: Discovery, limit: float) -> Found | None:
    from nodeattest_discovery.node.refresh import refresh

    try:
        seen = agent.storage.read(CLUSTER_INFO_FILE)
    except UnsafeFileError:
        seen = None
    try:
        return refresh(
            [endpoint.url for endpoint in section.servers],
            agent.settings.ca_pem,
            None if seen is None else seen.decode("utf-8", "replace"),
            environment_of(agent.clock, agent.tell, limit),
            tls_server_name=agent.settings.tls_server_name,
            keeps_server=section.keeps_server,
        )
    except (Denied, Unavailable) as verdict:
        raise refusal(verdict) from None


def _news(settings: Settings, section: Discovery, found: Found) -> Cluster:
    new = cluster_of(found)
    if section.keeps_server:
        return replace(new, endpoint=settings.endpoint, tls_server_name=settings.tls_server_name)
    return new


def _check_answers(agent: Agent, new: Cluster) -> None:
    """Raise ``Failure`` unless a server answers at the new place under the new CAs: a slip must not cost the fleet."""
    said = fault_of(new, Deadline.after(agent.clock, _PROBE_LIMIT))
    if said is None:
        return
    raise Failure(
        Local.API_UNAVAILABLE,
        f"the cluster says: {new.endpoint.url}, with the CAs {', '.join(ca_pins(new.ca_pem))}; but there: {said}",
        remedy="nothing was changed; mend cluster-info or that server, and refresh again",
        fate=Fate.TEMPORARY,
    )


def _configured(agent: Agent, section: Discovery, new: Cluster) -> Agent:
    """Write the configuration, the first of the files: from here on it speaks for what was and what is."""
    settings = replace(
        agent.settings,
        endpoint=new.endpoint,
        tls_server_name=new.tls_server_name,
        ca_pem=new.ca_pem,
        discovery=section,
    )
    kubelet_files.write_private(agent.config, to_json(settings))
    return replace(agent, settings=settings, identity=config_identity(agent.config))


@dataclass(frozen=True, slots=True)
class _Step:
    """From one configuration to the next; both are the same where only files are to be brought up to date."""

    old: Agent
    new: Agent

    def follow(self) -> list[str]:
        """Bring everything else in line with the configuration; returns which of kubelet's files changed."""
        section = self.new.settings.discovery
        if section is None:
            return []
        written = [section.ca_file] if section.ca_file is not None and self._ca_file(section.ca_file) else []
        self._credential()
        if self._kubeconfig(section.kubeconfig):
            written.append(section.kubeconfig)
        return [f"wrote {' and '.join(written)}"] if written else []

    def _ca_file(self, path: str) -> bool:
        old = kubelet_files.read(path)
        if old is not None and not old.startswith(kubelet_files.MARK):
            self.new.tell(f"{path} was not written by kubelet-authenticator and stays as it is")
            return False
        return kubelet_files.write(path, self.new.settings.ca_pem, mode=kubelet_files.PUBLIC)

    def _credential(self) -> None:
        """Bind the cached credential to the new configuration, so that the next call is as warm as the last."""
        agent = self.new
        try:
            cached = credential_cache.load(agent.storage)
        except (UnsafeFileError, ValueError):
            return  # the next call says why it is not used
        if cached is None or cached.identity == agent.identity:
            return
        ready = cached.answers if cached.identity == self.old.identity else ()
        answers = tuple(pair for pair in ready if _is_for(pair[0], agent.settings))
        credential = cached.credential
        if agent.settings.renewable and not is_issued_by(credential.certificate_pem, agent.settings.ca_pem):
            credential = replace(credential, renew_at=min(credential.renew_at, int(agent.clock.now())))
        try:
            credential_cache.save(
                agent.storage, replace(cached, credential=credential, identity=agent.identity, answers=answers)
            )
        except OSError as error:
            agent.tell(f"the cached credential cannot be bound anew, so the next call is not warm: {error.strerror}")

    def _kubeconfig(self, path: str) -> bool:
        old = kubelet_files.read(path)
        if old is None:
            return False  # join was told not to wait, or has not come so far
        new = kubeconfig.moved(old, self.new.settings)
        if new is None:
            self.new.tell(f"{path} was not written by kubelet-authenticator and stays as it is")
            return False
        return kubelet_files.write_private(path, new)


def _is_for(info: bytes, settings: Settings) -> bool:
    try:
        exec_credential.check_cluster(exec_credential.parse(info), settings)
    except Failure:
        return False
    return True


def _differences(old: Cluster, new: Cluster) -> list[str]:
    said: list[str] = []
    if new.endpoint != old.endpoint:
        said.append(f"the cluster moved from {old.endpoint.url} to {new.endpoint.url}")
    if new.tls_server_name != old.tls_server_name:
        said.append(f"its certificate's name is {new.tls_server_name or new.endpoint.host}")
    before, after = ca_pins(old.ca_pem), ca_pins(new.ca_pem)
    for verb, pins, others in (("trusts", after, before), ("no longer trusts", before, after)):
        fresh = [pin for pin in pins if pin not in others]
        if fresh:
            said.append(f"the node {verb} the CA {', '.join(fresh)}")
    return said or ["the order or the number of its CA certificates changed"]
