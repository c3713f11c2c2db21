"""The ledger: what is recorded of a machine, and the transition that issues a certificate. Pure.

One object a machine, keyed by cluster and provider ID. It is written by compare-and-swap *before* the certificate
reaches the CSR: the first writer wins, and the same key that asks again gets the same bytes. No key is forgotten while
a certificate for it is valid, not even by an operator's reset, and none gets a second certificate.
Source: docs/identity-rules.md, "Ledger"; docs/wire-format.md §4.1 (TPM2_Clear zeroes resetCount).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.attestation_status import APPROVED, LastDecision, RecordedRefusal, Remediation
from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_providers.config_fields import COMPOSITE, pins_for, split_pin
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.verifier_interface import AttestedNode, BootState, LedgerFacts, NodeRequest

KEEP_ISSUED: Final = 8
"""Entries kept for each purpose, for auditors; an object stays below 64 KiB."""
KEEP_ENDED: Final = 32
"""Keys remembered after their certificates expired: four times the history of certificates."""
MAX_LIVE: Final = MappingProxyType({Purpose.CLIENT: 512, Purpose.SERVING: 256})
"""Keys of one machine with valid certificates, beside its history; serving certificates never bar a client one. A
record stays below 256 KiB. A machine that loses its key at a boot every ten minutes reaches it after three days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredKey:
    """A key that was certified and left the history of certificates."""

    spki: str
    """``sha256:<hex>``."""
    serial: str
    not_after: datetime
    purpose: Purpose = Purpose.CLIENT
    first_request_uid: str = ""
    """Of the first request that it answered; empty for one-step providers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate(RetiredKey):
    """One issued certificate, and the key that it certifies."""

    request_name: str
    request_uid: str
    not_before: datetime
    issued_at: datetime
    certificate: str = field(repr=False)
    """PEM."""
    policy: str = ""
    """Name of the policy that admitted it."""

    @property
    def key(self) -> RetiredKey:
        """What is remembered of it when it leaves the history."""
        return RetiredKey(**{each.name: getattr(self, each.name) for each in fields(RetiredKey)})


def retire(known: Sequence[RetiredKey], more: Iterable[RetiredKey], now: datetime) -> tuple[RetiredKey, ...]:
    """Add keys, oldest first, and forget the oldest of those whose certificates expired."""
    every = [*known, *more]
    expired = [key for key in every if key.not_after <= now]
    forgotten = {id(key) for key in expired[: max(len(expired) - KEEP_ENDED, 0)]}
    return tuple(key for key in every if id(key) not in forgotten)


def live_keys(known: Sequence[RetiredKey], purpose: Purpose, now: datetime) -> int:
    return sum(key.not_after > now for key in known if key.purpose is purpose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """What is known of one machine."""

    name: str
    namespace: str
    resource_version: str
    """Empty: the object does not exist yet."""
    cluster_name: str
    provider_id: ProviderID
    owner_uid: str
    node_name: NodeName
    provider: ProviderName
    provider_id_source: str = ""
    """Where the provider ID was read when the newest certificate was issued."""
    sources: dict[str, str] = field(default_factory=dict[str, str])
    """What gave the machine its ``nodeName``, and what bound its ``endorsementKey`` to it."""
    fingerprints: dict[str, str] = field(default_factory=dict[str, str])
    """By ``<provider>.<kind>``."""
    boot: BootState | None = None
    issued: tuple[IssuedCertificate, ...] = ()
    """Oldest first, of both purposes."""
    retired: tuple[RetiredKey, ...] = ()
    """Keys that are never certified again, oldest first."""
    was_reset: bool = False
    """Whether an operator has reset it (``resets``), and no client certificate was issued since: one new first use."""
    verdict: LastDecision | None = None
    treatment: Remediation | None = None
    refusals: tuple[RecordedRefusal, ...] = ()

    def of_purpose(self, purpose: Purpose) -> tuple[IssuedCertificate, ...]:
        return tuple(entry for entry in self.issued if entry.purpose is purpose)

    @property
    def newest_client(self) -> IssuedCertificate | None:
        """The last client certificate, valid or not."""
        return next((entry for entry in reversed(self.issued) if entry.purpose is Purpose.CLIENT), None)

    @property
    def has_joined(self) -> bool:
        """Whether the machine got a client certificate, and no operator has reset it since."""
        return self.newest_client is not None

    @property
    def endorsement_key(self) -> str:
        """The fingerprint of the endorsement key that is pinned, by whichever provider; empty where none is."""
        return next((value for pin, value in self.fingerprints.items() if split_pin(pin)[1] == "ek"), "")

    def entry_for(self, spki: str, purpose: Purpose = Purpose.CLIENT) -> IssuedCertificate | None:
        return next((entry for entry in reversed(self.of_purpose(purpose)) if entry.spki == spki), None)

    def serves_otherwise(self, spki: str, purpose: Purpose) -> bool:
        """Return whether a key was certified for the other purpose, which bars it from this one."""
        return any(entry.spki == spki and entry.purpose is not purpose for entry in self.issued)

    def has_retired(self, spki: str) -> bool:
        return any(key.spki == spki for key in self.retired)

    def answered(self, request: NodeRequest, first_uid: str = "") -> bool:
        """Return whether this request was recorded already: a retry, or a copy that was handled first.

        A copy answers the same first request with the same key. Its sender gains nothing, and the honest request must
        not be refused for the clock that its own quote left in the ledger.
        """
        spki = request.csr.spki_sha256
        return any(
            entry.spki == spki and (entry.request_uid == request.uid or entry.first_request_uid == first_uid != "")
            for entry in self.of_purpose(request.purpose)
        )

    def keys_answering(self, uid: str) -> frozenset[str]:
        """Return the keys that were certified for an answer to this first request, before a reset or since."""
        return frozenset(key.spki for key in (*self.issued, *self.retired) if key.first_request_uid == uid != "")

    def live(self, now: datetime, purpose: Purpose = Purpose.CLIENT) -> IssuedCertificate | None:
        """Return the newest certificate of a purpose that is still valid."""
        return next((entry for entry in reversed(self.of_purpose(purpose)) if entry.not_after > now), None)

    def policy_at(self, now: datetime) -> str:
        """Name the policy that admitted the newest client certificate; empty once that has expired."""
        newest = self.newest_client
        return newest.policy if newest is not None and newest.not_after > now else ""

    def pins_for(self, provider: str) -> dict[str, str]:
        """Return what binds a provider, by kind; ``composite`` gets all pins, to give each part its own."""
        return dict(self.fingerprints) if provider == COMPOSITE else pins_for(self.fingerprints, provider)

    def facts(self, request: NodeRequest, first_uid: str = "") -> LedgerFacts:
        return LedgerFacts(
            fingerprints=self.pins_for(request.evidence.provider),
            clock=self.boot.clock if self.boot else None,
            reset_count=self.boot.reset_count if self.boot else None,
            answered=self.answered(request, first_uid),
            provider=self.provider,
            bound_spkis=frozenset(entry.spki for entry in self.of_purpose(Purpose.CLIENT)),
            was_reset=self.was_reset,
        )


def attestation_name(cluster_name: str, provider_id: ProviderID) -> str:
    """Name the attestation record: readable prefix, 128 bits of the exact provider ID."""
    return f"{cluster_name[:200]}-{hashlib.sha256(provider_id.encode()).hexdigest()[:32]}"


def new_attestation(member: MachineView) -> Attestation:
    return Attestation(
        name=attestation_name(member.cluster_name, member.provider_id),
        namespace=member.namespace,
        resource_version="",
        cluster_name=member.cluster_name,
        provider_id=member.provider_id,
        owner_uid=member.uid,
        node_name=NodeName(""),
        provider=ProviderName(""),
    )


def record_certificate(
    attestation: Attestation,
    request: NodeRequest,
    attested: AttestedNode,
    issued: SignedCertificate,
    now: datetime,
    *,
    policy: str = "",
    sources: Mapping[str, str] = MappingProxyType({}),
) -> Attestation:
    """Record a fresh certificate; the checks of issuing admit it. ``policy``: the name of the one that admitted it."""
    entry = IssuedCertificate(
        request_name=request.name,
        request_uid=request.uid,
        first_request_uid=first_uid_of(attested),
        spki=request.csr.spki_sha256,
        serial=issued.serial,
        not_before=issued.not_before,
        not_after=issued.not_after,
        issued_at=now,
        certificate=issued.pem,
        purpose=request.purpose,
        policy=policy,
    )
    history = (*attestation.issued, entry)
    leaving = [old for old in history if old.purpose is request.purpose][:-KEEP_ISSUED]  # of its own purpose only
    return replace(
        attestation,
        node_name=request.csr.node_name,
        provider=attested.provider,
        fingerprints={**attestation.fingerprints, **attested.pins},
        sources={**attestation.sources, **sources},
        boot=attested.boot or attestation.boot,
        issued=tuple(old for old in history if old not in leaving),
        retired=retire(attestation.retired, (old.key for old in leaving), now),
        was_reset=attestation.was_reset and request.purpose is not Purpose.CLIENT,
        verdict=LastDecision(APPROVED, "Attested", now),
    )


def first_uid_of(attested: AttestedNode) -> str:
    """Return the UID of the first request that was answered; empty for a provider of one round."""
    return attested.first_request.uid if attested.first_request else ""
