"""The workload cluster, and the kubeconfig that makes kubelet run this plugin, written as JSON.

Source: client-go tools/clientcmd/api/v1; exec fields as in client.authentication.k8s.io. kubelet must run with
``rotateCertificates: false`` and without ``--bootstrap-kubeconfig``, or it would replace this file (C12).
"""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass, field
from typing import Final

from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.node_interface import JsonObject, JsonValue

EXEC_API_VERSION: Final = "client.authentication.k8s.io/v1"
MAX_CA_PEM: Final = 90 * 1024
"""Bytes. kubelet passes the CAs to the plugin in base64 in an environment variable, which Linux limits to 128 KiB
(MAX_ARG_STRLEN)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Server and CAs of a workload cluster."""

    endpoint: Endpoint
    """The API server."""
    tls_server_name: str | None = None
    """The name in the server's certificate, if it is not the URL's host."""
    ca_pem: bytes = field(repr=False)
    """The cluster's CAs, at most 90 KiB: the agent's only trust anchors."""

    def to_json(self) -> JsonObject:
        """Serialize the fields of the configuration."""
        name: JsonObject = {} if self.tls_server_name is None else {"tlsServerName": self.tls_server_name}
        return {"server": self.endpoint.url, "certificateAuthority": self.ca_pem.decode(), **name}


def parse_cluster(fields: ConfigFields) -> Cluster:
    """Parse the fields of a cluster. Raises ``FieldsError``."""
    url, text = fields.required("server"), fields.required("certificateAuthority")
    try:
        ca_pem = pem.bundle(text)
    except ValueError as error:
        raise fields.wrong("certificateAuthority", f"is not a PEM bundle: {error}") from None
    if len(ca_pem) > MAX_CA_PEM:
        said = f"expected at most {MAX_CA_PEM} bytes, got {len(ca_pem)}"
        raise fields.wrong("certificateAuthority", f": {said}; use this cluster's CAs, not the distribution's")
    return Cluster(
        endpoint=parse_url(fields, "server", url), tls_server_name=fields.text("tlsServerName"), ca_pem=ca_pem
    )


def parse_url(fields: ConfigFields, name: str, url: str) -> Endpoint:
    """Parse the URL of an API server. Raises ``FieldsError``."""
    try:
        return Endpoint.parse(url)
    except ValueError as error:
        raise fields.wrong(name, f"must be the API server's URL: {error}") from None


_NAME: Final = "kubelet-authenticator"


def render(cluster: Cluster, *, command: str, config: str, cache_dir: str) -> bytes:
    """Render the kubeconfig. ``command``: the absolute path of kubelet-authenticator."""
    plugin: JsonObject = {
        "apiVersion": EXEC_API_VERSION,
        "command": command,
        "args": ["credential", "--config", config, "--cache-dir", cache_dir],
        "interactiveMode": "Never",
        "provideClusterInfo": True,
    }
    document: JsonObject = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": _clusters(cluster),
        "users": [{"name": _NAME, "user": {"exec": plugin}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
        "current-context": _NAME,
    }
    return _written(document)


def with_cluster(data: bytes, cluster: Cluster) -> bytes | None:
    """Update the cluster of a kubeconfig that ``render`` wrote. Return None for other kubeconfigs."""
    return _written(parse_config_object(data) | {"clusters": _clusters(cluster)}) if is_ours(data) else None


def is_ours(data: bytes) -> bool:
    """Return whether ``render`` wrote a kubeconfig."""
    try:
        return parse_config_object(data).get("current-context") == _NAME
    except FieldsError:
        return False


def _clusters(cluster: Cluster) -> JsonValue:
    entry: JsonObject = {
        "server": cluster.endpoint.url,
        "certificate-authority-data": binascii.b2a_base64(cluster.ca_pem, newline=False).decode(),
    }
    if cluster.tls_server_name is not None:
        entry["tls-server-name"] = cluster.tls_server_name
    return [{"name": _NAME, "cluster": entry}]


def _written(document: JsonObject) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
