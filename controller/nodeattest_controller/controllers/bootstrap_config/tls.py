"""The webhook's serving certificate, in files that are renewed while it serves.

A mounted Secret of type ``kubernetes.io/tls`` has such files; cert-manager renews it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from nodeattest_providers.x509_errors import X509_ERRORS
from nodeattest_serving.tls import ServingCertificate

__all__ = ["FileCertificate"]


class FileCertificate:
    """``tls.crt`` and ``tls.key`` of a folder."""

    def __init__(self, folder: Path, client_ca: Path | None = None, *, now: Callable[[], datetime]) -> None:
        """Read the files; raises the listener's ``SettingsError``."""
        self._certificate = folder / "tls.crt"
        self._now = now
        self.context: Final = ServingCertificate(self._certificate, folder / "tls.key", client_ca).context

    def trouble(self) -> str | None:
        """Return what is wrong with the certificate, or None."""
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
        return f"{self._certificate} is valid {times}: check why its issuer does not renew it"
