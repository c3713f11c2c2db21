"""The section ``discovery`` of the agent's configuration: what keeps a node in touch with a cluster that it discovered.

``join`` writes it, ``refresh`` brings it up to date. Promises: what is parsed is well-formed, and bounded in number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.formats.endpoint import Cluster
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.node_interface import JsonObject, JsonValue

CLUSTER_INFO_FILE: Final = "cluster-info"
"""In the cache directory: the text that discovery last saw, by which a refresh knows whether anything is new."""
MAX_SERVERS: Final = 16
"""Servers that are asked in turn; the oldest are forgotten first."""
MAX_PREVIOUS_CLUSTERS: Final = 4
"""Earlier states of the cluster: a rotation of its CA passes three (old, both, new)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What ``refresh`` needs."""

    servers: tuple[Endpoint, ...]
    """API servers of the cluster, asked in this order."""
    kubeconfig: str
    """The file by which kubelet finds the cluster."""
    ca_file: str | None = None
    """The file from which kubelet takes the CAs of its own clients, if join wrote one."""
    pin_server: bool = False
    """The server comes from a file whose author knows which one this node must use: only its CAs are refreshed."""
    previous_clusters: tuple[Cluster, ...] = ()
    """What the cluster was before: a running kubelet still names it, and has certificates of its CAs."""

    def with_servers(self, *endpoints: Endpoint) -> Discovery:
        """Put servers before those that are known."""
        return replace(self, servers=tuple(dict.fromkeys((*endpoints, *self.servers)))[:MAX_SERVERS])

    def after(self, old: Cluster, new: Cluster) -> Discovery:
        """Remember what the cluster was when it becomes another."""
        previous_clusters = [cluster for cluster in self.previous_clusters if cluster not in (old, new)]
        return replace(
            self,
            previous_clusters=(*previous_clusters, old)[-MAX_PREVIOUS_CLUSTERS:]
            if old != new
            else tuple(previous_clusters),
        )

    def to_json(self) -> JsonObject:
        """Write the section."""
        optional: JsonObject = {
            "caFile": self.ca_file,
            "keepsServer": self.pin_server or None,
            "former": list[JsonValue](cluster.to_json() for cluster in self.previous_clusters) or None,
        }
        section: JsonObject = {
            "servers": list[JsonValue](endpoint.url for endpoint in self.servers),
            "kubeconfig": self.kubeconfig,
        }
        return section | {name: value for name, value in optional.items() if value is not None}


def parse_discovery(fields: ConfigFields) -> Discovery:
    """Parse the section; raises ``FieldsError``."""
    servers = tuple(_endpoint(url, "servers") for url in fields.words("servers") or ())
    if not 1 <= len(servers) <= MAX_SERVERS or len(set(servers)) != len(servers):
        raise FieldsError(f"discovery.servers must be 1 to {MAX_SERVERS} different URLs")
    ca_file = fields.text("caFile")
    previous_clusters = tuple(_cluster(one) for one in fields.objects("former"))
    if len(previous_clusters) > MAX_PREVIOUS_CLUSTERS:
        raise FieldsError(f"discovery.former must be at most {MAX_PREVIOUS_CLUSTERS} clusters")
    found = Discovery(
        servers=servers,
        kubeconfig=_path(fields.required("kubeconfig"), "kubeconfig"),
        ca_file=None if ca_file is None else _path(ca_file, "caFile"),
        pin_server=fields.flag("keepsServer"),
        previous_clusters=previous_clusters,
    )
    fields.end()
    return found


def _cluster(fields: ConfigFields) -> Cluster:
    try:
        ca_pem = pem.bundle(fields.required("certificateAuthority"))
    except FieldsError:
        raise
    except ValueError as error:
        raise FieldsError(f"discovery.former[].certificateAuthority is no PEM bundle: {error}") from None
    found = Cluster(
        endpoint=_endpoint(fields.required("server"), "former[].server"),
        tls_server_name=fields.text("tlsServerName"),
        ca_pem=ca_pem,
    )
    fields.end()
    return found


def _endpoint(url: str, name: str) -> Endpoint:
    try:
        return Endpoint.parse(url)
    except ValueError as error:
        raise FieldsError(f"discovery.{name} must be URLs of API servers: {error}") from None


def _path(path: str, name: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise FieldsError(f"discovery.{name} must be an absolute path")
    return path
