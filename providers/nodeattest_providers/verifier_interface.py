"""The provider interface: what a provider's verifier receives and returns, as frozen values.

The controller gathers ``Facts``, then asks a ``ClusterAPISigner``; the node's ``Attestor`` makes the evidence.
Source: the proposal's ``ClusterAPISigner``, with typed verdicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from nodeattest_providers.checks import Checks
from nodeattest_providers.config_fields import COMPOSITE, name_pin
from nodeattest_providers.errors import Check, Denied, Unavailable, platform_unavailable
from nodeattest_providers.identifiers import (
    ClusterPin,
    MachineName,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
    SignerName,
)
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.node_interface import Binding, Evidence, FirstRequestRef, JsonValue, NodeCsr, SecretBytes

_MAX_PINS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """A CertificateSigningRequest object that passed the parser: well-formed, nothing proved yet."""

    name: str
    uid: str
    created: datetime
    """``metadata.creationTimestamp``, UTC: the API server's clock, the only one shared by all replicas."""
    signer_name: SignerName
    purpose: Purpose
    username: str
    groups: frozenset[str]
    expiration_seconds: int | None
    request: bytes = field(repr=False)
    csr: NodeCsr
    evidence: Evidence

    @property
    def is_renewal(self) -> bool:
        return self.username.startswith("system:node:")

    def binding(self, pin: ClusterPin) -> Binding:
        return Binding(self.evidence.block, pin, self.signer_name, self.csr.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The workload cluster: who it is and which CAs it has now."""

    uid: str
    pins: frozenset[ClusterPin]
    """Every CA of the cluster's current bundle; proofs bound to any of them count."""

    @property
    def first_pins(self) -> list[ClusterPin]:
        """At most 8 CAs, for proofs that cost much to compare; a cluster has one, two while it rotates."""
        return sorted(self.pins)[:_MAX_PINS]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The one Machine that the request's provider ID names, as the management cluster knows it."""

    uid: str
    provider_id: ProviderID
    name: str = ""
    namespace: str = ""
    provider_id_prefix: str = ""
    """What the infrastructure gives of it, where the request chose the rest; empty: all of it."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Annotations of the Machine: written in the management cluster, hence trusted."""
    endorsement_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fingerprints of the machine's endorsement key by their source: infrastructure machine, host object or record."""
    attestation_secret: SecretBytes | Denied | None = None
    """The per-Machine secret of the ``challenge`` provider, from the bootstrap data, or why none counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootState:
    """TPM clock and PCRs of a verified quote (TPM 2.0 part 2, TPMS_CLOCK_INFO)."""

    clock: int
    """Milliseconds."""
    reset_count: int
    restart_count: int
    safe: bool
    pcr_digest: str
    """Hex."""
    bank: str = ""
    """Name of the quoted bank, such as ``sha256``."""
    pcrs: Mapping[int, str] = field(default_factory=dict[int, str])
    """The quoted values in hex, by PCR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What the ledger (MachineAttestation) pins for this machine."""

    fingerprints: Mapping[str, str] = field(default_factory=dict[str, str])
    """By kind, whichever provider pinned it; ``composite`` gets all of them by ``<provider>.<kind>``."""
    clock: int | None = None
    reset_count: int | None = None
    answered: bool = False
    """Whether the ledger holds this request already: then the clock of its quote is the ledger's own, and not old."""
    provider: str = ""
    """The one that attested this machine last; empty while none did."""
    bound_spkis: frozenset[str] = frozenset()
    """``sha256:<hex>`` of the keys that were issued to this machine."""
    was_reset: bool = False
    """Whether an operator opened the binding: then the first machine that attests is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a verification may use besides the request. Gathered before; verifying does no I/O on Kubernetes."""

    cluster: ClusterFacts
    machine: MachineFacts
    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    sections: Mapping[ProviderName, Mapping[str, JsonValue]] = field(
        default_factory=dict[ProviderName, Mapping[str, JsonValue]]
    )
    ledger: LedgerFacts = field(default_factory=LedgerFacts)
    first_request: NodeRequest | None = None
    challenge_keys: tuple[SecretBytes, ...] = ()
    """Master keys, newest first; the previous one is kept for one challenge lifetime."""
    verified_at: datetime
    """The controller's clock, for certificate chains only. Freshness is measured at ``NodeRequest.created``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedNode:
    """What a verification proved. Exists only when key, evidence, cluster and signer are bound together."""

    provider: ProviderName
    provider_id: ProviderID
    proven_node_name: NodeName | None = None
    """A node name that the provider itself proves, such as EC2's private DNS name."""
    proven_machine_name: MachineName | None = None
    """``metadata.name`` of the Machine, if the evidence proves it. It never chooses a Machine: if the provider ID names
    another one, the request is denied."""
    fingerprints: Mapping[str, str] = field(default_factory=dict[str, str])
    """To be pinned, by kind, which means one thing to all providers; in ``composite`` by ``<part>.<kind>``."""
    boot: BootState | None = None
    first_request: FirstRequestRef | None = None
    checks: tuple[Check, ...]

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("a verification without checks proves nothing")

    @property
    def pins(self) -> dict[str, str]:
        """The fingerprints as the ledger names them, ``<provider>.<kind>``."""
        if self.provider == COMPOSITE:
            return dict(self.fingerprints)
        return {name_pin(self.provider, kind): value for kind, value in self.fingerprints.items()}


Addresses = tuple[tuple[str, str], ...]
"""(type, address) pairs, as in ``Machine.status.addresses``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEndorsementKey:
    """The endorsement key of a machine, as its platform names it."""

    fingerprint: str
    checks: tuple[Check, ...]


class ClusterAPISigner(ABC):
    """A provider's verifier in the controller. Whatever has a default is optional."""

    provider: ProviderName
    versions: tuple[int, ...]
    secure: bool
    """False: no proof at all; never beside a secure provider, no rotation, no serving certificates."""
    two_step: bool = False
    """Whether a first request is challenged, and a second one answers."""
    takes_platform: bool = False
    """Whether it is made by ``(platform=Platform(...))``, instead of without arguments."""
    reads_infrastructure: bool = True
    """False: a machine need not wait for its infrastructure object."""
    reads_secret: bool = False
    """Whether the Machine's attestation secret is read for it."""
    tells_addresses: bool = False
    """Whether its platform knows at which names and addresses a machine can be reached now."""

    @abstractmethod
    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify a client request; raises Denied, Unavailable or ChallengeRequired."""

    async def verify_serving_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify a serving request by the same rules: the binding names the signer, so neither passes for the other."""
        return await self.verify_client_attestation_data(request, facts)

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        """Return the first request that this one answers, None for a first one; raises Denied on malformed evidence."""
        del request
        return None

    def machine_name(self, request: NodeRequest, attested: AttestedNode) -> MachineName | None:
        """Return the Machine that the evidence of a verified request proves; None if it proves no Machine.

        The controller denies the request if the provider ID names another Machine. A requested name proves nothing.
        Source: the proposal's ``ClusterAPISigner.MachineName``.
        """
        del request
        return attested.proven_machine_name

    def check_settings(self, settings: Mapping[str, JsonValue]) -> None:
        del settings

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        """Check the record of the machine's last proof as a renewal that proves the same would be checked; offline.

        Returns a sentence for each thing that a renewal is checked for and that is not on record. Raises Denied.
        """
        del facts, boot
        return (f"the provider {self.provider} cannot check records",)

    def provable_names(
        self, sections: Mapping[ProviderName, Mapping[str, JsonValue]]
    ) -> Mapping[ProviderID, NodeName] | None:
        """Return the names that it could prove by a policy's sections, by provider ID: no other machine can prove one.

        None: any name. Raises Denied.
        """
        del sections
        return None if self.secure else {}

    async def addresses(self, facts: Facts) -> Addresses | None:
        """Return all names and addresses that the machine has now; raises Denied or Unavailable.

        Empty: none yet. None: by these settings no platform knows them.
        """
        del facts
        return None

    async def endorsement_key(
        self, machine: ProviderID, *, accounts: frozenset[str], shown: PublicKey
    ) -> NamedEndorsementKey:
        """Return the endorsement key of a machine's TPM, of the type of the one that it showed; for other providers.

        ``accounts`` are those of the platform in which the machine may be. Raises Denied or Unavailable.
        """
        raise platform_unavailable(
            f"the provider {self.provider} tells no endorsement keys",
            remedy="take them from the policy or from the infrastructure provider's objects",
        )

    async def aclose(self) -> None:
        """Close connections; the signer is not used any more."""
        return


class CheckedSigner(ClusterAPISigner):
    """A signer whose verification is a list of recorded checks, and whose policy section a parser reads."""

    secure = True
    read_section: Callable[[Mapping[str, JsonValue]], object]

    @abstractmethod
    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify a request and record each check; raises Denied, Unavailable or ChallengeRequired."""

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify a client request; a request that has to wait carries the checks that passed."""
        checks = Checks()
        try:
            return await self._verify(checks, request, facts)
        except Unavailable as error:
            raise checks.recorded(error) from None

    def check_settings(self, settings: Mapping[str, JsonValue]) -> None:
        self.read_section(settings)
