"""TLS towards API servers: whose certificates pass, and for which name; one place for discovery and the agent.

TLS 1.2 or newer, no DHE; each CA that is given is an anchor, self-signed or not, and names count in the SAN
only, both as in Go, so that what kubelet trusts is trusted here; nothing from the environment; no key touches a disk.
Standard library only: every call of the agent pays for it.
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
    """Who asks, by certificate; in PEM."""

    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)


def unverified_context() -> ssl.SSLContext:
    """Accept any server: only for an answer that proves itself, to a request without secrets."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def client_context(ca_pem: bytes | None, client: ClientCertificate | None = None) -> ssl.SSLContext:
    """Take whom these CAs vouch for; None: whom this machine trusts, as compiled into OpenSSL.

    Raises ``ssl.SSLError`` (an ``OSError``) or ``ValueError`` for PEM that cannot be used.
    """
    context = _context()
    context.hostname_checks_common_name = False
    if ca_pem is None:
        _load_machines(context)
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    if client is not None:
        # OpenSSL takes a path only; an anonymous file has one and leaves no key on any disk.
        with os.fdopen(os.memfd_create("credential", os.MFD_CLOEXEC), "wb") as memory:
            memory.write(client.certificate_pem + b"\n" + client.key_pem)
            memory.flush()
            context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}", password=_no_password)
    return context


def _context() -> ssl.SSLContext:
    """TLS 1.2 or newer, without DHE, where the server chooses a group of any size, and we compute with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    names = (cipher["name"] for cipher in context.get_ciphers())
    context.set_ciphers(":".join(name for name in names if not name.startswith("DHE-")))
    return context


def is_kubelet_certificate(peer: ssl.SSLSocket) -> bool:
    """Return whether a verified server shows a certificate that Kubernetes signs for kubelets.

    The cluster's CA signs these, too (kubernetes.io/kubelet-serving): who has taken over one node must not pass for
    the API server.
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
    if file is not None or folder is not None:  # with neither nobody is trusted, which is what there is to say
        context.load_verify_locations(cafile=file, capath=folder)


def _no_password() -> str:
    """Answer OpenSSL in a person's place: a node must not stop at a prompt."""
    return ""
