"""The TLS context of one API server.

Promises: the server is verified against the endpoint's CAs; a client key touches no disk.
"""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
from typing import IO

from nodeattest_kube.errors import KubeconfigError
from nodeattest_kube.kubeconfig import ApiEndpoint

__all__ = ["tls_context"]


def tls_context(endpoint: ApiEndpoint) -> ssl.SSLContext:
    """Make the TLS context; bad certificates and keys are the kubeconfig's fault."""
    try:
        context = ssl.create_default_context(cadata=endpoint.ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(
            expected="CA certificates in PEM",
            got=type(error).__name__,
            remedy="check certificate-authority-data: base64 of one or more CERTIFICATE blocks",
        ) from None
    # VERIFY_X509_STRICT, new in Python 3.13's default context, refuses CAs without a subject key identifier, which
    # clusters of many years have. client-go accepts them; the chain to the given CA is verified all the same.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # As in Go, each CA that is given is an anchor, self-signed or not: a cluster's CA may be an intermediate one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Without DHE, where the server chooses a group of any size, and we compute with it; ECDHE and TLS 1.3 name theirs.
    names = (cipher["name"] for cipher in context.get_ciphers())
    context.set_ciphers(":".join(name for name in names if not name.startswith("DHE-")))
    if endpoint.client_certificate_pem is not None and endpoint.client_key_pem is not None:
        _load_client_certificate(context, endpoint.client_certificate_pem, endpoint.client_key_pem)
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load the pair; Python's ssl reads files only, so it gets a file in memory."""
    with _unwritten_file() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}" if sys.platform == "linux" else file.name
        try:
            # The password keeps OpenSSL from asking on the terminal when the key is encrypted.
            context.load_cert_chain(name, password="")
        except (ssl.SSLError, ValueError, OSError) as error:
            raise KubeconfigError(
                expected="a client certificate and its own, unencrypted key in PEM",
                got=type(error).__name__,
                remedy="check client-certificate-data and client-key-data",
            ) from None


def _unwritten_file() -> IO[bytes]:
    """Open a file that lives in memory on Linux, and elsewhere one that only we can read."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("client-certificate", os.MFD_CLOEXEC), "wb")
    return tempfile.NamedTemporaryFile()
