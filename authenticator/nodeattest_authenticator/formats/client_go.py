"""What client-go reads from and sends to this plugin: the kubeconfig that runs it, the call, and the ExecCredential.

A call that names another cluster is refused, so that a client of one cluster never gets a credential of another.
kubelet must run with ``rotateCertificates: false`` and without ``--bootstrap-kubeconfig``, or it would replace the
kubeconfig.
Source: client-go tools/clientcmd/api/v1 and plugin/pkg/client/auth/exec; client.authentication.k8s.io/v1.
"""

from __future__ import annotations

import binascii
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
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
        ca_pem = pem.encode(pem.certificates(text.encode()))
    except ValueError as error:
        raise fields.wrong("certificateAuthority", f"is not a PEM bundle: {error}") from None
    if not ca_pem:
        raise fields.wrong("certificateAuthority", "is not a PEM bundle: it has no CERTIFICATE block")
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


def render_kubeconfig(cluster: Cluster, *, command: str, config: str, cache_dir: str) -> bytes:
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
    return _to_json(document)


def with_cluster(data: bytes, cluster: Cluster) -> bytes | None:
    """Update the cluster of a kubeconfig that ``render_kubeconfig`` wrote. Return None for other kubeconfigs."""
    return _to_json(parse_config_object(data) | {"clusters": _clusters(cluster)}) if is_ours(data) else None


def is_ours(data: bytes) -> bool:
    """Return whether ``render_kubeconfig`` wrote a kubeconfig."""
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


def _to_json(document: JsonObject) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"


_REMEDY: Final = "let kubelet or kubectl run this"
_OTHER_VERSION: Final = (
    f"set users[].user.exec.apiVersion to {EXEC_API_VERSION} in the kubeconfig that runs this, or run join again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecInfo:
    """The fields of a call that the agent uses."""

    server: str | None = None
    """None if the kubeconfig does not set ``provideClusterInfo``."""
    tls_server_name: str | None = None
    skips_verification: bool = False
    ca_pem: bytes | None = None


def parse_exec_info(info: bytes | None) -> ExecInfo:
    """Parse the environment variable. Raises ``AgentError``."""
    if info is None:
        raise _refused("KUBERNETES_EXEC_INFO is not set", "let kubelet or kubectl run this; try the status command")
    try:
        return _parse_exec_info(info)
    except FieldsError as error:
        raise _refused(f"KUBERNETES_EXEC_INFO: {error}", _REMEDY) from None


def _parse_exec_info(info: bytes) -> ExecInfo:
    # Unknown fields are allowed, because client-go may add some (KEP-541).
    fields = ConfigFields(parse_config_object(info))
    if fields.text("kind") != "ExecCredential":
        raise FieldsError("kind must be ExecCredential")
    if fields.text("apiVersion") != EXEC_API_VERSION:
        raise _refused(f"KUBERNETES_EXEC_INFO: apiVersion must be {EXEC_API_VERSION}", _OTHER_VERSION)
    spec = fields.object("spec")
    cluster = spec.object("cluster") if spec else None
    if cluster is None:
        return ExecInfo()
    return ExecInfo(
        server=cluster.required("server"),
        tls_server_name=cluster.text("tls-server-name"),
        skips_verification=cluster.flag("insecure-skip-tls-verify"),
        ca_pem=cluster.octets("certificate-authority-data"),
    )


def check_cluster(info: ExecInfo, cluster: Cluster, previous: Sequence[Cluster]) -> None:
    """Raise ``AgentError`` for a call for another cluster.

    1. The server is the configured one.
    2. The caller verifies its certificate, for the configured name.
    3. The caller trusts a configured CA. It may trust more, because bundles grow during a CA rotation.

    ``previous``: a kubelet that was not restarted names the cluster's earlier server or CA, which is accepted too.
    """
    if info.server is None or any(_fault(info, one, one.ca_pem + cluster.ca_pem) is None for one in previous):
        return
    fault = _fault(info, cluster, cluster.ca_pem)
    if fault is not None:
        raise _refused(fault, "use the kubeconfig that kubelet-authenticator join wrote, or join again")


def _fault(info: ExecInfo, cluster: Cluster, ca_pem: bytes) -> str | None:
    # 1
    try:
        is_same_server = Endpoint.parse(info.server or "") == cluster.endpoint
    except ValueError:
        is_same_server = False
    if not is_same_server:
        return f"the kubeconfig's server is not {cluster.endpoint.url}"
    # 2
    if info.skips_verification:
        return "the kubeconfig sets insecure-skip-tls-verify"
    if (info.tls_server_name or None) != cluster.tls_server_name:
        return "the kubeconfig's tls-server-name is not the configured one"
    # 3
    if info.ca_pem is None or not _shares_ca(info.ca_pem, ca_pem):
        return "the kubeconfig's certificate-authority-data holds none of the configured CAs"
    return None


def render_credential(*, expires_at: float, certificate_pem: bytes, key_pem: bytes) -> bytes:
    """Render the ExecCredential. client-go asks again after ``expires_at`` (seconds since the epoch)."""
    status = {
        "expirationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires_at)),
        "clientCertificateData": certificate_pem.decode("ascii"),
        "clientKeyData": key_pem.decode("ascii"),
    }
    document = {"apiVersion": EXEC_API_VERSION, "kind": "ExecCredential", "status": status}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _shares_ca(theirs: bytes, ours: bytes) -> bool:
    try:
        return not set(pem.certificates(theirs)).isdisjoint(pem.certificates(ours))
    except ValueError:
        return False


def _refused(message: str, remedy: str) -> AgentError:
    return AgentError(AgentReason.EXEC_INFO_REFUSED, message, remedy=remedy, kind=FailureKind.USAGE)
