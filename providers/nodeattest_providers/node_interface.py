"""What crosses between node and controller, and the provider interface of the node, ``Attestor``.

Apart from ``verifier_interface`` because the agent starts often, and every dataclass costs it 0.4 ms.
Source: docs/wire-format.md, "Binding", "Versions".
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from nodeattest_parsing.values import IntegerJsonObject, IntegerJsonValue
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import (
    ANNOTATION_SUPPORTED_VERSIONS,
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
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    """Only in serving requests; normalised text form."""

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.der).digest()

    @property
    def spki_sha256(self) -> str:
        return "sha256:" + hashlib.sha256(self.spki).hexdigest()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The content of the two attestation blocks: ``<provider>/v<version>`` and one JSON object."""

    provider: ProviderName
    version: int
    data: JsonObject = field(repr=False)
    """Closed schema per provider, version and phase; checked by the provider, not by the envelope."""

    @property
    def block(self) -> EvidenceBlock:
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
    text: str = field(repr=False)
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


HIGHEST: Final = 9999
"""The envelope's provider block takes no higher version."""
MAX_VERSIONS: Final = 16
"""Entries; a controller that understands more names its newest ones."""
MAX_TEXT: Final = MAX_VERSIONS * len(f"{'p' * 63}/v{HIGHEST},")

_VERSION_NUMBER: Final = re.compile(r"[1-9][0-9]{0,3}")


def check_supported(evidence: Evidence, accepted: Collection[int]) -> None:
    """Refuse evidence of a version that is not accepted; the refusal brings the annotation along."""
    if evidence.version in accepted:
        return
    raise Denied(
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        expected=versions_to_text(evidence.provider, accepted),
        got=evidence.block,
        remedy=f"send {evidence.provider} evidence of a version in the annotation {ANNOTATION_SUPPORTED_VERSIONS}: "
        "upgrade the node's agent if all of them are newer than it, and the controller if they are older",
        annotations=annotations_for(evidence.provider, accepted),
    )


def annotations_for(provider: ProviderName, accepted: Iterable[int]) -> Mapping[str, str]:
    """Return the annotation that goes with a refusal for a version; none where no version is accepted."""
    text = versions_to_text(provider, accepted)
    return {ANNOTATION_SUPPORTED_VERSIONS: text} if text else {}


def versions_to_text(provider: ProviderName, versions: Iterable[int]) -> str:
    newest = sorted(set(versions), reverse=True)[:MAX_VERSIONS]
    return ",".join(f"{provider}/v{version}" for version in newest)


def parse_versions(text: str, provider: ProviderName) -> tuple[int, ...]:
    """Read the annotation's value, newest first; anything but a canonical list for this provider is ``Denied``."""
    entries = text.split(",") if len(text) <= MAX_TEXT else []
    prefix = f"{provider}/v"
    numbers = [entry.removeprefix(prefix) for entry in entries if entry.startswith(prefix)]
    versions = tuple(int(number) for number in numbers if _VERSION_NUMBER.fullmatch(number))
    if not versions or versions_to_text(provider, versions) != text:
        raise Denied(
            Reason.EVIDENCE_VERSION_UNSUPPORTED,
            expected=f"1 to {MAX_VERSIONS} versions of {provider}, newest first, such as {provider}/v2,{provider}/v1",
            got=f"another text of {len(text)} characters",
            remedy="let the controller write the annotation",
        )
    return versions
