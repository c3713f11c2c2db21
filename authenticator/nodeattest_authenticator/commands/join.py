"""Joins a cluster: finds it, writes configuration and token, gets the first certificate, writes kubelet's files.

Nothing is written or sent before all arguments are checked. Each file is written atomically, and the kubeconfig last,
when the credential works. Running join again changes nothing, or continues an interrupted join.
Out of scope: verification of a discovered cluster (``nodeattest_discovery.node``, imported only when needed).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from nodeattest_authenticator import console
from nodeattest_authenticator.api_client import ApiServerClient, select_server
from nodeattest_authenticator.commands.flags import ByFile, ByToken, ClusterSource, StaticCluster, wrong
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.enrollment.issue import attestor_of, by_certificate, issue_and_store
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, refusal
from nodeattest_authenticator.formats import client_go, pem
from nodeattest_authenticator.formats.client_go import Cluster
from nodeattest_authenticator.settings import TOKEN_FILE, Discovery, Settings, load, settings_to_json
from nodeattest_authenticator.state import kubelet_files
from nodeattest_authenticator.state.cache_files import FAILURE_FILE
from nodeattest_authenticator.state.credential_cache import CacheEntry
from nodeattest_authenticator.state.storage import Storage, exclusive
from nodeattest_discovery import token as bootstrap
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Unavailable

if TYPE_CHECKING:
    from nodeattest_discovery.node.client import Environment, Found


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The parsed command line."""

    settings: Settings
    """Server and CAs are placeholders unless they were given on the command line."""
    way: ClusterSource
    token: BootstrapToken | None = field(default=None, repr=False)
    """For the first certificate. None if the discovery file may hold one, or if the node renews."""
    config: str
    cache_dir: str
    kubeconfig: str
    command: str
    """The absolute path of kubelet-authenticator, for the kubeconfig."""
    kubelet_ca_file: str | None = None
    """Where to write the cluster's CAs, if anywhere."""
    kubelet_config: str | None = None
    """Where to write kubelet's configuration, if anywhere."""
    replace_kubelet_files: bool = False
    replace_kubeconfig: bool = False
    renew: bool = False
    """Attest again even if the certificate is still valid."""


def join(options: JoinOptions, clock: Clock) -> CacheEntry:
    """Join and return the credential. Raises ``AgentError``."""
    with attestor_of(options.settings.provider, options.settings.provider_settings):
        _check_files(options)
    settings, token = _locate(options, clock)
    ca_file, replaces = options.kubelet_ca_file, options.replace_kubelet_files
    # Another CA file is refused unless it has the cluster's CAs: ``--ca-file`` may name the same file.
    keeps_ca_file = ca_file is not None and kubelet_files.has_cas(ca_file, settings.ca_pem)
    if ca_file is not None and not keeps_ca_file:
        kubelet_files.check(ca_file, flag="--kubelet-ca-file", replace=replaces)
    seconds = settings.timeout_seconds
    with Storage(options.cache_dir) as storage, exclusive(storage, Deadline.after(clock, seconds)):
        _write_inputs(options, storage, settings, token)
    found = _first_credential(options, clock)
    kubelet_config = _kubelet_config(options, settings, found, Deadline.after(clock, seconds))
    # The lock is held because refresh and another join write the same files.
    with Storage(options.cache_dir) as storage, exclusive(storage, Deadline.after(clock, seconds)):
        if ca_file is not None and (replaces or not keeps_ca_file):
            kubelet_files.write(ca_file, settings.ca_pem, mode=kubelet_files.PUBLIC)
        elif ca_file is not None:
            console.log(f"{ca_file} has the cluster's CAs and is left unchanged; refresh does not update it")
        if options.kubelet_config is not None and kubelet_config is not None:
            kubelet_files.write(options.kubelet_config, kubelet_config, mode=kubelet_files.PRIVATE)
        rendered = client_go.render_kubeconfig(
            settings.cluster, command=options.command, config=options.config, cache_dir=options.cache_dir
        )
        kubelet_files.write_private(options.kubeconfig, rendered)
    return found


def _check_files(options: JoinOptions) -> None:
    old = kubelet_files.read(options.kubeconfig)
    if old is not None and not client_go.is_ours(old) and not options.replace_kubeconfig:
        raise kubelet_files.foreign(options.kubeconfig, flag="--kubeconfig", replace="--replace-kubeconfig")
    if options.kubelet_config is not None:
        kubelet_files.check(options.kubelet_config, flag="--kubelet-config", replace=options.replace_kubelet_files)


def _locate(options: JoinOptions, clock: Clock) -> tuple[Settings, BootstrapToken | None]:
    """Find the cluster unless it was given. Return the settings with it, and the token."""
    way, settings, token = options.way, options.settings, options.token
    if isinstance(way, StaticCluster):
        return replace(settings, discovery=_renewed_discovery(options, settings.cluster)), token
    from nodeattest_authenticator.refresh import configured_cluster
    from nodeattest_discovery.node.client import Environment

    environment = Environment(clock=clock, log=console.log, limit=way.limit)
    try:
        if isinstance(way, ByToken):
            found = _by_token(way, environment)
        else:
            from nodeattest_discovery.node.by_file import by_file

            read = cast("Callable[[], bytes]", sys.stdin.buffer.read)
            found = by_file(way.source, environment, stdin=read, allow_credentials=way.allow_credentials)
    except (Denied, Unavailable) as verdict:
        raise refusal(verdict) from None
    token = token or _bootstrap_token(found.token)
    for note in found.notes:
        console.log(note)
    cluster = configured_cluster(found)
    if token is None and not options.renew and not found.runs_authenticator:
        raise wrong("no token, and the discovery file has no usable one: pass --token-file")
    others = [Endpoint.parse(f"https://{word}") for word in way.servers] if isinstance(way, ByToken) else []
    with suppress(ValueError):  # the discovery file was local, so no server was asked
        others.insert(0, Endpoint.parse(found.asked))
    kept = _renewed_discovery(options, cluster)
    discovery = Discovery(
        servers=tuple(dict.fromkeys((cluster.endpoint, *others))),
        kubeconfig=options.kubeconfig,
        ca_file=options.kubelet_ca_file,
        pin_server=isinstance(way, ByFile),
        previous_clusters=kept.previous_clusters if kept else (),
    )
    console.log(f"the cluster is at {cluster.endpoint.url}")
    return replace(settings, cluster=cluster, discovery=discovery), token


def _by_token(way: ByToken, environment: Environment) -> Found:
    """Ask the discovery front, then the servers. Token and pins authenticate either."""
    from nodeattest_discovery.node.by_token import by_front, by_token

    if way.front is not None:
        try:
            return by_front(way.front, way.token, way.pins, environment, servers=way.servers)
        except (Denied, Unavailable) as verdict:
            if not way.servers:
                raise
            environment.log(f"{refusal(verdict, 'skipping the discovery front: ')}")
    return by_token(way.servers, way.token, way.pins, environment)


def _bootstrap_token(text: str | None) -> BootstrapToken | None:
    """Parse the token of a discovery file. A node that attests cannot use any other bearer token."""
    if text is None:
        return None
    try:
        return bootstrap.parse(text)
    except Denied:
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            "the credential in the discovery file is not a bootstrap token",
            remedy="pass a bootstrap token with --token-file, and remove the credential from the file",
            kind=FailureKind.USAGE,
        ) from None


def _renewed_discovery(options: JoinOptions, cluster: Cluster) -> Discovery | None:
    """Return the section ``discovery`` that a node keeps when it renews in the same cluster.

    A cluster without a CA in common with the configured one is another cluster.
    """
    if not options.renew:
        return None
    try:
        old = load(options.config, hostname=options.settings.node_name)
    except AgentError:  # no usable configuration to keep
        return None
    if old.discovery is None or set(pem.certificates(old.ca_pem)).isdisjoint(pem.certificates(cluster.ca_pem)):
        return None
    kept = old.discovery.after(old.cluster, cluster).with_servers(cluster.endpoint)
    return replace(kept, kubeconfig=options.kubeconfig, ca_file=options.kubelet_ca_file or kept.ca_file)


def _write_inputs(options: JoinOptions, storage: Storage, settings: Settings, token: BootstrapToken | None) -> None:
    line = token.reveal().encode() + b"\n" if token else None
    try:
        changed = kubelet_files.write_private(options.config, settings_to_json(settings))
        if line is not None and settings.token_file is None and storage.read(TOKEN_FILE) != line:
            storage.write(TOKEN_FILE, line)
            changed = True
    except OSError as error:
        raise kubelet_files.cannot_write(storage.path, error) from None
    if changed:
        storage.remove(FAILURE_FILE)  # a new token or configuration is tried at once


def _first_credential(options: JoinOptions, clock: Clock) -> CacheEntry:
    context = AgentContext.open(options.config, options.cache_dir, clock=clock)
    deadline = Deadline.after(clock, context.settings.timeout_seconds)
    with context.storage, exclusive(context.storage, deadline):
        found = context.load_valid_credential()
        if found is not None and not options.renew:
            console.log("this node keeps its valid certificate; join --renew attests again")
            return found
        # A person runs join: the pause after an earlier failure is ignored.
        return issue_and_store(context, found.credential if found else None, deadline)


def _kubelet_config(options: JoinOptions, settings: Settings, found: CacheEntry, deadline: Deadline) -> bytes | None:
    """Return kubelet's configuration from the cluster, or None if join does not write it."""
    if options.kubelet_config is None or options.kubelet_ca_file is None:
        return None
    from nodeattest_authenticator import kubelet_config

    asked = select_server(settings, deadline, console.log)
    with closing(ApiServerClient(asked.cluster, by_certificate(asked, found.credential), deadline)) as api:
        document = kubelet_config.fetch(api, deadline)
    serving_file = None if settings.serving is None else f"{options.cache_dir}/serving.pem"
    return kubelet_config.render(document, ca_file=options.kubelet_ca_file, serving_file=serving_file)
