"""The one digest that every proof covers (docs/wire-format.md, "Binding").

It names provider and version, so that no proof of one is a proof of another.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final, Self

from nodeattest_parsing.values import IntegerJsonObject, IntegerJsonValue
from nodeattest_providers.identifiers import (
    ClusterPin,
    EvidenceBlock,
    NodeName,
    ProviderID,
    ProviderName,
    SignerName,
    evidence_block,
)

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


JsonValue = IntegerJsonValue
JsonObject = IntegerJsonObject


class SecretBytes:
    """Bytes that never show in a repr, a log or a traceback; ``reveal()`` is the only way to them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the bytes."""
        return self._value

    def __repr__(self) -> str:
        return "SecretBytes(***)"


@dataclass(frozen=True, slots=True)
class NodeCsr:
    """The closed record of a PKCS#10 request: all that the rules allow it to hold."""

    der: bytes
    """The whole CertificationRequest in DER; equal to the bytes of the PEM block."""
    node_name: NodeName
    """CN without ``system:node:``."""
    provider_id: ProviderID
    """Empty in a client request without the extension, which asks the controller for it."""
    spki: bytes
    """SubjectPublicKeyInfo in DER."""
    dns_names: tuple[str, ...] = ()
    """Only in serving requests."""
    ip_addresses: tuple[str, ...] = ()
    """Only in serving requests; normalised text form."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 of the DER."""
        return hashlib.sha256(self.der).digest()

    @property
    def spki_sha256(self) -> str:
        """``sha256:<hex>`` of the public key."""
        return "sha256:" + hashlib.sha256(self.spki).hexdigest()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The content of the two attestation blocks: ``<provider>/v<version>`` and one JSON object."""

    provider: ProviderName
    version: int
    """1 for ``tpm/v1``."""
    data: JsonObject = field(repr=False)
    """Closed schema per provider, version and phase; checked by the provider, not by the envelope."""

    @property
    def block(self) -> EvidenceBlock:
        """Provider and version, as the envelope and the binding name them."""
        return evidence_block(self.provider, self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRequestRef:
    """Which first request a second request answers. Claimed, so looked up and compared."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedChallenge:
    """What the node read back from its own first request."""

    name: str
    uid: str
    csr_sha256: bytes
    """SHA-256 of the first request's PKCS#10 DER."""
    text: str = field(repr=False)
    """The challenge annotation's value."""
    spki_sha256: str | None = None
    """``sha256:<hex>`` of the node's own key, for challenges that name it; the PKCS#10 digest covers it already."""


class Attestor(ABC):
    """A provider's attestor on the node. Whatever has a default is optional."""

    provider: ProviderName
    versions: tuple[int, ...]
    """Evidence versions, newest first. ``attest`` makes the newest; a version that is no longer secure must leave."""
    two_step: bool = False
    """Whether a second request with an answered challenge follows the first."""
    holds_device: bool = False
    """Whether it opens a device that other processes of the agent use, too; the agent locks it and calls ``close``."""
    parts: tuple[Attestor, ...] = ()
    """The attestors that make its evidence, where it is made of others."""

    @abstractmethod
    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        """Make the evidence for a CSR; raises Unavailable (device, metadata service) or Denied (foreign challenge)."""

    def in_version(self, version: int) -> Attestor:
        """Return the attestor of one of ``versions``; it may share this one's device. Older ones are the provider's."""
        if version != self.versions[0]:
            raise ValueError(f"{self.provider} makes no evidence of version {version}")
        return self

    def provider_id(self) -> str | None:
        """Return the machine's provider ID, None if the provider does not know it; raises Unavailable or Denied."""
        return None

    def endorsement_fingerprint(self) -> str | None:
        """Return ``sha256:<hex>`` of the endorsement key that identifies the machine, if one does; or Unavailable."""
        return None

    def close(self) -> None:
        """Release the device; harmless when done twice. A later use opens it again."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
