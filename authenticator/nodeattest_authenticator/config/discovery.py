"""The section ``discovery`` of the agent's configuration: what keeps a node in touch with a cluster that it discovered.

``join`` writes it, ``refresh`` brings it up to date. Promises: what is parsed is well-formed, and bounded in number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.formats.endpoint import Endpoint
from nodeattest_authenticator.formats.strict_json import Fields, FieldsError
from nodeattest_providers.node_interface import JsonObject, JsonValue

__all__ = ["CLUSTER_INFO_FILE", "MOST_FORMER", "MOST_SERVERS", "Cluster", "Discovery", "parse_discovery"]

CLUSTER_INFO_FILE: Final = "cluster-info"
"""In the cache directory: the text that discovery last saw, by which a refresh knows whether anything is new."""
MOST_SERVERS: Final = 16
"""Servers that are asked in turn; the oldest are forgotten first."""
MOST_FORMER: Final = 4
"""Earlier states of the cluster: a rotation of its CA passes three (old, both, new)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where a cluster is, or was, and the CAs that vouch for it."""

    endpoint: Endpoint
    tls_server_name: str | None = None
    ca_pem: bytes = field(repr=False)

    def to_json(self) -> JsonObject:
        """Write it."""
        name: JsonObject = {} if self.tls_server_name is None else {"tlsServerName": self.tls_server_name}
        return {"server": self.endpoint.url, "certificateAuthority": self.ca_pem.decode(), **name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What ``refresh`` needs."""

    servers: tuple[Endpoint, ...]
    """API servers of the cluster, asked in this order."""
    kubeconfig: str
    """The file by which kubelet finds the cluster."""
    ca_file: str | None = None
    """The file from which kubelet takes the CAs of its own clients, if join wrote one."""
    keeps_server: bool = False
    """The server was told by a file, whose author knows which one this node must use: only its CAs are refreshed."""
    former: tuple[Cluster, ...] = ()
    """What the cluster was before: a kubelet that runs still speaks of it, and has certificates of its CAs."""

    def knowing(self, *endpoints: Endpoint) -> Discovery:
        """Put servers before those that are known."""
        return replace(self, servers=tuple(dict.fromkeys((*endpoints, *self.servers)))[:MOST_SERVERS])

    def after(self, old: Cluster, new: Cluster) -> Discovery:
        """Remember what the cluster was when it becomes another."""
        former = [cluster for cluster in self.former if cluster not in (old, new)]
        return replace(self, former=(*former, old)[-MOST_FORMER:] if old != new else tuple(former))

    def to_json(self) -> JsonObject:
        """Write the section."""
        optional: JsonObject = {
            "caFile": self.ca_file,
            "keepsServer": self.keeps_server or None,
            "former": list[JsonValue](cluster.to_json() for cluster in self.former) or None,
        }
        section: JsonObject = {
            "servers": list[JsonValue](endpoint.url for endpoint in self.servers),
            "kubeconfig": self.kubeconfig,
        }
        return section | {name: value for name, value in optional.items() if value is not None}


def parse_discovery(fields: Fields) -> Discovery:
    """Parse the section; raises ``FieldsError``."""
    servers = tuple(_endpoint(url, "servers") for url in fields.words("servers") or ())
    if not 1 <= len(servers) <= MOST_SERVERS or len(set(servers)) != len(servers):
        raise FieldsError(f"discovery.servers must be 1 to {MOST_SERVERS} different URLs")
    ca_file = fields.text("caFile")
    former = tuple(_cluster(one) for one in fields.objects("former"))
    if len(former) > MOST_FORMER:
        raise FieldsError(f"discovery.former must be at most {MOST_FORMER} clusters")
    found = Discovery(
        servers=servers,
        kubeconfig=_path(fields.required("kubeconfig"), "kubeconfig"),
        ca_file=None if ca_file is None else _path(ca_file, "caFile"),
        keeps_server=fields.flag("keepsServer"),
        former=former,
    )
    fields.end()
    return found


def _cluster(fields: Fields) -> Cluster:
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
