"""A cluster that the agent knows: where it is, and the CAs of its certificates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.node_interface import JsonObject

MAX_CA_PEM: Final = 90 * 1024
"""Bytes. Kubelet hands the CAs to its credential plugin in base64, in an environment variable, for which Linux has
128 KiB (MAX_ARG_STRLEN): with more it cannot start the plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where a cluster is, or was, and the CAs of its certificates."""

    endpoint: Endpoint
    """The API server."""
    tls_server_name: str | None = None
    """The name in the server's certificate, where it is not the URL's."""
    ca_pem: bytes = field(repr=False)
    """The CAs of its certificate."""

    def to_json(self) -> JsonObject:
        """Write it."""
        name: JsonObject = {} if self.tls_server_name is None else {"tlsServerName": self.tls_server_name}
        return {"server": self.endpoint.url, "certificateAuthority": self.ca_pem.decode(), **name}
