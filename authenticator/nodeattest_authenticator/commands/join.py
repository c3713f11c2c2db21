"""Join a cluster: find it, then configuration, token, first certificate, kubelet's files, and last its kubeconfig.

Promises: nothing is written or sent before everything that was typed has been checked; each file appears whole; the
kubeconfig, by which kubelet finds all the others, appears only when the credential works. Running it again changes
nothing, or takes up a join that was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

from nodeattest_authenticator.cluster.discover import StaticCluster
from nodeattest_authenticator.commands.cli_args import wrong
from nodeattest_authenticator.commands.cluster_source import ClusterOptions
from nodeattest_authenticator.config.discovery import CLUSTER_INFO_FILE, Discovery
from nodeattest_authenticator.config.settings import TOKEN_FILE, Settings, load, settings_to_json
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.enrollment.issue import attestor_of, by_certificate, issue_and_store
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats import kubeconfig, pem
from nodeattest_authenticator.formats.endpoint import Cluster
from nodeattest_authenticator.state import failure_backoff, kubelet_files
from nodeattest_authenticator.state.credential_cache import CacheEntry
from nodeattest_authenticator.state.storage import Storage, exclusive
from nodeattest_authenticator.transport.api_client import ApiServerClient
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_discovery.token import BootstrapToken


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFiles:
    """What join writes for kubelet in addition to its kubeconfig."""

    ca_file: str | None = None
    """Where the cluster's CAs go; None: nowhere."""
    config: str | None = None
    """Where kubelet's configuration goes; None: join does not write it."""
    replace: bool = False
    """Whether files that join did not write may be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What was typed, parsed."""

    settings: Settings
    """Server and CAs in it count only where they were given."""
    ways: ClusterOptions
    config: str
    cache_dir: str
    kubeconfig: str
    command: str
    """Absolute path of kubelet-authenticator, for the kubeconfig."""
    kubelet: KubeletFiles = field(default_factory=KubeletFiles)
    replace_kubeconfig: bool = False
    renew: bool = False
    """Whether to attest anew even with a certificate that is still valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Located:
    """What is known once the cluster is."""

    settings: Settings
    token: BootstrapToken | None
    cluster_info: str | None = None


@dataclass(frozen=True, slots=True)
class _File:
    """A file for kubelet."""

    path: str
    content: bytes
    mode: int


def join(options: JoinOptions, *, clock: Clock, random: Callable[[], float], log: Callable[[str], None]) -> CacheEntry:
    """Join; returns the credential. Raises ``AgentError``."""
    with attestor_of(options.settings.provider, options.settings.provider_settings):
        _check_files(options)
    located = _locate(options, clock=clock, log=log)
    _check_ca_file(options, located.settings.ca_pem)
    with Storage(options.cache_dir) as storage:
        deadline = Deadline.after(clock, located.settings.timeout_seconds)
        with exclusive(storage, deadline):
            _write_inputs(options, located, storage)
    found = _first_credential(options, clock=clock, random=random, log=log)
    deadline = Deadline.after(clock, options.settings.timeout_seconds)
    files = _kubelet_files(options, located.settings, found, deadline, log)
    rendered = kubeconfig.render(
        located.settings.cluster,
        command=options.command,
        config=options.config,
        cache_dir=options.cache_dir,
    )
    deadline = Deadline.after(clock, options.settings.timeout_seconds)
    # A refresh and another join write these files, too: one writer at a time.
    with Storage(options.cache_dir) as storage, exclusive(storage, deadline):
        for file in files:
            kubelet_files.write(file.path, file.content, mode=file.mode)
        kubelet_files.write_private(options.kubeconfig, rendered)
    return found


def _check_files(options: JoinOptions) -> None:
    old = kubelet_files.read(options.kubeconfig)
    if old is not None and not kubeconfig.is_ours(old) and not options.replace_kubeconfig:
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            f"{options.kubeconfig} exists and was not written by kubelet-authenticator",
            remedy="move it away, name another with --kubeconfig, or say --replace-kubeconfig",
            kind=FailureKind.USAGE,
        )
    if options.kubelet.config is not None:
        kubelet_files.check(options.kubelet.config, flag="--kubelet-config", replace=options.kubelet.replace)


def _check_ca_file(options: JoinOptions, ca_pem: bytes) -> None:
    """Refuse another's CA file, unless it has the cluster's CAs: ``--ca-file`` may name the very same file."""
    path = options.kubelet.ca_file
    if path is not None and not kubelet_files.has_cas(path, ca_pem):
        kubelet_files.check(path, flag="--kubelet-ca-file", replace=options.kubelet.replace)


def _locate(options: JoinOptions, *, clock: Clock, log: Callable[[str], None]) -> _Located:
    """Find the cluster, unless it was given."""
    way, settings = options.ways.way, options.settings
    if isinstance(way, StaticCluster):
        kept = _renewed_discovery(options, settings.cluster)
        return _Located(settings=replace(settings, discovery=kept), token=options.ways.token)
    from nodeattest_authenticator.cluster.discover import discover

    found = discover(way, clock=clock, log=log)
    token = options.ways.token or found.token
    if token is None and not found.needs_no_token and not options.renew:
        raise wrong("no token, and the discovery file has none that may be used: give --token-file")
    cluster = found.cluster
    kept = _renewed_discovery(options, cluster)
    discovery = Discovery(
        servers=found.servers,
        kubeconfig=options.kubeconfig,
        ca_file=options.kubelet.ca_file,
        pin_server=found.pin_server,
        previous_clusters=kept.previous_clusters if kept else (),
    )
    settings = settings.at(cluster, discovery)
    log(f"the cluster is at {cluster.endpoint.url}")
    return _Located(settings=settings, token=token, cluster_info=found.kubeconfig)


def _renewed_discovery(options: JoinOptions, cluster: Cluster) -> Discovery | None:
    """Return the section ``discovery`` that a node keeps when it renews in the same cluster; None: it has none.

    A cluster that has no CA in common with the configured one is another.
    """
    if not options.renew:
        return None
    try:
        old = load(options.config, hostname=options.settings.node_name)
    except AgentError:  # nothing that could be kept: it is written anew
        return None
    shared = set(pem.decode(old.ca_pem, pem.CERTIFICATE)) & set(pem.decode(cluster.ca_pem, pem.CERTIFICATE))
    if old.discovery is None or not shared:
        return None
    kept = old.discovery.after(old.cluster, cluster).with_servers(cluster.endpoint)
    return replace(kept, kubeconfig=options.kubeconfig, ca_file=options.kubelet.ca_file or kept.ca_file)


def _write_inputs(options: JoinOptions, located: _Located, storage: Storage) -> None:
    token = located.token.reveal().encode() + b"\n" if located.token else None
    try:
        changed = kubelet_files.write_private(options.config, settings_to_json(located.settings))
        if token is not None and located.settings.token_file is None and storage.read(TOKEN_FILE) != token:
            storage.write(TOKEN_FILE, token)
            changed = True
        if located.cluster_info is not None:
            storage.write(CLUSTER_INFO_FILE, located.cluster_info.encode(), durable=False)
    except OSError as error:
        raise kubelet_files.cannot_write(storage.path, error) from None
    if changed:
        failure_backoff.forget(storage)  # another token or configuration deserves an attempt at once


def _first_credential(
    options: JoinOptions, *, clock: Clock, random: Callable[[], float], log: Callable[[str], None]
) -> CacheEntry:
    # The configuration has the node name by now, so the host name does not matter.
    context = AgentContext.open(options.config, options.cache_dir, hostname="", clock=clock, random=random, log=log)
    with context.storage:
        deadline = Deadline.after(clock, context.settings.timeout_seconds)
        with exclusive(context.storage, deadline):
            found = context.load_valid_credential()
            if found is not None and not options.renew:
                log("this node keeps the certificate that it has; join --renew attests anew")
                return found
            # A person asks: no pause after an earlier failure is kept.
            return issue_and_store(context, found.credential if found else None, deadline)


def _kubelet_files(
    options: JoinOptions, settings: Settings, found: CacheEntry, deadline: Deadline, log: Callable[[str], None]
) -> list[_File]:
    """Get the contents of kubelet's files; its configuration comes from the cluster."""
    kubelet = options.kubelet
    files: list[_File] = []
    if kubelet.ca_file is not None:
        if kubelet.replace or not kubelet_files.has_cas(kubelet.ca_file, settings.ca_pem):
            files.append(_File(kubelet.ca_file, settings.ca_pem, kubelet_files.PUBLIC))
        else:
            log(f"{kubelet.ca_file} has the cluster's CAs and stays as it is: refresh never changes it")
    if kubelet.config is None or kubelet.ca_file is None:
        return files
    from nodeattest_authenticator.cluster import kubelet_config
    from nodeattest_authenticator.transport.api_client import select_server

    asked = select_server(settings, deadline, log)
    login = by_certificate(asked, found.credential)
    with closing(ApiServerClient(asked.cluster, login, deadline)) as api:
        document = kubelet_config.fetch(api, deadline)
    serving_file = None
    if settings.serving is not None:
        serving_file = settings.serving.file or f"{options.cache_dir}/serving.pem"
    made = kubelet_config.adjust(document, ca_file=kubelet.ca_file, serving_file=serving_file)
    return [*files, _File(kubelet.config, kubelet_config.render(made), kubelet_files.PRIVATE)]
