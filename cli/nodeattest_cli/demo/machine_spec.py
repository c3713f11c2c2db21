"""Identity, attestor settings and hardware of a demo machine: made by ``platforms``, used by ``fleet``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeattest_providers.names import ProviderName, Purpose, SignerName, signer_for
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = ["INSTALL", "AttestorSettings", "ClaimedIdentity", "MachineSpec"]

INSTALL: Final = "install requirements-sandbox.txt of the release: docs/install.md"
"""What brings a library that a platform of the demo lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedIdentity:
    """The identity that a machine claims."""

    node: str
    provider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestorSettings:
    """The agent's provider and its settings."""

    provider: ProviderName
    settings: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    discovers_provider_id: bool = False
    """Whether the agent learns the provider ID from the platform, so that no flag is needed."""

    @property
    def signer(self) -> SignerName:
        """The signer of its client certificate."""
        return signer_for(self.provider, Purpose.CLIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """One machine as its platform delivers it, not yet registered anywhere."""

    attestor: AttestorSettings
    identity: ClaimedIdentity
    addresses: tuple[tuple[str, str], ...]
    """(type, address) pairs that Cluster API will report."""
    tpm: SoftwareTpm | None = None
    secret: bytes | None = field(default=None, repr=False)
    """The ``challenge`` provider's."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the infrastructure provider writes on the infrastructure object."""
