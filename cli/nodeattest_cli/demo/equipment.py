"""What a machine of the demo is and has: the values that the grounds make and the fleet uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeattest_providers.names import ProviderName, Purpose, SignerName, signer_for
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = ["Equipment", "Identity", "Seat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a machine says that it is."""

    node: str
    provider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a machine proves it with: the agent's provider and its settings."""

    provider: ProviderName
    settings: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    tells_provider_id: bool = False
    """Whether an honest agent learns the provider ID from the platform and needs not be told."""

    @property
    def signer(self) -> SignerName:
        """The signer of its client certificate."""
        return signer_for(self.provider, Purpose.CLIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """One machine as its ground delivers it: nothing of it is registered anywhere yet."""

    seat: Seat
    identity: Identity
    addresses: tuple[tuple[str, str], ...]
    """(type, address) pairs that Cluster API will report."""
    tpm: SoftwareTpm | None = None
    secret: bytes | None = field(default=None, repr=False)
    """The ``challenge`` provider's."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the infrastructure provider writes on the infrastructure object."""
