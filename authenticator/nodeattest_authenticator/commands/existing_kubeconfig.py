"""Reads kubelet's kubeconfig of a node that is to be adopted.

The result holds server, CAs, and a client certificate that passed every check of ``certificate`` except its times.
Messages never quote a key.
Source: client-go tools/clientcmd/api/v1; kubeadm phases/kubeconfig (embedded certificate and key until phase
kubelet-finalize); kubelet pkg/kubelet/certificate/bootstrap (``kubelet-client-current.pem``: certificate and SEC 1 key
in one file).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from nodeattest_authenticator.certificate import ExpectedCertificate, validate
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_discovery.clusterinfo import decode_data
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NodeName
from nodeattest_providers.node_interface import JsonObject

_KEY: Final = re.compile(rb"-----BEGIN ((?:EC |RSA )?PRIVATE KEY)-----[^-]*-----END \1-----")
"""A private key in a file that may also hold certificates."""
_USER_FIELDS: Final = {"client-certificate", "client-certificate-data", "client-key", "client-key-data"}
_MAX_DEPTH: Final = 16
"""Levels of nesting; a kubeconfig has seven."""
_MAX_VALUES: Final = 4096
"""Values and keys of a kubeconfig."""
_MAX_SIZE: Final = 1 << 20
"""Bytes of a kubeconfig or of a file that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletAccess:
    """Server, CAs and credential of kubelet's kubeconfig."""

    server: str
    tls_server_name: str | None
    ca_pem: str
    node_name: NodeName
    credential: CachedCredential = field(repr=False)


def read_access(path: str, data: bytes, read: Callable[[str], bytes]) -> KubeletAccess:
    """Parse kubelet's kubeconfig and the files that it names. Raises ``AgentError``.

    1. It is one kubeconfig in YAML, whose current context names a cluster and a user.
    2. The server is verified by the CAs of the file, and reached without a proxy.
    3. The user is a client certificate with its key and nothing else.
    4. The certificate is a node's, for this key, issued by these CAs.
    """
    # 1
    try:
        document = strict_yaml.parse_object(
            _bounded(path, data), scalars=Scalars.TEXT, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES
        )
    except ParseError as error:
        raise _refused(path, "a kubeconfig in YAML", error.found) from None
    context = _named(path, document, "context", text(document, "current-context"))
    cluster = _named(path, document, "cluster", text(context, "cluster"))
    user = _named(path, document, "user", text(context, "user"))
    # 2
    if cluster.get("insecure-skip-tls-verify") is True or cluster.get("proxy-url"):
        raise _refused(path, "a server that is verified and reached directly", "insecure-skip-tls-verify or proxy-url")
    ca_pem = _content(path, cluster, "certificate-authority", read)
    # 3
    others = sorted(user.keys() - _USER_FIELDS)
    if others:
        raise _refused(path, "a user with a client certificate and its key", f"one with {others[0][:40]!r}")
    certificate, key = (_content(path, user, name, read) for name in ("client-certificate", "client-key"))
    # 4
    name, credential = _credential(path, certificate, key, ca_pem)
    return KubeletAccess(
        server=text(cluster, "server"),
        tls_server_name=text(cluster, "tls-server-name") or None,
        ca_pem=ca_pem.decode("utf-8", "replace"),
        node_name=name,
        credential=credential,
    )


def _named(path: str, document: JsonObject, kind: str, name: str) -> JsonObject:
    for entry in items(document, f"{kind}s"):
        found = entry.get(kind)
        if entry.get("name") == name and isinstance(found, dict):
            return found
    raise _refused(path, f"the {kind} that it refers to", "none")


def _content(path: str, section: JsonObject, name: str, read: Callable[[str], bytes]) -> bytes:
    """Return the embedded data, else the content of the named file, as client-go does."""
    data, file = text(section, f"{name}-data"), text(section, name)
    if data:
        try:
            return decode_data(data)
        except ParseError:
            raise _refused(path, f"{name}-data in base64", "something else") from None
    if not file:
        raise _refused(path, f"{name} or {name}-data", "neither")
    return _bounded(file, read(os.path.join(os.path.dirname(path), file)))


def _bounded(path: str, data: bytes) -> bytes:
    if len(data) > _MAX_SIZE:
        raise _refused(path, f"at most {_MAX_SIZE} bytes", "more")
    return data


def _credential(path: str, certificate: bytes, key: bytes, ca_pem: bytes) -> tuple[NodeName, CachedCredential]:
    key_block = _KEY.search(key)
    try:
        chain = b"".join(pem.encode(der, pem.CERTIFICATE) for der in pem.decode(certificate, pem.CERTIFICATE))
        leaf = x509.load_pem_x509_certificate(chain)
        [common_name] = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        private = load_pem_private_key(key_block[0] + b"\n" if key_block else b"", password=None)
        key_pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    except X509_ERRORS:
        raise _refused(path, "a certificate and its key in PEM", "something else") from None
    name = NodeName(str(common_name.value).removeprefix(NODE_USER_PREFIX))
    canonical, not_before, not_after = validate(chain, key_pem, ExpectedCertificate(node_name=name, ca_pem=ca_pem))
    return name, CachedCredential(
        certificate_pem=canonical, key_pem=key_pem, not_before=not_before, renew_at=not_after, not_after=not_after
    )


def _refused(path: str, expected: str, got: str) -> AgentError:
    return AgentError(
        AgentReason.CONFIGURATION_INVALID,
        f"{path}: expected {expected}, got {got}",
        remedy="name the kubeconfig that kubelet uses with --kubeconfig",
        kind=FailureKind.USAGE,
    )
