"""The one digest that every proof covers (docs/wire-format.md, "Binding").

``binding = SHA-256(lp("nodeattest/v1/binding") || lp(cluster pin) || lp(signerName) || lp(SHA-256(CSR DER)))`` where
``length_prefix`` is a 4-byte big-endian length followed by the bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.names import ClusterPin, SignerName

__all__ = ["Binding", "cluster_pin", "length_prefix"]

_LABEL: Final = b"nodeattest/v1/binding"


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
        """The 32 bytes that go into quotes, MACs and signed headers."""
        return hashlib.sha256(
            length_prefix(_LABEL, self.cluster_pin.encode(), self.signer_name.encode(), self.csr_sha256)
        ).digest()
