"""An attack for each check of ``challenge`` and ``composite``; what they share with the TPM protocol is shown there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from composite_world import SECRET, Exchange, OneStep, facts_for, filed, parts_of, sound_exchange
from tpm_world import SoftTpm
from worlds import FACTS, answering
from worlds import filed as filed_for

from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.challenge.protocol import Challenge, proof
from nodeattest_providers.challenge.verifier import ChallengeSigner
from nodeattest_providers.composite.protocol import CompositeChallenge
from nodeattest_providers.composite.verifier import CompositeSigner
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.identifiers import ProviderID, ProviderName
from nodeattest_providers.node_interface import Evidence, JsonObject, SecretBytes
from nodeattest_providers.platform import Platform
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, LedgerFacts, NodeRequest

CHALLENGE: Final = ProviderName("challenge")


# A secret


KNOWN: Final = replace(FACTS, machine=replace(FACTS.machine, attestation_secret=SECRET))


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """An exchange by a secret; what is given is spoilt."""

    known: bytes = SECRET.reveal()
    """What the attacker has."""
    facts: Facts = KNOWN
    later: Facts | None = None
    mac: bytes | None = None
    first_data: JsonObject | None = None
    """What the first request's evidence is when it is read again."""

    async def verified(self) -> AttestedNode:
        """Go through both rounds; raises what the verifier raises."""
        signer = ChallengeSigner()
        first = filed_for(Evidence(CHALLENGE, 1, {"phase": 1}))
        try:
            await signer.verify_client_attestation_data(first, self.facts)
        except ChallengeRequired as required:
            nonce = Challenge.parse(required.challenge).nonce
        else:
            raise AssertionError("a first request never attests a node")
        (pin, *_) = sorted(self.facts.cluster.pins)
        reread = replace(first, evidence=Evidence(CHALLENGE, 1, self.first_data or {"phase": 1}))
        mac = self.mac or proof(SecretBytes(self.known), nonce, first.uid, first.binding(pin).digest)
        named: JsonObject = {"name": first.name, "uid": first.uid}
        second = answering(first, Evidence(CHALLENGE, 1, {"phase": 2, "first": named, "mac": b64encode(mac)}))
        return await signer.verify_client_attestation_data(
            second, replace(self.later or self.facts, first_request=reread)
        )


def of_machine(secret: bytes | None) -> Facts:
    given = None if secret is None else SecretBytes(secret)
    return replace(FACTS, machine=replace(FACTS.machine, attestation_secret=given))


def recorded(**ledger: Any) -> Facts:
    return replace(of_machine(SECRET.reveal()), ledger=LedgerFacts(**ledger))


SECOND_PHASE: Final[JsonObject] = {
    "phase": 2,
    "first": {"name": "csr-u-0", "uid": "u-0"},
    "mac": b64encode(bytes(32)),
}


CHALLENGES: Final[Mapping[str, Callable[[], Secret]]] = {
    "the Machine's secret": lambda: Secret(known=b"", facts=of_machine(None)),
    "pinned secret": lambda: Secret(facts=recorded(fingerprints={"secret": "sha256:another"})),
    "secret used once": lambda: Secret(facts=recorded(bound_spkis=frozenset({"sha256:of-the-machine"}))),
    "first request's phase": lambda: Secret(first_data=SECOND_PHASE),
    "challenge answered": lambda: Secret(mac=bytes(32)),
}


# Several proofs


async def sound_parts() -> AttestedNode:
    """Go through a sound exchange."""
    sound = await asyncio.to_thread(sound_exchange)  # it runs a loop of its own
    return await composite_of().verify_client_attestation_data(filed(sound.answer(), second=True), sound.facts)


def composite_of(*signers: ClusterAPISigner) -> CompositeSigner:
    """Make a composite whose parts are verified by these, or by the real ones."""
    known = {signer.provider: signer for signer in signers}
    return CompositeSigner(platform=Platform(find_signer=lambda name: known[name]) if signers else Platform())


async def by_the_secret_alone() -> AttestedNode:
    """Join with a secret and a second part that proves anything, where the policy wants a TPM."""
    signer, tpm = composite_of(ChallengeSigner(), OneStep("aws")), SoftTpm()
    facts = facts_for(tpm)
    first = filed({"phase": 1, "parts": without_tpm({"phase": 1})})
    found = await challenges_of(signer, first, facts)
    exchange = Exchange(tpm, replace(facts, first_request=first), first, found)
    named: JsonObject = {"name": exchange.ref.name, "uid": exchange.ref.uid}
    answer: JsonObject = {"phase": 2, "first": named, "parts": without_tpm(exchange.secret_answer())}
    return await signer.verify_client_attestation_data(filed(answer, second=True), exchange.facts)


def without_tpm(secret: JsonObject) -> JsonObject:
    return parts_of(challenge=secret, aws={"x": 1})


async def challenges_of(signer: CompositeSigner, first: NodeRequest, facts: Facts) -> dict[ProviderName, str]:
    try:
        await signer.verify_client_attestation_data(first, facts)
    except ChallengeRequired as required:
        return dict(CompositeChallenge.parse(required.challenge).texts)
    raise AssertionError("a first request never attests a node")


async def of_other_parts() -> AttestedNode:
    """Answer by a TPM's proof, too, a first request that showed none."""
    sound = await asyncio.to_thread(sound_exchange)  # it runs a loop of its own
    first = replace(
        sound.first, evidence=replace(sound.first.evidence, data={"phase": 1, "parts": without_tpm({"phase": 1})})
    )
    facts = replace(sound.facts, first_request=first)
    return await composite_of().verify_client_attestation_data(filed(sound.answer(), second=True), facts)


async def one_unproved() -> AttestedNode:
    """Answer by the secret, and show the TPM's keys once more instead of a quote."""
    sound = await asyncio.to_thread(sound_exchange)  # it runs a loop of its own
    answer = sound.answer(tpm=sound.tpm.first().to_json())
    return await composite_of().verify_client_attestation_data(filed(answer, second=True), sound.facts)


def by_steps(*signers: OneStep) -> Callable[[], Awaitable[object]]:
    """Prove by providers of one step, whose answers are set."""

    async def attack() -> AttestedNode:
        parts: JsonObject = {signer.provider: {"v": 1, "data": {"x": 1}} for signer in signers}
        first = filed({"phase": 1, "parts": parts})
        named: JsonObject = {"name": first.name, "uid": first.uid}
        second = filed({"phase": 2, "first": named, "parts": parts}, second=True)
        settings = {"allOf": [signer.provider for signer in signers]}
        facts = replace(facts_for(SoftTpm()), settings=settings, first_request=first)
        return await composite_of(*signers).verify_client_attestation_data(second, facts)

    return attack


def of_another_machine() -> OneStep:
    found = OneStep("azure")
    found.provider_id = ProviderID("metal://rack-9/9")
    return found


COMPOSITE: Final[Mapping[str, Callable[[], Awaitable[object]]]] = {
    "all proofs that the policy demands, and no others": by_the_secret_alone,
    "first request's phase and parts": of_other_parts,
    "every part is proved": one_unproved,
    "of this machine": by_steps(OneStep("aws"), of_another_machine()),
    "one Machine": by_steps(OneStep("aws", machine="m-1"), OneStep("azure", machine="m-2")),
    "one node name": by_steps(OneStep("aws", node_name="worker-1"), OneStep("azure", node_name="worker-2")),
}
