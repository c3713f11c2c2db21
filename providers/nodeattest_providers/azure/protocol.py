"""What attestor and verifier of the ``azure`` provider exchange: one attested document, and its nonce's formula.

Promises: a closed schema read to a value or ``Denied``; the nonce depends on cluster, signer and request.
Source: docs/wire-format.md, "azure/v1"; Azure, "Instance Metadata Service", attested data: the nonce is a string of up
to 32 alphanumeric characters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nodeattest_providers.canonical_json import Fields, b64encode
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import JsonObject

PROVIDER: Final = ProviderName("azure")
VERSION: Final = 1
MAX_SIGNATURE: Final = 16 * 1024
"""Bytes of the signed document; Azure's have about 3 KiB."""
NONCE: Final = 32
"""Characters: as many as Azure takes, 128 bits."""


@dataclass(frozen=True, slots=True)
class AzureEvidence:
    """The attested document as the metadata service signed it."""

    signature: bytes = field(repr=False)
    """DER of CMS SignedData."""

    def to_json(self) -> JsonObject:
        """Write the evidence block's object."""
        return {"signature": b64encode(self.signature)}


def parse_evidence(data: JsonObject) -> AzureEvidence:
    """Read the evidence block's object; anything outside the schema is ``Denied``."""
    fields = Fields.of(data, "azure/v1", ("signature",))
    return AzureEvidence(fields.octets("signature", 1, MAX_SIGNATURE))


def nonce_for(binding: bytes) -> str:
    """Spell the nonce that binds a document to a request: the first half of the binding digest, in hex."""
    return binding.hex()[:NONCE]
