"""TLS of the gateway: its certificate, and the certificates that clients may show.

Promises: TLS 1.3 without resumption; a certificate is asked for and none is demanded, because key sets and health are
for everybody; one that is shown and not of the front proxy's CA ends the handshake. A connection that was made under a
CA which has gone since is nobody's. Files that changed are read at the next handshake, once a second at most; what
cannot be used leaves the certificate in hand.
Leaves to others: which names count (``frontproxy``).
Source: Python ``ssl``; OpenSSL SSL_set_SSL_CTX, by which a handshake gets the certificate and the CAs in force;
apiserver pkg/authentication/request/x509 (CAs of a bundle are roots, intermediate or not).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust
from nodeattest_serving.files import Stamp, describe_error, no_password, stamp
from nodeattest_serving.settings import SettingsError

__all__ = ["GatewayTls"]

_LOOK_AGAIN: Final = 1.0
"""Seconds between two looks at the files."""

_log = logging.getLogger(__name__)


class _Context(ssl.SSLContext):
    """A context that knows whose clients it lets in."""

    authorities: frozenset[bytes]


class GatewayTls:
    """What to listen with."""

    def __init__(self, certificate: Path, key: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files; raises ``SettingsError``."""
        self._files = certificate, key
        self._clock = clock
        self._trust: FrontProxyTrust | None = None
        self._state = self._look()
        self._look_again = clock() + _LOOK_AGAIN
        try:
            self._current = self._make()
            self.context: Final = self._make()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"{certificate}, {key}: expected a certificate in PEM and its key, got {describe_error(error)}"
            ) from None
        self.context.sni_callback = self._choose

    def believe(self, trust: FrontProxyTrust | None) -> None:
        """Let the clients of other CAs in from now on; None: nobody's."""
        before = self._trust
        self._trust = trust
        if (before.authorities if before else ()) != (trust.authorities if trust else ()):
            self._replace()

    def common_name(self, transport: asyncio.BaseTransport | None) -> str | None:
        """Return the name in the client's certificate; None where none was shown, or its CA counts no longer."""
        connection = None if transport is None else cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
        if connection is None or not isinstance(connection.context, _Context):
            return None
        shown = connection.getpeercert()
        believed = self._trust.authorities if self._trust is not None else ()
        if not shown or not connection.context.authorities <= set(believed):
            return None
        subject = cast("tuple[tuple[tuple[str, str], ...], ...]", shown.get("subject", ()))
        names = [value for attributes in subject for name, value in attributes if name == "commonName"]
        return names[0] if len(names) == 1 else None

    def is_unauthenticated(self, transport: asyncio.BaseTransport) -> bool:
        """Tell whether a connection is nobody's who is believed."""
        return self._trust is None or not self._trust.knows(self.common_name(transport))

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Give a handshake what is in force; called for every one, with a name or without."""
        if self._clock() >= self._look_again:
            self._look_again = self._clock() + _LOOK_AGAIN
            state = self._look()
            if state != self._state and self._replace():
                self._state = state
        connection.context = self._current

    def _replace(self) -> bool:
        try:
            self._current = self._make()
        except (OSError, ValueError) as error:
            _log.warning(
                "keeping the serving certificate: %s cannot be used: %s", self._files[0], describe_error(error)
            )
            return False
        return True

    def _look(self) -> tuple[Stamp | None, ...]:
        """Tell one content of the files from another without reading them."""
        return tuple(stamp(path) for path in self._files)

    def _make(self) -> _Context:
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.load_cert_chain(*self._files, password=no_password)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.authorities = frozenset(self._trust.authorities if self._trust else ())
        if self._trust is not None:
            context.load_verify_locations(cadata=self._trust.pem)
        return context
