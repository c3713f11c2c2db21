"""A serving certificate that may be replaced while we serve.

Promises: TLS 1.2 or later, 1.3 where clients show certificates; files that changed are read at the next handshake, once
a second at most; what cannot be used (half written, a key of another certificate) leaves the certificate in hand, and
is logged. No session of a client with a certificate is resumed: that would not show it again, and so outlive the CA
that vouched for it.
Source: Python ``ssl``; OpenSSL SSL_set_SSL_CTX, which is what replaces a certificate within a handshake.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodeattest_serving.files import Stamp, no_password, said, stamp
from nodeattest_serving.settings import SettingsError

__all__ = ["ServingCertificate"]

_LOOK_AGAIN: Final = 1.0
"""Seconds between two looks at the files."""

_log = logging.getLogger(__name__)

_State = tuple[Stamp | None, ...]


class ServingCertificate:
    """A certificate chain, its key, and perhaps the CA of those who may connect."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_ca: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files; raises ``SettingsError``."""
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._clock = clock
        self._state = self._look()
        try:
            self._current = self._make()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"{certificate}, {key}: expected a certificate in PEM and its key, got {said(error)}"
            ) from None
        self._look_again = clock() + _LOOK_AGAIN
        self.context: Final = self._make()
        """What to listen with: it hands each handshake to the certificate that is in force."""
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Give a handshake the certificate that is in force; called for every one, with a name or without."""
        self._refresh()
        connection.context = self._current

    def _refresh(self) -> None:
        if self._clock() < self._look_again:
            return
        self._look_again = self._clock() + _LOOK_AGAIN
        state = self._look()
        if state == self._state:
            return
        try:
            self._current = self._make()
        except (OSError, ValueError) as error:
            _log.warning("keeping the serving certificate: %s cannot be used: %s", self._certificate, said(error))
            return
        self._state = state
        _log.info("took the new serving certificate of %s", self._certificate)

    def _look(self) -> _State:
        """Tell one content of the files from another without reading them."""
        return tuple(stamp(path) for path in (self._certificate, self._key, self._client_ca) if path is not None)

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        context.load_cert_chain(self._certificate, self._key, password=no_password)
        if self._client_ca is not None:
            context.minimum_version = ssl.TLSVersion.TLSv1_3  # 1.2 resumes without tickets, too, from OpenSSL's cache
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
