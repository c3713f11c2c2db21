"""Addresses of API servers, equal however they are spelt, and the clusters behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from nodeattest_providers.node_interface import JsonObject

__all__ = ["Cluster", "Endpoint"]

_HTTPS_PORT: Final = 443


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An https URL taken apart."""

    host: str
    """Lower case, IPv6 without brackets."""
    port: int
    prefix: str
    """A path before ``/apis``, without a slash at its end; mostly empty."""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Take an URL apart; raises ValueError unless it is plain https."""
        parts = urlsplit(url)
        if parts.scheme != "https":
            raise ValueError("it must begin with https://")
        if not parts.hostname or parts.username is not None or parts.password is not None:
            raise ValueError("it must name a host and no user")
        if parts.query or parts.fragment or any(character.isspace() for character in url):
            raise ValueError("it must have no query, fragment or space")
        return cls(parts.hostname, parts.port if parts.port is not None else _HTTPS_PORT, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        """The canonical spelling."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}{self.prefix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where a cluster is, or was, and the CAs of its certificates."""

    endpoint: Endpoint
    tls_server_name: str | None = None
    ca_pem: bytes = field(repr=False)

    def to_json(self) -> JsonObject:
        """Write it."""
        name: JsonObject = {} if self.tls_server_name is None else {"tlsServerName": self.tls_server_name}
        return {"server": self.endpoint.url, "certificateAuthority": self.ca_pem.decode(), **name}
