"""The serving certificate in force, for every handshake from the moment that it is taken.

Promises: a connection that stands keeps what it began with; the key touches no disk; files that cert-manager renews are
taken when they change (``ServingCertificate``), and their expiry is told.
Source: Python ``ssl``; OpenSSL SSL_set_SSL_CTX.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from nodeattest_providers.x509_errors import X509_ERRORS
from nodeattest_serving.files import describe_error, no_password, stamp
from nodeattest_serving.settings import SettingsError
from nodeattest_serving.tls import ServingCertificate, harden, verify_clients

__all__ = ["DynamicCertificate", "FileCertificate"]


_CHECK_PERIOD: Final = 1.0
"""Seconds between two checks of the client CA's file."""

_LOG: Final = logging.getLogger(__name__)


class DynamicCertificate:
    """A certificate out of a Secret; the CA of client certificates out of a file."""

    def __init__(self, client_ca: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``client_ca``: None asks for no client certificate; raises the listener's ``SettingsError``."""
        self._current: ssl.SSLContext | None = None
        self._taken = b"", b""
        self._client_ca = client_ca
        self._clock = clock
        self._client_ca_stamp = stamp(client_ca) if client_ca is not None else None
        self._next_check = clock() + _CHECK_PERIOD
        try:
            self.context: Final = self._make()
        except OSError as error:
            raise SettingsError(f"{client_ca}: expected CAs in PEM, got {describe_error(error)}") from None
        """What to listen with; without a certificate every handshake fails."""
        self.context.sni_callback = self._choose

    @property
    def is_there(self) -> bool:
        """Whether a handshake can succeed."""
        return self._current is not None

    def take(self, chain: bytes, key: bytes) -> bool:
        """Show this certificate from now on; returns whether it is another one."""
        if chain == self._taken[0]:
            return False
        self._load(chain, key)
        return True

    def _load(self, chain: bytes, key: bytes) -> None:
        context = self._make()
        # OpenSSL takes a path only; an anonymous file has one and leaves no key on any disk.
        with os.fdopen(os.memfd_create("webhook-certificate", os.MFD_CLOEXEC), "wb") as memory:
            memory.write(chain + b"\n" + key)
            memory.flush()
            context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}", password=no_password)
        self._current, self._taken = context, (chain, key)

    def _refresh(self) -> None:
        """Read the client CA again if its file has changed; what cannot be used leaves the current one in force."""
        if self._client_ca is None or self._clock() < self._next_check:
            return
        self._next_check = self._clock() + _CHECK_PERIOD
        changed = stamp(self._client_ca)
        if changed == self._client_ca_stamp:
            return
        self._client_ca_stamp = changed
        try:
            self._load(*self._taken)
        except OSError as error:  # ssl.SSLError is one
            _LOG.warning("keeping the CA of client certificates: %s: %s", self._client_ca, describe_error(error))

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        """Give a handshake the certificate in force; called for every one, with a name or without."""
        if self._current is not None:
            self._refresh()
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        harden(context)
        if self._client_ca is not None:
            verify_clients(context, self._client_ca)
        return context


class FileCertificate:
    """A certificate in a folder, as a mounted Secret of cert-manager (type kubernetes.io/tls) shows it."""

    def __init__(self, folder: Path, client_ca: Path | None = None, *, now: Callable[[], datetime]) -> None:
        """Read it, and the CA of client certificates, if any; raises the listener's ``SettingsError``."""
        self._certificate = folder / "tls.crt"
        self._now = now
        self.context: Final = ServingCertificate(self._certificate, folder / "tls.key", client_ca).context

    def trouble(self) -> str | None:
        """Say what is wrong with it; None where nothing is."""
        try:
            certificate = x509.load_pem_x509_certificate(self._certificate.read_bytes())
        except OSError as error:
            return f"{self._certificate} cannot be read: {error.strerror}"
        except X509_ERRORS:
            return f"{self._certificate} holds no certificate in PEM"
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if begin <= self._now() < end:
            return None
        times = f"from {begin:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}"
        return f"{self._certificate} is good {times}: see why its issuer does not renew it"
