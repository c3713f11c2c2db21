"""The three ways to know a cluster: its server and CAs are given, or discovered by a token, or by a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nodeattest_discovery.token import BootstrapToken

if TYPE_CHECKING:
    from nodeattest_discovery.tls import CaPin


DEFAULT_LIMIT: Final = 300
"""Seconds for a discovery (kubeadm's DiscoveryTimeout)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCluster:
    """Server and CAs are given on the command line."""

    server: str
    ca_file: str
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByToken:
    """A token's signature proves cluster-info, pins prove the CA."""

    servers: tuple[str, ...]
    """``host:port``."""
    token: BootstrapToken
    pins: frozenset[CaPin] | None
    """None: the explicit wish to do without."""
    front: str | None = None
    limit: int = DEFAULT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFile:
    """A kubeconfig from a trusted source."""

    source: str
    allow_credentials: bool = False
    limit: int = DEFAULT_LIMIT


ClusterSource = StaticCluster | ByToken | ByFile
