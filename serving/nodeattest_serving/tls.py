"""A serving certificate that is reloaded when its files change.

Files that cannot be used leave the current certificate in force. Sessions of clients with certificates are not resumed:
a resumption would outlive the CA that signed the certificate.
Source: Python ``ssl``; OpenSSL SSL_set_SSL_CTX, which is what replaces a certificate within a handshake.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeattest_serving.bounded_server import SettingsError

_CHECK_PERIOD: Final = 1.0
"""Seconds between two checks of the files."""

_log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
"""Time of the last change, inode and size of a file."""
_State = tuple[Stamp | None, ...]
_C = TypeVar("_C", bound=ssl.SSLContext)


class ServingCertificate:
    """A certificate chain, its key, and optionally the CA of client certificates."""

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
        self._state = self._stamps()
        try:
            self._current = self._make()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"{certificate}, {key}: expected a certificate in PEM and its key, got {describe_error(error)}"
            ) from None
        self._failed: tuple[_State, str] | None = None
        """Files that could not be used, and why: the warning is logged once for each."""
        self._next_check = clock() + _CHECK_PERIOD
        self.context: Final = self._make()
        """The context to listen with; each handshake gets the current certificate."""
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Use the current certificate; OpenSSL calls this in every handshake, with or without a server name."""
        self._refresh()
        connection.context = self._current

    def _refresh(self) -> None:
        if self._clock() < self._next_check:
            return
        self._next_check = self._clock() + _CHECK_PERIOD
        state = self._stamps()
        if state == self._state:
            return
        if self._rebuild(state):
            self._state = state
            _log.info("took the new serving certificate of %s", self._certificate)

    def _rebuild(self, state: _State | None = None) -> bool:
        """Make a new context; False, with one warning for each content, if the files cannot be used."""
        try:
            self._current = self._make()
        except (OSError, ValueError) as error:
            failed = state or self._state, describe_error(error)
            if failed != self._failed:
                _log.warning("keeping the serving certificate: %s cannot be used: %s", self._certificate, failed[1])
            self._failed = failed
            return False
        self._failed = None
        return True

    def _stamps(self) -> _State:
        return tuple(stamp(path) for path in (self._certificate, self._key, self._client_ca) if path is not None)

    def _make(self) -> ssl.SSLContext:
        context = self._with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        if self._client_ca is not None:
            verify_clients(context, self._client_ca)
        return context

    def _with_certificate(self, context: _C) -> _C:
        harden(context)
        context.load_cert_chain(self._certificate, self._key, password=no_password)
        return context


def self_signed_context(name: str) -> ssl.SSLContext:
    """Return a context with a new self-signed P-256 certificate, which nobody can verify, valid for ten years."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nodeattest")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden(context)
    # OpenSSL reads from a path only. An anonymous file has one and leaves the key on no disk.
    with os.fdopen(os.memfd_create("self-signed-certificate", os.MFD_CLOEXEC), "wb") as memory:
        memory.write(certificate.public_bytes(Encoding.PEM))
        memory.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        memory.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}", password=no_password)
    return context


def harden(context: ssl.SSLContext) -> None:
    """Allow TLS 1.2 or later, no session tickets, and one handshake on a connection (CVE-2011-1473)."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION


def verify_clients(context: ssl.SSLContext, client_ca: Path) -> None:
    """Require client certificates of a CA; raises ``OSError``."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # 1.2 resumes without tickets, too, from OpenSSL's cache
    context.load_verify_locations(client_ca)
    context.verify_mode = ssl.CERT_REQUIRED


def common_name(transport: asyncio.BaseTransport | None) -> str | None:
    """Return the common name of a client's verified certificate; None without one, or if it has several."""
    connection = None if transport is None else cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
    certificate = None if connection is None else connection.getpeercert()
    if not certificate:
        return None
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    names = [value for attributes in subject for name, value in attributes if name == "commonName"]
    return names[0] if len(names) == 1 else None


def no_password() -> str:
    """Keep OpenSSL from asking the terminal for the password of an encrypted key."""
    return ""


def stamp(path: Path) -> Stamp | None:
    """Identify a file's content by stat; None if the file cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def describe_error(error: Exception) -> str:
    """Describe what was found in place of a certificate and its key, without quoting it."""
    if isinstance(error, ssl.SSLError):
        return "something else, or the key of another certificate"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__
