"""An attack for each check of ``challenge`` and ``composite``; what they share with the TPM protocol is shown there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from composite_world import SECRET, Exchange, OneStep, facts_for, filed, parts_of, sound_exchange
from mutants import CHALLENGED, CRASHED, GRANTED, ChecksWithout, Ended, ended_by, of_part
from rows import Row
from tpm_world import SoftTpm
from worlds import FACTS, answering
from worlds import filed as filed_for

from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.challenge.protocol import Challenge, proof
from nodeattest_providers.challenge.verifier import SecretChallengeSigner
from nodeattest_providers.composite.protocol import CompositeChallenge
from nodeattest_providers.composite.verifier import CompositeSigner
from nodeattest_providers.errors import ChallengeRequired, Reason
from nodeattest_providers.names import ProviderID, ProviderName
from nodeattest_providers.node_interface import Evidence, JsonObject, SecretBytes
from nodeattest_providers.platform import Platform
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, LedgerFacts, NodeRequest

__all__ = ["CHALLENGE_ROWS", "COMPOSITE_ROWS", "Removed", "named_by", "sound_parts", "sound_secret"]

Removed = frozenset[str]
Attack = Callable[[Removed], Awaitable[Ended]]
CHALLENGE: Final = ProviderName("challenge")


def named_by(part: str, ended: Ended) -> Ended:
    """Name the list of the check that refused."""
    if ended in (GRANTED, CHALLENGED) or ended[0] == CRASHED:
        return ended
    return (f"{part}: {ended[0]}", ended[1])


class SecretWithout(SecretChallengeSigner):
    """The verifier of ``challenge`` without these checks."""

    def __init__(self, without: Iterable[str]) -> None:
        self._without = frozenset(without)

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        return self._verify(ChecksWithout(without=self._without), request, facts)


class PartsWithout(CompositeSigner):
    """The verifier of ``composite`` without these checks; its parts have all of theirs."""

    def __init__(self, without: Iterable[str], *signers: ClusterAPISigner) -> None:
        known = {signer.provider: signer for signer in signers}
        super().__init__(platform=Platform(find_signer=lambda name: known[name]) if signers else Platform())
        self._without = frozenset(without)

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        return await self._verify(ChecksWithout(without=self._without), request, facts)


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

    async def verified(self, removed: Removed) -> AttestedNode:
        signer = SecretWithout(of_part("challenge", removed))
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


def by_secret(made: Callable[[], Secret]) -> Attack:
    async def run(removed: Removed) -> Ended:
        return named_by("challenge", await ended_by(made().verified(removed)))

    return run


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


async def sound_secret() -> AttestedNode:
    """Go through a sound exchange."""
    return await Secret().verified(frozenset())


def row(
    check: str,
    attack: str,
    reason: Reason,
    run: Attack,
    *then: tuple[str, str],
    gains: str = "",
    stays: str = "",
    mutants: tuple[str, ...] = (),
) -> Row[Removed]:
    return Row(check=check, attack=attack, reason=reason, run=run, then=then, gains=gains, stays=stays, mutants=mutants)


CHALLENGE_ROWS: Final[tuple[Row[Removed], ...]] = (
    row(
        "challenge: the Machine's secret",
        "a Machine that was given no secret, and a MAC under an empty one",
        Reason.SECRET_MISSING,
        by_secret(lambda: Secret(known=b"", facts=of_machine(None))),
        gains="a certificate for whoever asks",
    ),
    row(
        "challenge: pinned secret",
        "a secret that was put in the place of the one that the machine joined with",
        Reason.SECRET_MISSING,
        by_secret(lambda: Secret(facts=recorded(fingerprints={"secret": "sha256:another"}))),
        gains="a certificate by a secret that the ledger does not know",
        stays="*fingerprints as pinned* compares once more, directly before signing",
    ),
    row(
        "challenge: secret used once",
        "a copy of the secret, from bootstrap data, after the machine joined",
        Reason.SECRET_USED,
        by_secret(lambda: Secret(facts=recorded(bound_spkis=frozenset({"sha256:of-the-machine"})))),
        gains="a certificate for the thief's key under the machine's name",
    ),
    row(
        "challenge: first request's phase",
        "an answer to a request that is an answer itself",
        Reason.FIRST_REQUEST_MISMATCH,
        by_secret(lambda: Secret(first_data=SECOND_PHASE)),
        gains="the machine's own certificate",
        stays="a challenge is published on first requests only, so nobody without the secret gains by it",
    ),
    row(
        "challenge: challenge answered",
        "a thief who has a token and no secret",
        Reason.PROOF_INVALID,
        by_secret(lambda: Secret(mac=bytes(32))),
        gains="a certificate for the thief's key under the machine's name",
    ),
)


# Several proofs


async def sound_parts() -> AttestedNode:
    """Go through a sound exchange."""
    sound = await asyncio.to_thread(sound_exchange)  # it runs a loop of its own
    return await PartsWithout(()).verify_client_attestation_data(filed(sound.answer(), second=True), sound.facts)


def by_parts(verified: Callable[[PartsWithout], Awaitable[object]], *signers: ClusterAPISigner) -> Attack:
    async def run(removed: Removed) -> Ended:
        return named_by("composite", await ended_by(verified(PartsWithout(of_part("composite", removed), *signers))))

    return run


async def by_the_secret_alone(signer: PartsWithout) -> AttestedNode:
    """Join with a secret and a second part that proves anything, where the policy wants a TPM."""
    tpm = SoftTpm()
    facts = facts_for(tpm)
    first = filed({"phase": 1, "parts": without_tpm({"phase": 1})})
    found = await challenges_of(signer, first, facts)
    exchange = Exchange(tpm, replace(facts, first_request=first), first, found)
    named: JsonObject = {"name": exchange.ref.name, "uid": exchange.ref.uid}
    answer: JsonObject = {"phase": 2, "first": named, "parts": without_tpm(exchange.secret_answer())}
    return await signer.verify_client_attestation_data(filed(answer, second=True), exchange.facts)


def without_tpm(secret: JsonObject) -> JsonObject:
    return parts_of(challenge=secret, aws={"x": 1})


async def challenges_of(signer: PartsWithout, first: NodeRequest, facts: Facts) -> dict[ProviderName, str]:
    try:
        await signer.verify_client_attestation_data(first, facts)
    except ChallengeRequired as required:
        return dict(CompositeChallenge.parse(required.challenge).texts)
    raise AssertionError("a first request never attests a node")


async def of_other_parts(signer: PartsWithout) -> AttestedNode:
    """Answer by a TPM's proof, too, a first request that showed none."""
    sound = await asyncio.to_thread(sound_exchange)  # it runs a loop of its own
    first = replace(
        sound.first, evidence=replace(sound.first.evidence, data={"phase": 1, "parts": without_tpm({"phase": 1})})
    )
    facts = replace(sound.facts, first_request=first)
    return await signer.verify_client_attestation_data(filed(sound.answer(), second=True), facts)


async def one_unproved(signer: PartsWithout) -> AttestedNode:
    """Answer by the secret, and show the TPM's keys once more instead of a quote."""
    sound = await asyncio.to_thread(sound_exchange)  # it runs a loop of its own
    answer = sound.answer(tpm=sound.tpm.first().to_json())
    return await signer.verify_client_attestation_data(filed(answer, second=True), sound.facts)


def two_steps(*signers: OneStep) -> tuple[Callable[[PartsWithout], Awaitable[object]], tuple[OneStep, ...]]:
    shown: JsonObject = {"x": 1}
    parts: JsonObject = {signer.provider: {"v": 1, "data": shown} for signer in signers}
    first = filed({"phase": 1, "parts": parts})
    named: JsonObject = {"name": first.name, "uid": first.uid}
    second = filed({"phase": 2, "first": named, "parts": parts}, second=True)
    settings = {"allOf": [signer.provider for signer in signers]}
    facts = replace(facts_for(SoftTpm()), settings=settings, first_request=first)

    async def verified(signer: PartsWithout) -> AttestedNode:
        return await signer.verify_client_attestation_data(second, facts)

    return verified, signers


def of_another_machine() -> OneStep:
    found = OneStep("azure")
    found.provider_id = ProviderID("metal://rack-9/9")
    return found


def by_steps(*signers: OneStep) -> Attack:
    verified, made = two_steps(*signers)
    return by_parts(verified, *made)


COMPOSITE_ROWS: Final[tuple[Row[Removed], ...]] = (
    row(
        "composite: all proofs that the policy demands, and no others",
        "a secret and a part of another provider, where the policy wants the TPM",
        Reason.PROOF_MISSING,
        by_parts(by_the_secret_alone, SecretChallengeSigner(), OneStep("aws")),
        gains="a certificate by the weaker proof",
    ),
    row(
        "composite: first request's phase and parts",
        "an answer by a TPM to a first request that showed no TPM",
        Reason.FIRST_REQUEST_MISMATCH,
        by_parts(of_other_parts),
        (CRASHED, "KeyError"),
        stays="its value is what each part's first request is read from",
    ),
    row(
        "composite: every part is proved",
        "the secret's answer, and the TPM's keys once more instead of a quote",
        Reason.PROOF_MISSING,
        by_parts(one_unproved),
        gains="a certificate by the weaker proof",
    ),
    row(
        "composite: of this machine",
        "two proofs, one of them of another machine, by a provider that does not compare itself",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        by_steps(OneStep("aws"), of_another_machine()),
        gains="a certificate by the proofs of two machines",
        stays="our own providers compare already",
    ),
    row(
        "composite: one Machine",
        "two proofs that prove two Machines",
        Reason.EVIDENCE_FOR_OTHER_MACHINE,
        by_steps(OneStep("aws", machine="m-1"), OneStep("azure", machine="m-2")),
        gains="one of two Machines, by the order of the alphabet",
    ),
    row(
        "composite: one node name",
        "two proofs that prove two node names",
        Reason.NODE_NAME_MISMATCH,
        by_steps(OneStep("aws", node_name="worker-1"), OneStep("azure", node_name="worker-2")),
        gains="one of two names, by the order of the alphabet",
    ),
)
