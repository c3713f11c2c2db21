"""The kubeconfig that makes kubelet run this plugin. JSON is YAML, so the standard library can write it.

Source: client-go tools/clientcmd/api/v1; exec fields as in client.authentication.k8s.io. kubelet must run with
``rotateCertificates: false`` and without ``--bootstrap-kubeconfig``, or it would replace this file (C12).
"""

from __future__ import annotations

import binascii
import json
from typing import Final

from nodeattest_authenticator.formats.endpoint import Cluster
from nodeattest_authenticator.formats.exec_credential import API_VERSION
from nodeattest_authenticator.formats.strict_json import FieldsError, parse_config_object
from nodeattest_providers.node_interface import JsonObject, JsonValue

_NAME: Final = "kubelet-authenticator"


def render(cluster: Cluster, *, command: str, config: str, cache_dir: str) -> bytes:
    """Write the kubeconfig; ``command`` is the absolute path of kubelet-authenticator."""
    plugin: JsonObject = {
        "apiVersion": API_VERSION,
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
    """Write a kubeconfig of ours anew, for where the cluster is now; None if it is none of ours."""
    return _written(parse_config_object(data) | {"clusters": _clusters(cluster)}) if is_ours(data) else None


def is_ours(data: bytes) -> bool:
    """Return whether a kubeconfig was written by ``render``, so that it may be replaced."""
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
