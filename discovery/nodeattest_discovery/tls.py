"""TLS contexts for connections to API servers, for discovery and the agent.

TLS 1.2 or newer without DHE. As in Go, each given CA is an anchor even if it is not self-signed, and names count in the
SAN only. Nothing comes from the environment, and no key is written to a disk. Standard library only, because every call
of the agent imports it.
Source: Go crypto/x509 Certificate.Verify; RFC 9525 §2; OpenSSL X509_V_FLAG_PARTIAL_CHAIN.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import cast

from nodeattest_providers.identifiers import NODE_USER_PREFIX, NODES_GROUP


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate and its key in PEM."""

    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)


def unverified_context() -> ssl.SSLContext:
    """Return a context that accepts any server: for signed responses to requests without secrets."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def client_context(ca_pem: bytes | None, client: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return a context that trusts these CAs, or for None this machine's CAs as compiled into OpenSSL.

    Raises ``ssl.SSLError`` (an ``OSError``) or ``ValueError`` for invalid PEM.
    """
    context = _context()
    context.hostname_checks_common_name = False
    if ca_pem is None:
        _load_machines(context)
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    if client is not None:
        # OpenSSL needs a path. An anonymous file has one and leaves no key on a disk.
        with os.fdopen(os.memfd_create("credential", os.MFD_CLOEXEC), "wb") as memory:
            memory.write(client.certificate_pem + b"\n" + client.key_pem)
            memory.flush()
            context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}", password=_no_password)
    return context


def _context() -> ssl.SSLContext:
    """Return a context without DHE, because the server chooses its group, of any size."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    names = (cipher["name"] for cipher in context.get_ciphers())
    context.set_ciphers(":".join(name for name in names if not name.startswith("DHE-")))
    return context


def is_kubelet_certificate(peer: ssl.SSLSocket) -> bool:
    """Return whether a verified server has a kubelet's certificate.

    The cluster's CA signs these, too (kubernetes.io/kubelet-serving). A compromised node must not pass for the API
    server.
    """
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", (peer.getpeercert() or {}).get("subject", ()))
    return any(
        (kind == "organizationName" and value == NODES_GROUP)
        or (kind == "commonName" and value.startswith(NODE_USER_PREFIX))
        for relative in subject
        for kind, value in relative
    )


def _load_machines(context: ssl.SSLContext) -> None:
    paths = ssl.get_default_verify_paths()
    # pathlib costs the agent's calls 9 ms.
    file = paths.openssl_cafile if os.path.isfile(paths.openssl_cafile) else None  # noqa: PTH113 - without pathlib
    folder = paths.openssl_capath if os.path.isdir(paths.openssl_capath) else None  # noqa: PTH112 - without pathlib
    if file is not None or folder is not None:  # else no server is trusted
        context.load_verify_locations(cafile=file, capath=folder)


def _no_password() -> str:
    """Prevent OpenSSL's prompt for a password."""
    return ""
