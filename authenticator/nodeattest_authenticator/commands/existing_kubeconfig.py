"""The kubeconfig and certificate by which kubelet reaches its cluster before it is adopted.

Promises: what is returned names a server, CAs, and a client certificate with its key that passed every check of
``certificate`` but for its times: this node's own, by a CA of this cluster. All else is a ``AgentError`` that quotes no
key. Leaves to others: replacing anything.
Sources: client-go tools/clientcmd/api/v1; kubeadm phases/kubeconfig (the init node's holds certificate and key until
phase kubelet-finalize), kubelet pkg/kubelet/certificate/bootstrap (``kubelet-client-current.pem``: certificate and key
in one file, the key as SEC 1).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

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
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NodeName
from nodeattest_providers.node_interface import JsonObject, JsonValue

_PEM_KEYS: Final = (b"PRIVATE KEY", b"EC PRIVATE KEY", b"RSA PRIVATE KEY")
_MAX_DEPTH: Final = 16
"""Levels of a kubeconfig, which has seven."""
_MAX_VALUES: Final = 4096
"""Values and keys of a kubeconfig."""
_MOST: Final = 1 << 20
"""Bytes of a kubeconfig or of a file that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletAccess:
    """How kubelet reaches its cluster now."""

    server: str
    tls_server_name: str | None
    ca_pem: str
    node_name: NodeName
    credential: CachedCredential = field(repr=False)


def read_access(path: str, data: bytes, read: Callable[[str], bytes]) -> KubeletAccess:
    """Read kubelet's kubeconfig and what it names; raises ``AgentError``.

    1. It is one kubeconfig in YAML; its current context names a cluster and a user. 2. The server is verified by CAs
    that it names, and reached without a proxy. 3. The user is a client certificate with its key, and nothing else.
    4. That certificate is a node's, for this key, by these CAs.
    """
    document = _document(path, data)  # 1
    context = _named(path, document, "contexts", "context", _text(document, "current-context"))
    cluster = _named(path, document, "clusters", "cluster", _text(context, "cluster"))
    user = _named(path, document, "users", "user", _text(context, "user"))
    folder = os.path.dirname(path)
    source = _Source(path, folder, read)
    if cluster.get("insecure-skip-tls-verify") is True or cluster.get("proxy-url"):  # 2
        raise _refused(path, "a server that is verified and reached directly", "insecure-skip-tls-verify or proxy-url")
    others = sorted(user.keys() - {"client-certificate", "client-certificate-data", "client-key", "client-key-data"})
    if others:  # 3
        raise _refused(path, "a user with a client certificate and its key", f"one with {others[0][:40]!r}")
    ca_pem = source.bytes_of(cluster, "certificate-authority")
    certificate, key = source.bytes_of(user, "client-certificate"), source.bytes_of(user, "client-key")
    name, credential = _credential(path, certificate, key, ca_pem)  # 4
    return KubeletAccess(
        server=_text(cluster, "server"),
        tls_server_name=_text(cluster, "tls-server-name") or None,
        ca_pem=ca_pem.decode("utf-8", "replace"),
        node_name=name,
        credential=credential,
    )


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    folder: str
    read: Callable[[str], bytes]

    def bytes_of(self, section: JsonObject, name: str) -> bytes:
        """Read the data in the kubeconfig, else the file that it names; data wins (client-go)."""
        data = _text(section, f"{name}-data")
        if data:
            try:
                return decode_data(data)
            except ParseError:
                raise _refused(self.path, f"{name}-data in base64", "something else") from None
        file = _text(section, name)
        if not file:
            raise _refused(self.path, f"{name} or {name}-data", "neither")
        found = self.read(os.path.join(self.folder, file))
        if len(found) > _MOST:
            raise _refused(file, f"at most {_MOST} bytes", "more")
        return found


def _document(path: str, data: bytes) -> JsonObject:
    if len(data) > _MOST:
        raise _refused(path, f"at most {_MOST} bytes", "more")
    try:
        return strict_yaml.parse_object(data, scalars=Scalars.TEXT, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
    except ParseError as error:
        raise _refused(path, "a kubeconfig in YAML", error.found) from None


def _named(path: str, document: JsonObject, plural: str, singular: str, name: str) -> JsonObject:
    entries = document.get(plural)
    for entry in cast("list[JsonValue]", entries) if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name:
            found = entry.get(singular)
            if isinstance(found, dict):
                return found
    raise _refused(path, f"one of its {plural} by the name that it refers to", "none")


def _credential(path: str, certificate: bytes, key: bytes, ca_pem: bytes) -> tuple[NodeName, CachedCredential]:
    try:
        chain = b"".join(pem.encode(der, pem.CERTIFICATE) for der in pem.decode(certificate, pem.CERTIFICATE))
        leaf = x509.load_pem_x509_certificate(chain)
        [common_name] = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        user = str(common_name.value)
        private = load_pem_private_key(_key_block(key), password=None)
        key_pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    except X509_ERRORS:
        raise _refused(path, "a certificate and its key in PEM", "something else") from None
    name = NodeName(user.removeprefix(NODE_USER_PREFIX))
    canonical, not_before, not_after = validate(chain, key_pem, ExpectedCertificate(node_name=name, ca_pem=ca_pem))
    made = CachedCredential(
        certificate_pem=canonical, key_pem=key_pem, not_before=not_before, renew_at=not_after, not_after=not_after
    )
    return name, made


def _key_block(data: bytes) -> bytes:
    """Take the one private key out of a file that may hold certificates, too."""
    for label in _PEM_KEYS:
        begin, end = b"-----BEGIN %b-----" % label, b"-----END %b-----" % label
        before, found, rest = data.partition(begin)
        del before
        if found:
            return begin + rest.partition(end)[0] + end + b"\n"
    raise ValueError("no private key")


def _text(section: JsonObject, name: str) -> str:
    value = section.get(name)
    return value if isinstance(value, str) else ""


def _refused(path: str, expected: str, got: str) -> AgentError:
    return AgentError(
        AgentReason.CONFIGURATION_INVALID,
        f"{path}: expected {expected}, got {got}",
        remedy="name the kubeconfig that kubelet uses with --kubeconfig",
        kind=FailureKind.USAGE,
    )
