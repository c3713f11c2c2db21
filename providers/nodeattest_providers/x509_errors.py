"""What cryptography raises on certificates that it cannot read: its border, in one place.

Its exceptions have no common base: an X.509 version that does not exist, an extension that occurs twice and a kind of
name that it has no class for are no ``ValueError``. Promises nothing of certificates that it can read.
Source: cryptography's x509 documentation, "Exceptions"; the rest was found by fuzzing.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

X509_ERRORS: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
