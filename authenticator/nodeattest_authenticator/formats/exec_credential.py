"""ExecCredential: what client-go passes in ``KUBERNETES_EXEC_INFO``, and the answer that it expects.

Promises: an answer is only made for a call in version v1 and, where it names the cluster, names ours: a credential of
one cluster is never handed to a client of another. Leaves the credential to others.
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
    """One call of the plugin. Whether it is interactive does not matter: nothing is ever asked of a person."""

    server: str | None = None
    """None without ``provideClusterInfo``."""
    tls_server_name: str | None = None
    skips_verification: bool = False
    ca_pem: bytes | None = None


def parse(info: bytes | None) -> ExecInfo:
    """Parse the environment variable; raises ``AgentError`` for anything that client-go would not send."""
    if info is None:
        raise _refused("KUBERNETES_EXEC_INFO is not set", "let kubelet or kubectl run this; try the status command")
    try:
        return _parse(info)
    except FieldsError as error:
        raise _refused(f"KUBERNETES_EXEC_INFO: {error}", _REMEDY) from None


def _parse(info: bytes) -> ExecInfo:
    # Unknown fields are welcome here: client-go may learn new ones (KEP-541).
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
    """Refuse a call for another cluster; ``previous``: what the cluster was before. Raises ``AgentError``.

    1. The server is ours, however it is spelt.
    2. Its certificate is verified, under the name that we verify.
    3. The caller trusts a CA that we trust; more than ours is tolerated, because bundles grow while a CA is rotated.

    A kubelet that was not restarted since the cluster moved, or since its CA was replaced, names what was before: that
    is ours, too.
    """
    if info.server is None or any(_fault(info, one, one.ca_pem + cluster.ca_pem) is None for one in previous):
        return
    fault = _fault(info, cluster, cluster.ca_pem)
    if fault is not None:
        raise _refused(fault, "use the kubeconfig that kubelet-authenticator join wrote, or join again")


def _fault(info: ExecInfo, cluster: Cluster, ca_pem: bytes) -> str | None:
    # 1
    try:
        same = Endpoint.parse(info.server or "") == cluster.endpoint
    except ValueError:
        same = False
    if not same:
        return f"the kubeconfig's server is not {cluster.endpoint.url}"
    # 2
    if info.skips_verification:
        return "the kubeconfig says insecure-skip-tls-verify"
    if (info.tls_server_name or None) != cluster.tls_server_name:
        return "the kubeconfig's tls-server-name is not the configured one"
    # 3
    if info.ca_pem is None or not _shares_ca(info.ca_pem, ca_pem):
        return "the kubeconfig's certificate-authority-data holds none of the configured CAs"
    return None


def render(*, expires_at: float, certificate_pem: bytes, key_pem: bytes) -> bytes:
    """Write the ExecCredential; client-go asks again after ``expires_at`` (seconds since the epoch)."""
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
