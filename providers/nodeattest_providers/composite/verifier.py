"""The ``composite`` provider's verifier: several proofs of one machine, all over the same request, in two steps.

Each part is proved by its own provider's signer, for the composite's own signer: a proof that a machine made for one
provider alone is none here, and the other way round.
Source: docs/wire-format.md, "composite/v1"; docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nodeattest_providers.challenge_response import check_first_request
from nodeattest_providers.checks import Checks, check_block, check_parsed
from nodeattest_providers.composite.config import CompositePolicy, parse_policy
from nodeattest_providers.composite.protocol import (
    PART_VERSION,
    PROVIDER,
    VERSION,
    CompositeChallenge,
    CompositeEvidence,
    parse_evidence,
)
from nodeattest_providers.config_fields import invalid, pins_for, split_pin
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import (
    ANNOTATION_SUPPORTED_VERSIONS,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
    printable,
)
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonValue
from nodeattest_providers.platform import Platform, make_signer, provable_names
from nodeattest_providers.registry import BUILT_IN
from nodeattest_providers.verifier_interface import (
    AttestedNode,
    BootState,
    CheckedSigner,
    ClusterAPISigner,
    Facts,
    LedgerFacts,
    NodeRequest,
)

_SECTION: Final = "wire format, composite/v1"
_TPM: Final = ProviderName("tpm")


def merge_results(
    checks: Checks,
    request: NodeRequest,
    attested: Mapping[ProviderName, AttestedNode],
    first: FirstRequestRef,
) -> AttestedNode:
    """Make one of the parts' results.

    1. Each is of its own provider, and of the machine that the request names. 2. Those that prove a node name prove the
    same. 3. So do those that prove a Machine.
    """
    for name, node in attested.items():  # 1
        checks.require(
            node.provider == name and node.provider_id == request.csr.provider_id,
            f"{name}: of this machine",
            section=_SECTION,
            reason=Reason.PLATFORM_INSTANCE_MISMATCH,
            expected=f"a proof by {name} of {request.csr.provider_id}",
            got=f"one by {node.provider} of {node.provider_id}",
            remedy="attest the same machine by every part",
        )
    names = sorted({node.proven_node_name for node in attested.values() if node.proven_node_name is not None})
    checks.require(  # 2
        len(names) <= 1,
        "one node name",
        section=_SECTION,
        reason=Reason.NODE_NAME_MISMATCH,
        expected="parts that prove one node name, or none",
        got=" and ".join(names) or "none",
        remedy="attest the same machine by every part",
    )
    machine_names = sorted({node.proven_machine_name for node in attested.values() if node.proven_machine_name})
    checks.require(  # 3
        len(machine_names) <= 1,
        "one Machine",
        section=_SECTION,
        reason=Reason.EVIDENCE_FOR_OTHER_MACHINE,
        expected="parts that prove one Machine, or none",
        got=" and ".join(map(printable, machine_names)) or "none",
        remedy="attest the same machine by every part",
    )
    return AttestedNode(
        provider=PROVIDER,
        provider_id=request.csr.provider_id,
        proven_node_name=names[0] if names else None,
        proven_machine_name=machine_names[0] if machine_names else None,
        fingerprints={
            f"{name}.{kind}": value for name, node in attested.items() for kind, value in node.fingerprints.items()
        },
        boot=_boot(attested),
        first_request=first,
        checks=checks.record(),
    )


def _boot(attested: Mapping[ProviderName, AttestedNode]) -> BootState | None:
    if _TPM in attested:
        return attested[_TPM].boot
    return next((node.boot for _, node in sorted(attested.items()) if node.boot is not None), None)


_GIVE_PARTS: Final = "give the node's composite provider exactly the parts of the policy's spec.composite"
_CLOCK_OF: Final = ProviderName("tpm")
"""The part whose clock the ledger keeps, where it is one."""


@dataclass(frozen=True, slots=True)
class _Round:
    """One request with the evidence that it carries, and the first one's where this is the second."""

    request: NodeRequest
    facts: Facts
    evidence: CompositeEvidence
    first: CompositeEvidence | None

    def part(self, name: ProviderName, signer: ClusterAPISigner) -> tuple[NodeRequest, Facts]:
        """Make what the part's signer receives: its evidence, policy section and pins, nothing of other parts."""
        facts = self.facts
        machine = facts.machine if signer.reads_secret else replace(facts.machine, attestation_secret=None)
        first = None
        if facts.first_request is not None and self.first is not None:
            first = _carrying(facts.first_request, name, self.first)
        return _carrying(self.request, name, self.evidence), replace(
            facts,
            machine=machine,
            settings=facts.sections.get(name, {}),
            ledger=_pins_of(facts.ledger, name, has_clock=name == _CLOCK_OF or _CLOCK_OF not in self.evidence.parts),
            first_request=first,
            challenge_keys=facts.challenge_keys if signer.two_step else (),
        )


class CompositeSigner(CheckedSigner):
    """Verifies several proofs at once."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    read_section = staticmethod(parse_policy)
    two_step = True
    takes_platform = True
    tells_addresses = True
    reads_secret = True

    def __init__(self, *, platform: Platform) -> None:
        if platform.settings:
            remedy = "give each part its own section, platforms.<part>"
            known = ", ".join(map(repr, platform.settings))
            raise Denied(Reason.POLICY_INVALID, expected="no settings of its own", got=known, remedy=remedy)
        self._platform = platform
        self._made: dict[ProviderName, ClusterAPISigner] = {}

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        """Return the first request that this one answers, None for a first one; Denied on malformed evidence."""
        return _evidence(Checks(), request.evidence).first

    def check_settings(self, settings: Mapping[str, JsonValue]) -> None:
        """Refuse a policy section that no request could be verified with; raises Denied."""
        for part in parse_policy(settings).parts:
            try:
                signer = self._signer(part)
            except Denied:  # not installed here; it may be where the controller runs
                continue
            _check_secure(part, signer)

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        """Hold the parts on record to the settings, each by its own provider; raises Denied.

        1. An alternative counts whose parts all left a pin; a part of others may leave none. None counts: refused.
        2. What one of these parts refuses, its alternative does. All refuse: refused.
        3. A pin stays after its part is proved no more: pins of other parts leave open which parts a node shows.
        """
        # 1
        pinned = frozenset(ProviderName(split_pin(pin)[0]) for pin in facts.ledger.fingerprints)
        policy = parse_policy(facts.settings)
        open_ = [
            parts for parts in policy.alternatives if all(part in pinned or part not in BUILT_IN for part in parts)
        ]
        refused = _parts_missing(policy, pinned) if not open_ else None
        # 2
        admitted: list[tuple[frozenset[ProviderName], tuple[str, ...]]] = []
        for parts in open_:
            try:
                admitted.append((parts, self._unknown_of(parts, facts, boot)))
            except Denied as denied:
                refused = refused or denied
        if not admitted and refused is not None:
            raise refused
        # 3
        parts, unknown = admitted[0]
        if len(open_) > 1 or parts != pinned:
            unknown = ("which parts the node shows is not on record", *unknown)
        return unknown

    def _unknown_of(self, parts: frozenset[ProviderName], facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        unknown: list[str] = []
        for name in sorted(parts):
            try:
                signer = self._signer(name)
            except Denied:
                unknown.append(f"{name}: not installed here")
                continue
            pins = _pins_of(facts.ledger, name, has_clock=False)
            own = replace(facts, settings=facts.sections.get(name, {}), ledger=pins)
            booted = boot if name == _CLOCK_OF or _CLOCK_OF not in parts else None
            try:
                unknown += [f"{name}: {one}" for one in signer.check_recorded(own, booted)]
            except Denied as denied:
                raise _of_part(name, denied, Checks()) from denied
        return tuple(unknown)

    def provable_names(
        self, settings: Mapping[str, JsonValue], sections: Mapping[ProviderName, Mapping[str, JsonValue]]
    ) -> Mapping[ProviderID, NodeName] | None:
        """Return what its parts could prove; None where one of them has a platform that tells names."""
        names: dict[ProviderID, NodeName] = {}
        for part in parse_policy(settings).parts:
            of_part = provable_names(self._signer(part), sections)
            if of_part is None:
                return None
            names.update(of_part)
        return names

    async def addresses(self, facts: Facts) -> tuple[tuple[str, str], ...] | None:
        """Ask the platform of a part that attested this machine; None where no part has one that knows."""
        parts = [name for name in parse_policy(facts.settings).parts if self._signer(name).tells_addresses]
        pinned = [name for name in parts if any(split_pin(pin)[0] == name for pin in facts.ledger.fingerprints)]
        for name in pinned or parts:
            ledger = _pins_of(facts.ledger, name, has_clock=False)
            own = replace(facts, settings=facts.sections.get(name, {}), ledger=ledger)
            return await self._signer(name).addresses(own)
        return None

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify one request.

        1. Evidence of this provider, a known version, a closed schema.
        2. The policy says which parts there must be; exactly these are there.
        3. A second request answers a live first one, which had the same parts.
        4. Each part is verified by its own provider. A denial ends it; one that cannot be verified now lets the others
        be checked first. 5. In the first round the challenges are published; in the second every part must be proved.
        6. They are proofs of one machine, and of one Machine where they name one.
        """
        evidence = _evidence(checks, request.evidence)  # 1
        policy = check_parsed(checks, "policy section", _SECTION, lambda: parse_policy(facts.settings))
        _check_parts(checks, evidence, policy)  # 2
        round_ = _Round(request, facts, evidence, _first(checks, request, evidence, facts))  # 3
        attested, challenges = await self._verify_parts(checks, round_)  # 4
        if evidence.first is None:  # 5
            raise _challenge(challenges, checks)
        _check_proved(checks, evidence, attested)
        return merge_results(checks, request, attested, evidence.first)  # 6

    async def _verify_parts(
        self, checks: Checks, round_: _Round
    ) -> tuple[Mapping[ProviderName, AttestedNode], Mapping[ProviderName, ChallengeRequired]]:
        attested: dict[ProviderName, AttestedNode] = {}
        challenges: dict[ProviderName, ChallengeRequired] = {}
        waiting: Unavailable | None = None
        for name in sorted(round_.evidence.parts):
            signer = self._signer(name)
            _check_secure(name, signer)
            try:
                attested[name] = await _verify_part(signer, *round_.part(name, signer))
                checks.adopt(name, attested[name].checks)
            except ChallengeRequired as required:
                challenges[name] = required
                checks.adopt(name, required.checks)
            except Denied as denied:
                checks.adopt(name, denied.checks)
                raise _of_part(name, denied, checks) from denied
            except Unavailable as unavailable:
                checks.adopt(name, unavailable.checks)
                waiting = waiting or unavailable
        if waiting is not None:
            raise waiting
        return attested, challenges

    def _signer(self, name: ProviderName) -> ClusterAPISigner:
        """Return a part's signer, with its own platform; raises Denied for one that is not installed."""
        if self._platform.find_signer is not None:
            return self._platform.find_signer(name)
        if name not in self._made:
            self._made[name] = make_signer(name, self._platform)
        return self._made[name]


async def _verify_part(signer: ClusterAPISigner, request: NodeRequest, facts: Facts) -> AttestedNode:
    serving = request.purpose is Purpose.SERVING
    verify = signer.verify_serving_attestation_data if serving else signer.verify_client_attestation_data
    return await verify(request, facts)


def _evidence(checks: Checks, evidence: Evidence) -> CompositeEvidence:
    check_block(checks, evidence, PROVIDER, (VERSION,))
    return check_parsed(checks, "evidence schema", _SECTION, lambda: parse_evidence(evidence.data))


def _carrying(request: NodeRequest, name: ProviderName, evidence: CompositeEvidence) -> NodeRequest:
    return replace(request, evidence=Evidence(name, PART_VERSION, evidence.parts[name]))


def _pins_of(ledger: LedgerFacts, name: ProviderName, *, has_clock: bool) -> LedgerFacts:
    """Take the pins that bind a part, whoever made them."""
    pins = replace(ledger, fingerprints=pins_for(ledger.fingerprints, name))
    return pins if has_clock else replace(pins, clock=None, reset_count=None)


def _check_secure(name: ProviderName, signer: ClusterAPISigner) -> None:
    if signer.secure is not True:
        raise invalid("spec.composite", "parts that prove something", name)


def _parts_missing(policy: CompositePolicy, pinned: Collection[ProviderName]) -> Denied:
    return Denied(
        Reason.PROOF_MISSING,
        expected=str(policy),
        got=f"a record of {' with '.join(sorted(pinned)) or 'no part'}",
        remedy=_GIVE_PARTS,
    )


def _check_parts(checks: Checks, evidence: CompositeEvidence, policy: CompositePolicy) -> None:
    got = " with ".join(sorted(evidence.parts))
    checks.require(
        policy.admits(evidence.parts.keys()),
        "all proofs that the policy demands, and no others",
        section=_SECTION,
        reason=Reason.PROOF_MISSING,
        expected=str(policy),
        got=got,
        remedy=_GIVE_PARTS,
    )


def _first(checks: Checks, request: NodeRequest, evidence: CompositeEvidence, facts: Facts) -> CompositeEvidence | None:
    """Find the first request's evidence; None in the first round."""
    if evidence.first is None:
        return None
    linked = check_first_request(checks, request, facts, evidence.first)
    first = _evidence(checks, linked.evidence)
    same = first.first is None and first.parts.keys() == evidence.parts.keys()
    checks.require(
        same,
        "first request's phase and parts",
        section=_SECTION,
        reason=Reason.FIRST_REQUEST_MISMATCH,
        expected=f"phase 1 of {', '.join(sorted(evidence.parts))}",
        got=f"phase {1 if first.first is None else 2} of {', '.join(sorted(first.parts))}",
        remedy="file a new first request and answer its own challenge",
    )
    return first


def _challenge(challenges: Mapping[ProviderName, ChallengeRequired], checks: Checks) -> ChallengeRequired:
    texts = {name: required.challenge for name, required in challenges.items()}
    annotations = {key: text for required in challenges.values() for key, text in required.annotations.items()}
    return ChallengeRequired(CompositeChallenge(texts).to_text(), annotations, checks=checks.record())


def _check_proved(checks: Checks, evidence: CompositeEvidence, attested: Mapping[ProviderName, AttestedNode]) -> None:
    missing = sorted(evidence.parts.keys() - attested.keys())
    checks.require(
        not missing,
        "every part is proved",
        section=_SECTION,
        reason=Reason.PROOF_MISSING,
        expected=f"proofs of {', '.join(sorted(evidence.parts))}",
        got=f"none of {', '.join(missing)}" if missing else "all",
        remedy="answer the challenge of every part",
    )


def _of_part(name: ProviderName, denied: Denied, checks: Checks) -> Denied:
    """Make a part's refusal the composite's, without the versions that the part supports: they are not composite's."""
    annotations = {key: text for key, text in denied.annotations.items() if key != ANNOTATION_SUPPORTED_VERSIONS}
    return Denied(
        denied.reason,
        expected=f"{name}: {denied.expected}",
        got=denied.got,
        remedy=denied.remedy,
        checks=checks.record(),
        annotations=annotations,
    )
