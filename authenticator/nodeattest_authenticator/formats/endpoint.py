"""A cluster that the agent knows: where it is, and the CAs of its certificates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.formats.strict_json import ConfigFields
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
    """The CAs of its certificate, at most 90 KiB: the only trust root of the agent."""

    def to_json(self) -> JsonObject:
        """Write it."""
        name: JsonObject = {} if self.tls_server_name is None else {"tlsServerName": self.tls_server_name}
        return {"server": self.endpoint.url, "certificateAuthority": self.ca_pem.decode(), **name}


def parse_cluster(fields: ConfigFields) -> Cluster:
    """Take the fields of a cluster; raises ``FieldsError``."""
    url, text = fields.required("server"), fields.required("certificateAuthority")
    try:
        ca_pem = pem.bundle(text)
    except ValueError as error:
        raise fields.wrong("certificateAuthority", f"is no PEM bundle: {error}") from None
    if len(ca_pem) > MAX_CA_PEM:
        said = f"expected at most {MAX_CA_PEM} bytes, got {len(ca_pem)}"
        raise fields.wrong("certificateAuthority", f": {said}; give the CAs of this cluster, not of the distribution")
    return Cluster(
        endpoint=parse_url(fields, "server", url), tls_server_name=fields.text("tlsServerName"), ca_pem=ca_pem
    )


def parse_url(fields: ConfigFields, name: str, url: str) -> Endpoint:
    """Read the URL of an API server; raises ``FieldsError``."""
    try:
        return Endpoint.parse(url)
    except ValueError as error:
        raise fields.wrong(name, f"must be the API server's URL: {error}") from None
