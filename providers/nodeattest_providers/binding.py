"""The one digest that every proof covers (docs/wire-format.md, "Binding").

It names provider and version, so that no proof of one is a proof of another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, SignerName

_LABEL: Final = b"nodeattest/v1/binding"


def length_prefix(*fields: bytes) -> bytes:
    """Join fields unambiguously: each preceded by its length as four big-endian bytes."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def cluster_pin(ca_spki_der: bytes) -> ClusterPin:
    """Pin a cluster CA by its SubjectPublicKeyInfo, in kubeadm's spelling ``sha256:<hex>``."""
    return ClusterPin("sha256:" + hashlib.sha256(ca_spki_der).hexdigest())


@dataclass(frozen=True, slots=True)
class Binding:
    """What a proof is bound to: one version of one provider's evidence, one cluster, one signer, one CSR."""

    evidence_block: EvidenceBlock
    """Of the request, or of the part where the provider is a part of ``composite``."""
    cluster_pin: ClusterPin
    signer_name: SignerName
    csr_sha256: bytes

    @property
    def digest(self) -> bytes:
        """The 32 bytes that go into quotes, MACs and signed headers."""
        fields = self.evidence_block.encode(), self.cluster_pin.encode(), self.signer_name.encode(), self.csr_sha256
        return hashlib.sha256(length_prefix(_LABEL, *fields)).digest()
