"""TLS of the gateway: its serving certificate, and the client certificates that it verifies.

Promises: TLS 1.3 without resumption. A client certificate is requested and not required, because key sets are public.
A client certificate of another CA than the front proxy's ends the handshake. A connection that was made under a CA that
is no longer trusted is not authenticated.
Leaves to others: reloading the files (``ServingCertificate``), which names are allowed (``front_proxy``).
Source: Python ``ssl``; OpenSSL SSL_set_SSL_CTX, by which a handshake gets the current certificate and CAs;
apiserver pkg/authentication/request/x509 (CAs of a bundle are roots, intermediate or not).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust
from nodeattest_serving.tls import ServingCertificate, common_name

__all__ = ["GatewayTls"]


class _Context(ssl.SSLContext):
    """A context that knows by which CAs it verifies clients."""

    authorities: frozenset[bytes]


class GatewayTls(ServingCertificate):
    """The serving certificate together with the front proxy's CAs."""

    def __init__(self, certificate: Path, key: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files; raises ``SettingsError``."""
        self._trust: FrontProxyTrust | None = None
        super().__init__(certificate, key, clock=clock)

    def set_trust(self, trust: FrontProxyTrust | None) -> None:
        """Verify clients by these CAs from now on; None: by none."""
        before, self._trust = self._trust, trust
        if (before.authorities if before else ()) != (trust.authorities if trust else ()):
            self._rebuild()

    def common_name(self, transport: asyncio.BaseTransport | None) -> str | None:
        """Return the common name of the client's certificate; None without one, or if its CA is no longer trusted."""
        connection = None if transport is None else cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
        if connection is None or not isinstance(connection.context, _Context):
            return None
        trusted = self._trust.authorities if self._trust is not None else ()
        return common_name(transport) if connection.context.authorities <= set(trusted) else None

    def is_unauthenticated(self, transport: asyncio.BaseTransport) -> bool:
        """Whether a connection is not of a front proxy that is trusted."""
        return self._trust is None or not self._trust.allows(self.common_name(transport))

    def _make(self) -> _Context:
        context = self._with_certificate(_Context(ssl.PROTOCOL_TLS_SERVER))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.authorities = frozenset(self._trust.authorities if self._trust else ())
        if self._trust is not None:
            context.load_verify_locations(cadata=self._trust.pem)
        return context
