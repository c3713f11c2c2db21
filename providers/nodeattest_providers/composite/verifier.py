"""The ``composite`` provider's verifier: several proofs of one machine, all over the same request, in two steps.

Source: docs/wire-format.md, "composite/v1"; docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from nodeattest_providers.challenge_response import check_first_request
from nodeattest_providers.checks import Checks, Rules, check_block, check_parsed
from nodeattest_providers.composite import protocol
from nodeattest_providers.config_fields import invalid, name_pin, pins_for, split_pin
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose, printable
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonValue
from nodeattest_providers.platform import Platform, make_signer
from nodeattest_providers.registry import BUILT_IN
from nodeattest_providers.verifier_interface import (
    AttestedNode,
    BootState,
    CheckedSigner,
    ClusterAPISigner,
    Facts,
    NodeRequest,
)

_SECTION: Final = "wire format, composite/v1"
_TPM: Final = ProviderName("tpm")
"""The part whose clock the ledger keeps, where it is one."""


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
    provider_id = request.csr.provider_id
    rules = Rules(checks, _SECTION, Reason.PLATFORM_INSTANCE_MISMATCH, "attest the same machine by every part")
    for name, node in attested.items():  # 1
        rules.equal(f"{name}: of this machine", f"{name} of {provider_id}", f"{node.provider} of {node.provider_id}")
    names = sorted({node.proven_node_name for node in attested.values() if node.proven_node_name is not None})
    expected, got = "parts that prove one node name, or none", " and ".join(names)
    rules.require(len(names) <= 1, "one node name", expected, got, reason=Reason.NODE_NAME_MISMATCH)  # 2
    machine_names = sorted({node.proven_machine_name for node in attested.values() if node.proven_machine_name})
    expected, got = "parts that prove one Machine, or none", " and ".join(map(printable, machine_names))
    reason = Reason.EVIDENCE_FOR_OTHER_MACHINE
    rules.require(len(machine_names) <= 1, "one Machine", expected, got, reason=reason)  # 3
    boots = [attested[name].boot for name in sorted(attested) if attested[name].boot is not None]
    return AttestedNode(
        provider=protocol.PROVIDER,
        provider_id=provider_id,
        proven_node_name=names[0] if names else None,
        proven_machine_name=machine_names[0] if machine_names else None,
        fingerprints={
            name_pin(name, kind): value for name, node in attested.items() for kind, value in node.fingerprints.items()
        },
        boot=attested[_TPM].boot if _TPM in attested else next(iter(boots), None),
        first_request=first,
        checks=checks.record(),
    )


_GIVE_PARTS: Final = "give the node's composite provider exactly the parts of the policy's spec.composite"


class CompositeSigner(CheckedSigner):
    """Verifies several proofs at once."""

    provider = protocol.PROVIDER
    versions: tuple[int, ...] = (protocol.VERSION,)
    read_section = staticmethod(protocol.parse_policy)
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
        return _evidence(Checks(), request.evidence).first

    def check_settings(self, settings: Mapping[str, JsonValue]) -> None:
        for part in protocol.parse_policy(settings).parts:
            try:
                signer = self._signer(part)
            except Denied:  # not installed here; it may be where the controller runs
                continue
            _check_secure(part, signer)

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        """Check the recorded parts against the policy, each by its own provider; raises Denied.

        1. An alternative counts whose parts all left a pin; a part of others may leave none. None counts: refused.
        2. What one of these parts refuses, its alternative does. All refuse: refused.
        3. A pin stays after its part is proved no more: pins of other parts leave open which parts a node shows.
        """
        # 1
        pinned = frozenset(ProviderName(split_pin(pin)[0]) for pin in facts.ledger.fingerprints)
        policy = protocol.parse_policy(facts.settings)
        open_ = [
            parts for parts in policy.alternatives if all(part in pinned or part not in BUILT_IN for part in parts)
        ]
        refused: Denied | None = None
        if not open_:
            got = f"a record of {' with '.join(sorted(pinned)) or 'no part'}"
            refused = Denied(Reason.PROOF_MISSING, expected=str(policy), got=got, remedy=_GIVE_PARTS)
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
            booted = boot if _has_clock(name, parts) else None
            try:
                unknown += [f"{name}: {each}" for each in signer.check_recorded(_facts_of(name, facts, ()), booted)]
            except Denied as denied:
                raise Checks().denied(denied, name) from denied
        return tuple(unknown)

    def provable_names(
        self, sections: Mapping[ProviderName, Mapping[str, JsonValue]]
    ) -> Mapping[ProviderID, NodeName] | None:
        names: dict[ProviderID, NodeName] = {}
        for part in protocol.parse_policy(sections.get(protocol.PROVIDER, {})).parts:
            of_part = self._signer(part).provable_names(sections)
            if of_part is None:
                return None
            names.update(of_part)
        return names

    async def addresses(self, facts: Facts) -> tuple[tuple[str, str], ...] | None:
        """Ask the platform of a part that attested this machine; None where no part has one that knows."""
        parts = [name for name in protocol.parse_policy(facts.settings).parts if self._signer(name).tells_addresses]
        pinned = [name for name in parts if any(split_pin(pin)[0] == name for pin in facts.ledger.fingerprints)]
        for name in pinned or parts:
            return await self._signer(name).addresses(_facts_of(name, facts, ()))
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
        rules = Rules(checks, _SECTION, Reason.PROOF_MISSING, _GIVE_PARTS)
        evidence = _evidence(checks, request.evidence)  # 1
        policy = rules.parsed("policy section", lambda: protocol.parse_policy(facts.settings))
        name, got = "all proofs that the policy demands, and no others", " with ".join(sorted(evidence.parts))
        rules.require(policy.admits(evidence.parts.keys()), name, str(policy), got)  # 2
        first = _first(checks, request, evidence, facts)  # 3
        attested, challenges = await self._verify_parts(checks, request, facts, evidence, first)  # 4
        if evidence.first is None:  # 5
            texts = {name: required.challenge for name, required in challenges.items()}
            annotations = {key: text for each in challenges.values() for key, text in each.annotations.items()}
            raise ChallengeRequired(protocol.CompositeChallenge(texts).to_text(), annotations, checks=checks.record())
        missing = sorted(evidence.parts.keys() - attested.keys())
        expected, got = f"proofs of {', '.join(sorted(evidence.parts))}", f"none of {', '.join(missing)}"
        rules.require(not missing, "every part is proved", expected, got, remedy="answer the challenge of every part")
        return merge_results(checks, request, attested, evidence.first)  # 6

    async def _verify_parts(
        self,
        checks: Checks,
        request: NodeRequest,
        facts: Facts,
        evidence: protocol.CompositeEvidence,
        first: protocol.CompositeEvidence | None,
    ) -> tuple[Mapping[ProviderName, AttestedNode], Mapping[ProviderName, ChallengeRequired]]:
        attested: dict[ProviderName, AttestedNode] = {}
        challenges: dict[ProviderName, ChallengeRequired] = {}
        waiting: Unavailable | None = None
        for name in sorted(evidence.parts):
            signer = self._signer(name)
            _check_secure(name, signer)
            try:
                attested[name] = await _verify_part(signer, request, facts, evidence, first)
                checks.adopt(name, attested[name].checks)
            except ChallengeRequired as required:
                challenges[name] = required
                checks.adopt(name, required.checks)
            except Denied as denied:
                checks.adopt(name, denied.checks)
                raise checks.denied(denied, name) from denied
            except Unavailable as unavailable:
                checks.adopt(name, unavailable.checks)
                waiting = waiting or unavailable
        if waiting is not None:
            raise waiting
        return attested, challenges

    def _signer(self, name: ProviderName) -> ClusterAPISigner:
        if self._platform.find_signer is not None:
            return self._platform.find_signer(name)
        if name not in self._made:
            self._made[name] = make_signer(name, self._platform)
        return self._made[name]


async def _verify_part(
    signer: ClusterAPISigner,
    request: NodeRequest,
    facts: Facts,
    evidence: protocol.CompositeEvidence,
    first: protocol.CompositeEvidence | None,
) -> AttestedNode:
    """Verify a part by what is its own: its evidence, policy section and pins, nothing of other parts."""
    name, own = signer.provider, _facts_of(signer.provider, facts, evidence.parts.keys())
    if not signer.reads_secret:
        own = replace(own, machine=replace(own.machine, attestation_secret=None))
    if facts.first_request is not None and first is not None:
        own = replace(own, first_request=_carrying(facts.first_request, name, first))
    else:
        own = replace(own, first_request=None)
    if not signer.two_step:
        own = replace(own, challenge_keys=())
    serving = request.purpose is Purpose.SERVING
    verify = signer.verify_serving_attestation_data if serving else signer.verify_client_attestation_data
    own_request = _carrying(request, name, evidence)
    attested = await verify(own_request, own)
    return replace(attested, proven_machine_name=signer.machine_name(own_request, attested))


def _facts_of(name: ProviderName, facts: Facts, clocks: Collection[ProviderName]) -> Facts:
    """Give a part its section and the pins that bind it, whoever made them; the clock, if it is of ``clocks``."""
    ledger = replace(facts.ledger, fingerprints=pins_for(facts.ledger.fingerprints, name))
    if not _has_clock(name, clocks):
        ledger = replace(ledger, clock=None, reset_count=None)
    return replace(facts, settings=facts.sections.get(name, {}), ledger=ledger)


def _has_clock(name: ProviderName, parts: Collection[ProviderName]) -> bool:
    """Whether the clock on record is this part's, where these are proved together."""
    return name in parts and (name == _TPM or _TPM not in parts)


def _evidence(checks: Checks, evidence: Evidence) -> protocol.CompositeEvidence:
    check_block(checks, evidence, protocol.PROVIDER, (protocol.VERSION,))
    return check_parsed(checks, "evidence schema", _SECTION, lambda: protocol.parse_evidence(evidence.data))


def _carrying(request: NodeRequest, name: ProviderName, evidence: protocol.CompositeEvidence) -> NodeRequest:
    return replace(request, evidence=Evidence(name, protocol.PART_VERSION, evidence.parts[name]))


def _check_secure(name: ProviderName, signer: ClusterAPISigner) -> None:
    if signer.secure is not True:
        raise invalid("spec.composite", "parts that prove something", name)


def _first(
    checks: Checks, request: NodeRequest, evidence: protocol.CompositeEvidence, facts: Facts
) -> protocol.CompositeEvidence | None:
    if evidence.first is None:
        return None
    linked = check_first_request(checks, request, facts, evidence.first)
    first = _evidence(checks, linked.evidence)
    rules = Rules(checks, _SECTION, Reason.FIRST_REQUEST_MISMATCH, "file a new first request and answer its challenge")
    is_linked = first.first is None and first.parts.keys() == evidence.parts.keys()
    expected = f"phase 1 of {', '.join(sorted(evidence.parts))}"
    got = f"phase {1 if first.first is None else 2} of {', '.join(sorted(first.parts))}"
    rules.require(is_linked, "first request's phase and parts", expected, got)
    return first
