"""Finds the cluster that ``join`` was told to join: given on the command line, by a token, or by a discovery file.

Out of scope: verification, which is in ``nodeattest_discovery.node`` and imported only when needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, refusal
from nodeattest_authenticator.formats.kubeconfig import MAX_CA_PEM, Cluster
from nodeattest_discovery import token as bootstrap
from nodeattest_discovery.node.clock import Clock
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Unavailable

if TYPE_CHECKING:
    from nodeattest_discovery.node.client import Environment, Found
    from nodeattest_discovery.pins import CaPin


DEFAULT_LIMIT: Final = 300
"""Seconds for a discovery (kubeadm's DiscoveryTimeout)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCluster:
    """Server and CAs from the command line."""

    server: str
    ca_file: str
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByToken:
    """Discovery by a bootstrap token: its signature proves cluster-info, and pins prove the CA."""

    servers: tuple[str, ...]
    """``host:port``."""
    token: BootstrapToken
    pins: frozenset[CaPin] | None
    """None if the user chose to skip CA verification."""
    front: str | None = None
    limit: int = DEFAULT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFile:
    """Discovery by a kubeconfig from a trusted source."""

    source: str
    allow_credentials: bool = False
    limit: int = DEFAULT_LIMIT


ClusterSource = StaticCluster | ByToken | ByFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """The result of discovery."""

    cluster: Cluster
    servers: tuple[Endpoint, ...]
    """All API servers that ``refresh`` may ask later."""
    token: BootstrapToken | None = field(default=None, repr=False)
    """The bootstrap token in the discovery file."""
    needs_no_token: bool = False
    """Whether the discovery file's user runs this agent, so that the node has its credentials already."""
    pin_server: bool = False
    """Whether the node keeps the server of the discovery file, regardless of cluster-info."""


def discover(way: ByToken | ByFile, *, clock: Clock, log: Callable[[str], None]) -> Discovered:
    """Find the cluster. Raises ``AgentError``."""
    from nodeattest_discovery.node.client import Environment

    environment = Environment(clock=clock, log=log, limit=way.limit)
    token, needs_no_token = None, False
    try:
        if isinstance(way, ByToken):
            found = _by_token(way, environment)
        else:
            from nodeattest_discovery.node.by_file import by_file

            read = cast("Callable[[], bytes]", sys.stdin.buffer.read)
            found = by_file(way.source, environment, stdin=read, allow_credentials=way.allow_credentials)
            token, needs_no_token = _bootstrap_token(found.token), found.runs_authenticator
    except (Denied, Unavailable) as verdict:
        raise refusal(verdict) from None
    for note in found.notes:
        log(note)
    cluster = configured_cluster(found)
    others = [Endpoint.parse(f"https://{word}") for word in way.servers] if isinstance(way, ByToken) else []
    with suppress(ValueError):  # the discovery file was local, so no server was asked
        others.insert(0, Endpoint.parse(found.asked))
    return Discovered(
        cluster=cluster,
        servers=tuple(dict.fromkeys((cluster.endpoint, *others))),
        token=token,
        needs_no_token=needs_no_token,
        pin_server=isinstance(way, ByFile),
    )


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
