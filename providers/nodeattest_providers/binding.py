"""The one digest that every proof covers (docs/wire-format.md, "Binding").

``binding = SHA-256(lp("nodeattest/v1/binding", cluster pin, signerName, SHA-256(CSR DER)))`` where ``length_prefix``
is a 4-byte big-endian length followed by the bytes. From version 2 of a provider's evidence on, the label has that
version, and the evidence block (``tpm/v2``) follows it: a proof says itself what it was made for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.names import ClusterPin, ProviderName, SignerName

__all__ = ["Binding", "cluster_pin", "length_prefix"]

_FIRST: Final = 1
"""The version of evidence whose binding does not name it; all others' does."""


def length_prefix(*fields: bytes) -> bytes:
    """Join fields unambiguously: each preceded by its length as four big-endian bytes."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def cluster_pin(ca_spki_der: bytes) -> ClusterPin:
    """Pin a cluster CA by its SubjectPublicKeyInfo, in kubeadm's spelling ``sha256:<hex>``."""
    return ClusterPin("sha256:" + hashlib.sha256(ca_spki_der).hexdigest())


@dataclass(frozen=True, slots=True)
class Binding:
    """What a proof is bound to: one cluster, one signer, one CSR."""

    cluster_pin: ClusterPin
    signer_name: SignerName
    csr_sha256: bytes
    """SHA-256 of the PKCS#10 DER, 32 bytes."""

    @property
    def digest(self) -> bytes:
        """The 32 bytes that go into quotes, MACs and signed headers of version 1 of any provider's evidence."""
        return self._digest(b"nodeattest/v1/binding")

    def digest_for(self, provider: ProviderName, version: int) -> bytes:
        """Compute the 32 bytes for one version of a provider's evidence; from version 2 on they name both."""
        if version == _FIRST:
            return self.digest
        return self._digest(f"nodeattest/v{version}/binding".encode(), f"{provider}/v{version}".encode())

    def _digest(self, *which: bytes) -> bytes:
        fields = self.cluster_pin.encode(), self.signer_name.encode(), self.csr_sha256
        return hashlib.sha256(length_prefix(*which, *fields)).digest()
