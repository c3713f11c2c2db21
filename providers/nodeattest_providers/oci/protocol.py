"""What attestor and verifier of ``oci`` exchange: an identity certificate, and a signature by its key over the binding.

The signature is RSASSA-PSS with SHA-256. Oracle's API takes PKCS#1 v1.5 signatures by the same key, so neither serves
as the other.
Source: docs/wire-format.md, "oci/v1"; RFC 8017 §8.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.hashes import SHA256

from nodeattest_providers.binding import length_prefix
from nodeattest_providers.canonical_json import Fields, b64encode
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import JsonObject

PROVIDER: Final = ProviderName("oci")
VERSION: Final = 1
MAX_CERTIFICATE: Final = 4096
"""Bytes of a certificate in DER; Oracle's have about 1,500."""
MAX_INTERMEDIATES: Final = 4
HASH: Final = SHA256()
PADDING: Final = padding.PSS(padding.MGF1(HASH), 32)
_SIGNATURE: Final = range(256, 512 + 1)
"""Bytes of a signature by RSA keys of 2048 to 4096 bits."""


def message(binding: bytes) -> bytes:
    """Return what the instance's key signs."""
    return length_prefix(b"oci/v1", binding)


@dataclass(frozen=True, slots=True)
class OciEvidence:
    """The evidence block's object."""

    certificate: bytes = field(repr=False)
    """The instance's identity certificate in DER."""
    intermediates: tuple[bytes, ...] = field(repr=False)
    signature: bytes = field(repr=False)

    def to_json(self) -> JsonObject:
        """Write the object."""
        return {
            "certificate": b64encode(self.certificate),
            "intermediates": [b64encode(each) for each in self.intermediates],
            "signature": b64encode(self.signature),
        }

    @classmethod
    def parse(cls, data: JsonObject) -> OciEvidence:
        """Read the object; anything outside the schema is ``Denied``."""
        fields = Fields.of(data, "oci/v1", ("certificate", "intermediates", "signature"))
        return cls(
            certificate=fields.octets("certificate", 1, MAX_CERTIFICATE),
            intermediates=fields.octets_list("intermediates", MAX_INTERMEDIATES, 1, MAX_CERTIFICATE),
            signature=fields.octets("signature", _SIGNATURE.start, _SIGNATURE.stop - 1),
        )
