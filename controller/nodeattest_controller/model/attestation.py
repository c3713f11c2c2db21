"""The ledger: MachineAttestation objects, what they pin, and the transitions that issue a certificate and reset. Pure.

One object a machine, keyed by cluster and provider ID (``clusterctl move`` gives new UIDs and drops status, so the
facts live in ``spec``). It is written by compare-and-swap on resourceVersion *before* the certificate reaches the CSR:
the first writer wins, and the same key that asks again gets the same bytes. No key is forgotten while a certificate
for it is valid, not even by an operator's reset, and none gets a second certificate.
Source: docs/identity-rules.md, "Ledger"; docs/wire-format.md §4.5 (TPM2_Clear zeroes resetCount).
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.model.machine_view import CLUSTER_LABEL, MachineView
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.model.refusals import RecordedRefusal, parse_refusals
from nodeattest_parsing.objects import flag, items, mapping, moment, number, rfc3339, text, text_map
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.config_fields import COMPOSITE, pins_for, split_pin
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.verifier_interface import AttestedNode, BootState, LedgerFacts, NodeRequest

GROUP_VERSION: Final = "attestation.cluster.x-k8s.io/v1alpha1"
APPROVED: Final = "Approved"
DENIED: Final = "Denied"
"""A request that was authenticated as the machine's own node was refused."""
RESET: Final = "Reset"
_DONE: Final = frozenset(FailureAction) - {FailureAction.NONE}
KEEP_ISSUED: Final = 8
"""Entries kept for each purpose: the live one and enough history for an auditor; an object stays below 64 KiB."""
KEEP_ENDED: Final = 32
"""Keys remembered after their certificates expired: four times the history of certificates."""
MAX_LIVE: Final = MappingProxyType({Purpose.CLIENT: 512, Purpose.SERVING: 256})
"""Keys of one machine with valid certificates, beside its history, so that serving certificates never bar a client one;
an attestation record stays below 256 KiB. A machine that loses its key at each boot and boots every ten minutes
reaches it after three days."""
KEEP_RESETS: Final = 16
"""Resets kept, newest last; a machine that needs more has another problem."""
MAX_REASON: Final = 512
"""Characters, as the CRD's schema has it."""
_MAX_NAME: Final = 256
_MAX_SOURCE: Final = 768
_FORGOTTEN: Final = frozenset({"fingerprints", "boot", "issued", "expires"})
_OWNERS: Final = frozenset(
    {
        ("cluster.x-k8s.io", "Machine"),
        ("cluster.x-k8s.io", "MachinePool"),
        ("attestation.cluster.x-k8s.io", "MachineRecord"),
    }
)
"""Group and kind of what an attestation record is about."""
_KEY_CHECK: Final = "endorsement key: "
_BY_PLATFORM: Final = "named by the platform"
_KEY_SOURCES: Final = frozenset(
    {_BY_PLATFORM, "on the allow-list", "named by EC2", "named by the Machine's annotation", "first use"}
)
"""Checks of provider tpm, each of which binds a key to a machine."""
_PCRS: Final = 24
"""PCRs of the PC Client profile."""
_PCR: Final = re.compile(r"1?\d|2[0-3]", re.ASCII)
"""A PCR's number: a schema holds no keys."""


@dataclass(frozen=True, slots=True)
class LastDecision:
    """``spec.lastVerdict``."""

    verdict: str
    reason: str
    time: datetime | None = None
    """Of a refusal: when this reason came first."""

    def render(self) -> JsonObject:
        """Write it as it is in the ledger; needs a time."""
        return {"verdict": self.verdict, "reason": self.reason, "time": rfc3339(self.time) if self.time else ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remediation:
    """``spec.onFailure``: what was done, or was about to be done, to the machine's Node."""

    action: FailureAction
    node_name: str
    node_uid: str
    reason: str
    """Of the refusal that led to it."""
    time: datetime

    def render(self) -> JsonObject:
        """Write it as it is in the ledger."""
        return {
            "action": str(self.action),
            "nodeName": self.node_name,
            "nodeUID": self.node_uid,
            "reason": self.reason,
            "time": rfc3339(self.time),
        }


def parse_last_decision(spec: JsonObject) -> LastDecision | None:
    """Read ``spec.lastVerdict``."""
    found = mapping(spec, "lastVerdict")
    if not text(found, "verdict"):
        return None
    return LastDecision(text(found, "verdict"), text(found, "reason"), moment(text(found, "time")))


def parse_remediation(spec: JsonObject) -> Remediation | None:
    """Read ``spec.onFailure``; one that cannot be read is none."""
    found = mapping(spec, "onFailure")
    time = moment(text(found, "time"))
    if time is None or text(found, "action") not in _DONE:
        return None
    return Remediation(
        action=FailureAction(text(found, "action")),
        node_name=text(found, "nodeName"),
        node_uid=text(found, "nodeUID"),
        reason=text(found, "reason"),
        time=time,
    )


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


_KEY_TEXTS: Final = {"spki": "spki", "serial": "serial", "first_request_uid": "firstRequestUID"}
"""Attributes and what the object calls them."""
_ENTRY_TEXTS: Final = {
    **_KEY_TEXTS,
    "request_name": "requestName",
    "request_uid": "requestUID",
    "certificate": "certificate",
    "policy": "policy",
}


def retire(known: Sequence[RetiredKey], more: Iterable[RetiredKey], now: datetime) -> tuple[RetiredKey, ...]:
    """Add keys, oldest first, and forget the oldest of those whose certificates expired."""
    every = [*known, *more]
    expired = [key for key in every if key.not_after <= now]
    forgotten = {id(key) for key in expired[: max(len(expired) - KEEP_ENDED, 0)]}
    return tuple(key for key in every if id(key) not in forgotten)


def live_keys(known: Sequence[RetiredKey], purpose: Purpose, now: datetime) -> int:
    """Count the keys of a purpose whose certificates are valid."""
    return sum(key.not_after > now for key in known if key.purpose is purpose)


def reset(attestation: JsonObject, *, by: str, reason: str, now: datetime) -> JsonObject:
    """Return the attestation record without pins, boot state and certificates; its keys go to ``retiredKeys``.

    ``by`` is the operator's user name. Fields that are not named here are kept as they are.
    """
    known, spec = parse_attestation(attestation), mapping(attestation, "spec")
    kept = {name: value for name, value in spec.items() if name not in _FORGOTTEN}
    entry: JsonObject = {
        "time": rfc3339(now),
        "by": by[:_MAX_NAME],
        "reason": reason[:MAX_REASON],
        "fingerprints": dict[str, JsonValue](text_map(spec, "fingerprints")),
    }
    verdict: JsonObject = LastDecision(RESET, "AttestationReset", now).render()
    resets: list[JsonValue] = [*items(spec, "resets"), entry]
    added: JsonObject = {"resets": resets[-KEEP_RESETS:], "lastVerdict": verdict}
    retired = retire(known.retired, (entry.key for entry in known.issued), now)
    if retired:
        added["retiredKeys"] = [*map(_render_key, retired)]
    return {**attestation, "spec": {**kept, **added}}


def new_for_adoption(member: MachineView, node_name: NodeName, *, by: str, reason: str, now: datetime) -> JsonObject:
    """Make the attestation record of a machine whose node joined without attestation: as one that was reset.

    It binds the node's name to the machine, so that nobody else takes it meanwhile.
    """
    fresh = render_attestation(replace(new_attestation(member), node_name=node_name), member, "")
    fresh["spec"] = {name: value for name, value in mapping(fresh, "spec").items() if value}
    return reset(fresh, by=by, reason=reason, now=now)


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
    node_name_source: str = ""
    """What gave the machine its node name when it joined."""
    endorsement_key_source: str = ""
    """What bound the endorsement key to the machine; empty where no TPM attests."""
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
    """What was done to the node for a refusal."""
    refusals: tuple[RecordedRefusal, ...] = ()
    """Refused requests that named it, newest first; they decide nothing."""

    def of_purpose(self, purpose: Purpose) -> tuple[IssuedCertificate, ...]:
        """Return the entries of one purpose, oldest first; each purpose is counted apart."""
        return tuple(entry for entry in self.issued if entry.purpose is purpose)

    @property
    def newest_client(self) -> IssuedCertificate | None:
        """The last client certificate, valid or not."""
        return next((entry for entry in reversed(self.issued) if entry.purpose is Purpose.CLIENT), None)

    @property
    def has_joined(self) -> bool:
        """Whether the machine got a client certificate, and no operator has reset it since.

        A Machine's ``nodeRef`` says the same later, and not at all for a while after ``clusterctl move``.
        """
        return self.newest_client is not None

    @property
    def endorsement_key(self) -> str:
        """The fingerprint of the endorsement key that is pinned, by whichever provider; empty where none is."""
        return next((value for pin, value in self.fingerprints.items() if split_pin(pin)[1] == "ek"), "")

    def entry_for(self, spki: str, purpose: Purpose = Purpose.CLIENT) -> IssuedCertificate | None:
        """Return the certificate issued for a key and a purpose."""
        return next((entry for entry in reversed(self.of_purpose(purpose)) if entry.spki == spki), None)

    def serves_otherwise(self, spki: str, purpose: Purpose) -> bool:
        """Return whether a key was certified for the other purpose, which bars it from this one."""
        return any(entry.spki == spki and entry.purpose is not purpose for entry in self.issued)

    def has_retired(self, spki: str) -> bool:
        """Return whether a key was certified once and is out of use."""
        return any(key.spki == spki for key in self.retired)

    def answered(self, request: NodeRequest, first_uid: str = "") -> bool:
        """Return whether this request was written down already: a retry, or a copy of it that was handled first.

        A copy answers the same first request with the same key; it holds no private key, so it gains nothing, and the
        honest request must not be refused for the clock that its own quote left in the ledger.
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
        """Make the value that providers see."""
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
    """Begin a machine's ledger."""
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
    node_name_source: str = "",
) -> Attestation:
    """Record a fresh certificate; whether it may be issued at all is ``issuance_rules``' to say.

    ``policy``: the name of the one that admitted it. ``node_name_source``: empty if the record itself gave the name.
    """
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
        node_name_source=node_name_source or attestation.node_name_source,
        endorsement_key_source=_endorsement_key_source(attested) or attestation.endorsement_key_source,
        fingerprints={**attestation.fingerprints, **attested.pins},
        boot=attested.boot or attestation.boot,
        issued=tuple(old for old in history if old not in leaving),
        retired=retire(attestation.retired, (old.key for old in leaving), now),
        was_reset=attestation.was_reset and request.purpose is not Purpose.CLIENT,
        verdict=LastDecision(APPROVED, "Attested", now),
    )


def _endorsement_key_source(attested: AttestedNode) -> str:
    """Say what bound the endorsement key to the machine, by the check that passed; empty where the record did."""
    for check in attested.checks:
        name = check.name.partition(_KEY_CHECK)[2]
        if name in _KEY_SOURCES:
            return f"{name}: {check.expected}"[:_MAX_SOURCE] if name == _BY_PLATFORM else name
    return ""


def first_uid_of(attested: AttestedNode) -> str:
    """Return the UID of the first request that was answered; empty for a provider of one round."""
    return attested.first_request.uid if attested.first_request else ""


def parse_attestation(obj: JsonObject) -> Attestation:
    """Read a MachineAttestation; controller and operators write these, and the CRD's schema holds their shape."""
    spec = mapping(obj, "spec")
    issued = tuple(entry for item in items(spec, "issued") if (entry := _entry(item)) is not None)
    return Attestation(
        name=text(obj, "metadata", "name"),
        namespace=text(obj, "metadata", "namespace"),
        resource_version=text(obj, "metadata", "resourceVersion"),
        cluster_name=text(spec, "clusterName"),
        provider_id=ProviderID(text(spec, "providerID")),
        owner_uid=text(owner_of(obj), "uid"),
        node_name=NodeName(text(spec, "nodeName")),
        provider=ProviderName(text(spec, "provider")),
        provider_id_source=sys.intern(text(spec, "providerIDSource")),  # few texts, of many machines
        node_name_source=sys.intern(text(spec, "nodeNameSource")),
        endorsement_key_source=sys.intern(text(spec, "endorsementKeySource")),
        fingerprints=text_map(spec, "fingerprints"),
        boot=_boot(mapping(spec, "boot")),
        issued=issued,
        retired=tuple(key for item in items(spec, "retiredKeys") if (key := _retired(item)) is not None),
        # A reset forgets all certificates, and nothing else removes the last one.
        was_reset=bool(items(spec, "resets")) and not any(entry.purpose is Purpose.CLIENT for entry in issued),
        verdict=parse_last_decision(spec),
        treatment=parse_remediation(spec),
        refusals=parse_refusals(obj),
    )


def owner_of(obj: JsonObject) -> JsonObject:
    """Return the owner reference to the Machine, pool or record, among those of others; empty when there is none."""
    owners = items(obj, "metadata", "ownerReferences")
    machines = (
        owner for owner in owners if (text(owner, "apiVersion").partition("/")[0], text(owner, "kind")) in _OWNERS
    )
    nobody: JsonObject = {}
    return next(machines, nobody)


def _boot(boot: JsonObject) -> BootState | None:
    clock, resets, restarts = (number(boot, name) for name in ("clock", "resetCount", "restartCount"))
    if clock is None or resets is None:
        return None
    return BootState(
        clock=clock,
        reset_count=resets,
        restart_count=restarts or 0,
        safe=flag(boot, "safe"),
        pcr_digest=text(boot, "pcrDigest"),
        bank=text(boot, "bank"),
        pcrs={int(pcr): value for pcr, value in text_map(boot, "pcrs").items() if _PCR.fullmatch(pcr)},
    )


def _purpose(item: JsonObject) -> Purpose:
    return Purpose.SERVING if text(item, "purpose") == Purpose.SERVING else Purpose.CLIENT


def _retired(item: JsonObject) -> RetiredKey | None:
    not_after = moment(text(item, "notAfter"))
    if not_after is None or not text(item, "spki"):
        return None
    texts = {name: text(item, key) for name, key in _KEY_TEXTS.items()}
    return RetiredKey(**texts, not_after=not_after, purpose=_purpose(item))


def _entry(item: JsonObject) -> IssuedCertificate | None:
    begin, end, issued = (moment(text(item, name)) for name in ("notBefore", "notAfter", "issuedAt"))
    if begin is None or end is None or issued is None:
        return None
    texts = {name: text(item, key) for name, key in _ENTRY_TEXTS.items()}
    return IssuedCertificate(**texts, not_before=begin, not_after=end, issued_at=issued, purpose=_purpose(item))


def render_attestation(attestation: Attestation, member: MachineView, signer_name: str) -> JsonObject:
    """Write an attestation record as an object, owned by its Machine so that it is moved and collected with it.

    For one that exists this is a merge patch: what others wrote (labels, owners, resets) is not in it, hence stays.
    """
    meta: JsonObject = {
        "name": attestation.name,
        "namespace": attestation.namespace,
        "labels": {CLUSTER_LABEL: attestation.cluster_name},
    }
    if attestation.resource_version:
        meta["resourceVersion"] = attestation.resource_version
    else:
        meta["ownerReferences"] = [_owner_reference(member)]
    spec: JsonObject = {
        "clusterName": attestation.cluster_name,
        "machineName": member.name,
        "providerID": attestation.provider_id,
        "providerIDSource": member.provider_id_source,
        "nodeName": attestation.node_name,
        "provider": attestation.provider,
        "signerName": signer_name,
        "fingerprints": dict[str, JsonValue](attestation.fingerprints),
        "issued": [_render_entry(entry) for entry in attestation.issued],
    }
    # Some API servers' schema checks take "" for null.
    if attestation.node_name_source:
        spec["nodeNameSource"] = attestation.node_name_source[:_MAX_SOURCE]
    if attestation.endorsement_key_source:
        spec["endorsementKeySource"] = attestation.endorsement_key_source
    if attestation.retired:
        spec["retiredKeys"] = [*map(_render_key, attestation.retired)]
    if attestation.newest_client is not None:
        spec["expires"] = rfc3339(attestation.newest_client.not_after)
    if attestation.issued:
        spec["lastVerdict"] = LastDecision(APPROVED, "Attested", attestation.issued[-1].issued_at).render()
    if attestation.boot is not None:
        spec["boot"] = _render_boot(attestation.boot, is_patch=bool(attestation.resource_version))
    return {"apiVersion": GROUP_VERSION, "kind": "MachineAttestation", "metadata": meta, "spec": spec}


def _owner_reference(member: MachineView) -> JsonObject:
    return {"apiVersion": member.api_version, "kind": member.kind, "name": member.name, "uid": member.uid}


def _render_boot(boot: BootState, *, is_patch: bool) -> JsonObject:
    body: JsonObject = {
        "clock": boot.clock,
        "resetCount": boot.reset_count,
        "restartCount": boot.restart_count,
        "safe": boot.safe,
        "pcrDigest": boot.pcr_digest,
    }
    if boot.pcrs:
        body["bank"] = boot.bank
        numbers = range(_PCRS) if is_patch else boot.pcrs  # a merge patch removes what it calls null, and nothing else
        body["pcrs"] = {str(pcr): boot.pcrs.get(pcr) for pcr in numbers}
    return body


def _render_key(key: RetiredKey) -> JsonObject:
    return _render(key, _KEY_TEXTS)


def _render_entry(entry: IssuedCertificate) -> JsonObject:
    times = {"notBefore": rfc3339(entry.not_before), "issuedAt": rfc3339(entry.issued_at)}
    return {**_render(entry, _ENTRY_TEXTS), **times}


def _render(key: RetiredKey, names: Mapping[str, str]) -> JsonObject:
    purpose: JsonObject = {"purpose": str(key.purpose)} if key.purpose is Purpose.SERVING else {}
    texts = {kept: value for name, kept in names.items() if (value := getattr(key, name))}
    return {**texts, **purpose, "notAfter": rfc3339(key.not_after)}
