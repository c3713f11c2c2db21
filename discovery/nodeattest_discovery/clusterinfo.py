"""Cluster-info: where a cluster is and which CAs to trust, a kubeconfig in the ConfigMap ``kube-public/cluster-info``.

``parse`` accepts only a kubeconfig with one cluster over https, at least one CA certificate, and no credentials.
``build`` writes the same bytes as kubeadm. Discovery files (``by_file``) share the strict YAML.
Source: companion proposals 000 and 001; client-go tools/clientcmd/api/v1; kubeadm phases/bootstraptoken/clusterinfo.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from nodeattest_parsing import strict_yaml
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonObject, JsonValue

ErrorFactory = Callable[[str, str], Denied]
"""Makes the refusal from expected and got."""

_MAX_DEPTH: Final = 16
"""Levels; a kubeconfig has seven."""
_MAX_VALUES: Final = 4096
"""Values and keys; a kubeconfig has dozens."""
_FIELDS: Final = frozenset(
    {"apiVersion", "kind", "clusters", "contexts", "current-context", "users", "preferences", "extensions"}
)


def parse_kubeconfig_document(text: str, malformed: ErrorFactory) -> JsonObject:
    """Parse a kubeconfig. Raises the error that ``malformed`` returns."""
    try:
        found = strict_yaml.parse_object(text, scalars=Scalars.TEXT, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
    except ParseError as error:
        raise malformed("a kubeconfig in YAML", error.found) from None
    if found.get("apiVersion", "v1") != "v1" or found.get("kind", "Config") != "Config":
        raise malformed("apiVersion v1 and kind Config", "others")
    check_fields(found, _FIELDS, "", malformed)
    return found


def check_fields(found: Mapping[str, JsonValue], known: frozenset[str], where: str, malformed: ErrorFactory) -> None:
    """Refuse unknown fields. ``where``: the prefix of the field's name in the message."""
    unknown = sorted(found.keys() - known)
    if unknown:
        raise malformed(f"only {', '.join(sorted(known))}", ascii(where + unknown[0][:40])[1:-1])


def decode_data(text: str) -> bytes:
    """Decode a ``…-data`` field. Line ends are skipped, as in Go's encoding/base64. Raises ``ValueError``."""
    return decode_base64(text.replace("\r", "").replace("\n", ""))


NAMESPACE: Final = "kube-public"
NAME: Final = "cluster-info"
PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
KUBECONFIG_KEY: Final = "kubeconfig"
SIGNATURE_PREFIX: Final = "jws-kubeconfig-"
"""Prefix of a signature's key in the ConfigMap; the signing token's ID follows."""
MAX_KUBECONFIG: Final = 256 * 1024
"""Characters; a bundle of fifty CAs takes about 100 KiB."""
_MAX_CAS: Final = 64
_ROW_FIELDS: Final = frozenset({"cluster", "name"})
_CLUSTER_FIELDS: Final = frozenset({"server", "certificate-authority-data", "tls-server-name", "extensions"})
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII)
"""A DNS name (RFC 1035 §2.3.4) or an IPv4 address."""
_MAX_HOST: Final = 253
"""Characters of a DNS name (RFC 1035 §2.3.4)."""
_SERVER: Final = re.compile(
    r"https://(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/]+))(?::([1-9][0-9]{0,4}))?(?:/[A-Za-z0-9._~%+=,/-]*)?", re.ASCII
)
_MAX_PORT: Final = 65535
_BLOCK: Final = re.compile(
    rb"^-----BEGIN CERTIFICATE-----[ \t]*\r?\n[A-Za-z0-9+/=\s]+^-----END CERTIFICATE-----[ \t]*\r?$", re.MULTILINE
)
"""A PEM certificate without headers. Parsers disagree about other blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """API server and CAs of a cluster."""

    server: str
    """The https URL as written."""
    ca_certificates: tuple[x509.Certificate, ...] = field(repr=False)
    tls_server_name: str | None = None
    """The name in the server's certificate, if it is not the URL's host."""

    @property
    def ca_pem(self) -> bytes:
        """The CA bundle."""
        return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.ca_certificates)


_KUBECONFIG: Final = """\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {data}
    server: {server}
  name: ""
contexts: null
current-context: ""
kind: Config
users: null
"""


def build(server: str, ca_pem: bytes) -> str:
    """Render the kubeconfig byte for byte as kubeadm does. Raises ``Denied`` if ``parse`` would refuse it."""
    check_server(server)
    text = _KUBECONFIG.format(data=base64.b64encode(ca_pem).decode(), server=server)
    parse(text)
    return text


def parse(text: str) -> ClusterInfo:
    """Parse the kubeconfig of cluster-info. Raises ``Denied``.

    1. It is strict YAML of bounded size: apiVersion v1, kind Config, known fields only.
    2. It has no users, because cluster-info carries no credentials.
    3. It has exactly one cluster.
    4. The cluster has an https server and embedded CA certificates, and does not skip verification.
    """
    # 1
    document = _document(text)
    # 2
    if document.get("users"):
        raise _malformed("no users or credentials", "users")
    # 3
    clusters = document.get("clusters")
    rows = clusters if isinstance(clusters, list) else []
    if len(rows) != 1:
        raise _malformed("exactly one cluster", str(len(rows)))
    # 4
    return _cluster(_row(rows[0]))


def check_server(server: str) -> str:
    """Return the URL unchanged: https, a host, no user, query, fragment or space. Raises ``Denied``."""
    found = _SERVER.fullmatch(server)
    if found is None or not (_is_host(found[2]) if found[2] else _is_ipv6(found[1])) or int(found[3] or 1) > _MAX_PORT:
        got = "https, but no such URL" if server.startswith("https://") else "another scheme, or none"
        raise _malformed("server: https://host:port", got)
    return server


def parse_ca_bundle(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Parse a bundle of 1 to 64 CA certificates without other PEM blocks. Raises ``Denied``."""
    try:
        found = tuple(x509.load_pem_x509_certificates(pem))
    except X509_ERRORS:
        raise _malformed("certificate-authority-data: certificates in PEM", "something else") from None
    if not len(found) == len(_BLOCK.findall(pem)) == pem.count(b"-----BEGIN"):
        raise _malformed("certificate-authority-data: CERTIFICATE blocks without headers only", "another block")
    if len(found) > _MAX_CAS:
        raise _malformed(f"at most {_MAX_CAS} CA certificates", str(len(found)))
    for certificate in found:
        _check_ca(certificate)
    return found


def _document(text: str) -> JsonObject:
    if len(text) > MAX_KUBECONFIG:
        raise _malformed(f"a kubeconfig of at most {MAX_KUBECONFIG} characters", str(len(text)))
    document = parse_kubeconfig_document(text, _malformed)
    if not isinstance(document.get("contexts"), list | None) or not isinstance(
        document.get("current-context"), str | None
    ):
        raise _malformed("contexts to be a list and current-context text", "something else")
    return document


def _row(row: JsonValue) -> JsonObject:
    if not isinstance(row, dict) or not isinstance(row.get("cluster"), dict):
        raise _malformed("clusters[].cluster to be an object", "something else")
    check_fields(row, _ROW_FIELDS, "clusters[].", _malformed)
    if not isinstance(row.get("name"), str | None):
        raise _malformed("clusters[].name to be text", "something else")
    return cast("JsonObject", row["cluster"])


def _cluster(cluster: JsonObject) -> ClusterInfo:
    if cluster.get("insecure-skip-tls-verify") not in (None, False):
        raise _malformed("a server that is verified", "insecure-skip-tls-verify")
    allowed: JsonObject = {key: value for key, value in cluster.items() if value not in (None, "", False)}
    check_fields(allowed, _CLUSTER_FIELDS, "clusters[].cluster.", _malformed)
    server, name = cluster.get("server"), cluster.get("tls-server-name") or None
    if not isinstance(server, str):
        raise _malformed("server: https://host:port", "no text")
    if name is not None and not (isinstance(name, str) and (_is_host(name) or _is_ipv6(name))):
        raise _malformed("tls-server-name: a DNS name or an address", "something else")
    data = cluster.get("certificate-authority-data")
    if not isinstance(data, str) or not data:
        raise _malformed("certificate-authority-data", "none")
    try:
        pem = decode_data(data)
    except ValueError:
        raise _malformed("certificate-authority-data in base64", "something else") from None
    return ClusterInfo(server=check_server(server), ca_certificates=parse_ca_bundle(pem), tls_server_name=name)


def _is_host(text: str) -> bool:
    return len(text) <= _MAX_HOST and _HOST.fullmatch(text) is not None


def _is_ipv6(text: str) -> bool:
    # A zone has a meaning on one machine only.
    try:
        return IPv6Address(text).scope_id is None
    except ValueError:
        return False


def _check_ca(certificate: x509.Certificate) -> None:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.public_key()
    except x509.ExtensionNotFound:
        raise _malformed("CA certificates", "one without basic constraints") from None
    except X509_ERRORS as error:
        raise _malformed("CA certificates", f"one that cannot be read ({type(error).__name__})") from None
    if not constraints.ca:
        raise _malformed("CA certificates", "one that is no CA")


def _malformed(expected: str, got: str) -> Denied:
    return Denied(
        Reason.CLUSTER_INFO_MALFORMED,
        expected=expected,
        got=got,
        remedy="check it: nodeattest cluster-info show; write it again: nodeattest cluster-info publish",
    )
