"""Follows a cluster whose CAs or API servers change.

Only the answer of a server that is trusted now counts, and only if the new server answers under the new CAs. Files are
written atomically in an order that survives a crash after any step: configuration, kubelet's CA file, credential,
kubeconfig. The credential is kept; it becomes due at once only if its CA is no longer the cluster's.
Out of scope: which servers to ask and what to trust (``nodeattest_discovery.node.by_token``).
Source: docs/discovery.md; companion proposals 000 and 001, "client caching and update".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator.api_client import probe
from nodeattest_authenticator.certificate import ca_pins, is_issued_by
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, refusal
from nodeattest_authenticator.formats import client_go
from nodeattest_authenticator.formats.client_go import MAX_CA_PEM, Cluster
from nodeattest_authenticator.settings import Discovery, Settings, settings_to_json
from nodeattest_authenticator.state import credential_cache, kubelet_files
from nodeattest_authenticator.state.cache_files import UnsafeFileError, fingerprint_of_config
from nodeattest_authenticator.state.storage import exclusive
from nodeattest_discovery.node.clock import Deadline
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Unavailable

if TYPE_CHECKING:
    from nodeattest_discovery.node.client import Found


_PROBE_LIMIT: Final = 5.0
"""Seconds for the connection to the new server."""


def run(context: AgentContext, *, limit: float) -> str:
    """Take the lock, refresh once and return what changed. Raises ``AgentError``."""
    with exclusive(context.storage, Deadline.after(context.clock, limit)):
        return run_locked(context.reload_config(), limit=limit)


def run_locked(context: AgentContext, *, limit: float) -> str:
    """Refresh once and return what changed. The caller holds the lock. Raises ``AgentError``."""
    changes = _refresh(context, limit)
    return f"{'; '.join(changes)}; restart kubelet to use it" if changes else "nothing changed"


def _refresh(context: AgentContext, limit: float) -> list[str]:
    section = context.settings.discovery
    if section is None:
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            "this node joined with a fixed server (join --server), so it has no discovery to refresh",
            remedy="join by discovery, or join again with the new server or CA file",
            kind=FailureKind.USAGE,
        )
    found = _ask(context, section, limit)
    before = context.config_fingerprint
    changes: list[str] = []
    if found is not None:
        new = _updated_cluster(context.settings, section, found)
        old = context.settings.cluster
        if new != old:
            _check_answers(context, new)
            context = _configured(context, section.after(old, new).with_servers(new.endpoint), new)
            changes = _differences(old, new)
    return changes + _follow(context, before)


def _ask(context: AgentContext, section: Discovery, limit: float) -> Found | None:
    from nodeattest_discovery.node.by_token import refresh
    from nodeattest_discovery.node.client import Environment

    try:
        return refresh(
            [endpoint.url for endpoint in section.servers],
            context.settings.ca_pem,
            Environment(clock=context.clock, log=context.log, limit=limit),
            tls_server_name=context.settings.cluster.tls_server_name,
            pin_server=section.pin_server,
        )
    except (Denied, Unavailable) as verdict:
        raise refusal(verdict) from None


def _updated_cluster(settings: Settings, section: Discovery, found: Found) -> Cluster:
    new = configured_cluster(found)
    if section.pin_server:
        return replace(settings.cluster, ca_pem=new.ca_pem)
    return new


def configured_cluster(found: Found) -> Cluster:
    """Return the cluster that discovery verified. Raises ``AgentError``."""
    try:
        endpoint = Endpoint.parse(found.info.server)
    except ValueError as error:
        said = f"cluster-info: expected the API server's URL: {error}"
        raise AgentError(AgentReason.CONFIGURATION_INVALID, said, remedy="see nodeattest cluster-info show") from None
    ca_pem = found.info.ca_pem
    if len(ca_pem) > MAX_CA_PEM:
        said = f"the cluster's CAs: expected at most {MAX_CA_PEM} bytes in PEM, got {len(ca_pem)}"
        raise AgentError(AgentReason.CONFIGURATION_INVALID, said, remedy="publish those of this cluster alone")
    return Cluster(endpoint=endpoint, tls_server_name=found.info.tls_server_name, ca_pem=ca_pem)


def _check_answers(context: AgentContext, new: Cluster) -> None:
    """Raise ``AgentError`` unless the new server answers under the new CAs, because a typo must not cost the fleet."""
    said = probe(new, Deadline.after(context.clock, _PROBE_LIMIT))
    if said is None:
        return
    raise AgentError(
        AgentReason.API_UNAVAILABLE,
        f"cluster-info names {new.endpoint.url} with the CAs {', '.join(ca_pins(new.ca_pem))}, which fails: {said}",
        remedy="nothing was changed; correct cluster-info or that server, and refresh again",
        kind=FailureKind.TEMPORARY,
    )


def _configured(context: AgentContext, section: Discovery, new: Cluster) -> AgentContext:
    """Write the configuration, which then holds both the previous and the new cluster."""
    settings = replace(context.settings, cluster=new, discovery=section)
    kubelet_files.write_private(context.config, settings_to_json(settings))
    return replace(context, settings=settings, config_fingerprint=fingerprint_of_config(context.config))


def _follow(context: AgentContext, before: bytes) -> list[str]:
    """Update the other files from the configuration and return which of kubelet's files changed.

    ``before``: the fingerprint of the previous configuration.
    """
    section = context.settings.discovery
    if section is None:
        return []
    written = [section.ca_file] if section.ca_file is not None and _ca_file(context, section.ca_file) else []
    _credential(context, before)
    if _kubeconfig(context, section.kubeconfig):
        written.append(section.kubeconfig)
    return [f"wrote {' and '.join(written)}"] if written else []


def _ca_file(context: AgentContext, path: str) -> bool:
    old = kubelet_files.read(path)
    if old is not None and not old.startswith(kubelet_files.MARK):
        context.log(f"{path} was not written by kubelet-authenticator and is left unchanged")
        return False
    return kubelet_files.write(path, context.settings.ca_pem, mode=kubelet_files.PUBLIC)


def _credential(context: AgentContext, before: bytes) -> None:
    """Bind the cached credential to the new configuration, so that the fast path can still serve it."""
    try:
        cached = credential_cache.load(context.storage)
    except (UnsafeFileError, ValueError):
        return  # the next call logs why it is not used
    if cached is None or cached.config_fingerprint == context.config_fingerprint:
        return
    ready = cached.responses if cached.config_fingerprint == before else ()
    responses = tuple(pair for pair in ready if _is_for(pair[0], context.settings))
    credential = cached.credential
    if context.settings.renewable and not is_issued_by(credential.certificate_pem, context.settings.ca_pem):
        credential = replace(credential, renew_at=min(credential.renew_at, int(context.clock.now())))
    try:
        credential_cache.save(
            context.storage,
            replace(cached, credential=credential, config_fingerprint=context.config_fingerprint, responses=responses),
        )
    except OSError as error:
        context.log(f"the cached credential cannot be stored for the new configuration: {error.strerror}")


def _kubeconfig(context: AgentContext, path: str) -> bool:
    old = kubelet_files.read(path)
    if old is None:
        return False  # join has not finished
    new = client_go.with_cluster(old, context.settings.cluster)
    if new is None:
        context.log(f"{path} was not written by kubelet-authenticator and is left unchanged")
        return False
    return kubelet_files.write_private(path, new)


def _is_for(info: bytes, settings: Settings) -> bool:
    try:
        client_go.check_cluster(client_go.parse_exec_info(info), settings.cluster, settings.previous_clusters)
    except AgentError:
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
