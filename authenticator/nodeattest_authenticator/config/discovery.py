"""The section ``discovery`` of the agent's configuration: what keeps a node in touch with a cluster that it discovered.

``join`` writes it, ``refresh`` brings it up to date. Promises: what is parsed is well-formed, and bounded in number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nodeattest_authenticator.formats.endpoint import Cluster, parse_cluster, parse_url
from nodeattest_authenticator.formats.strict_json import ConfigFields
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.node_interface import JsonObject, JsonValue

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
        others = tuple(cluster for cluster in self.previous_clusters if cluster not in (old, new))
        return replace(self, previous_clusters=others if old == new else (*others, old)[-MAX_PREVIOUS_CLUSTERS:])

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
    servers = tuple(parse_url(fields, "servers", url) for url in fields.texts("servers", at_least=1) or ())
    if not 1 <= len(servers) <= MAX_SERVERS or len(set(servers)) != len(servers):
        raise fields.wrong("servers", f"must be 1 to {MAX_SERVERS} different URLs")
    kubeconfig, ca_file = fields.required("kubeconfig"), fields.text("caFile")
    for name, path in (("kubeconfig", kubeconfig), ("caFile", ca_file)):
        if path is not None and (not path.startswith("/") or "\0" in path):
            raise fields.wrong(name, "must be an absolute path")
    former = fields.objects("former")
    if len(former) > MAX_PREVIOUS_CLUSTERS:
        raise fields.wrong("former", f"must be at most {MAX_PREVIOUS_CLUSTERS} clusters")
    previous_clusters = tuple(parse_cluster(one) for one in former)
    for one in former:
        one.end()
    found = Discovery(
        servers=servers,
        kubeconfig=kubeconfig,
        ca_file=ca_file,
        pin_server=fields.flag("keepsServer"),
        previous_clusters=previous_clusters,
    )
    fields.end()
    return found
