"""ExecCredential: parses ``KUBERNETES_EXEC_INFO`` and renders the answer.

A call that names another cluster is refused, so that a client of one cluster never gets a credential of another.
Source: client.authentication.k8s.io/v1; client-go plugin/pkg/client/auth/exec.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.formats.kubeconfig import EXEC_API_VERSION, Cluster
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_parsing.endpoint import Endpoint

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


def parse(info: bytes | None) -> ExecInfo:
    """Parse the environment variable. Raises ``AgentError``."""
    if info is None:
        raise _refused("KUBERNETES_EXEC_INFO is not set", "let kubelet or kubectl run this; try the status command")
    try:
        return _parse(info)
    except FieldsError as error:
        raise _refused(f"KUBERNETES_EXEC_INFO: {error}", _REMEDY) from None


def _parse(info: bytes) -> ExecInfo:
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


def render(*, expires_at: float, certificate_pem: bytes, key_pem: bytes) -> bytes:
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
        return not pem.certificates(theirs).isdisjoint(pem.certificates(ours))
    except ValueError:
        return False


def _refused(message: str, remedy: str) -> AgentError:
    return AgentError(AgentReason.EXEC_INFO_REFUSED, message, remedy=remedy, kind=FailureKind.USAGE)
