"""A machine with a TPM in software and a secret: composite evidence whose every part a test can choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from tpm_world import MASTER, NOW, SoftTpm, answer_to, binding_of, cluster, machine, request_of
from worlds import attested, challenge_by

from nodeattest_providers.challenge import protocol as by_secret
from nodeattest_providers.checks import Checks
from nodeattest_providers.composite.protocol import PART_VERSION, PROVIDER, VERSION, CompositeChallenge
from nodeattest_providers.composite.verifier import CompositeSigner
from nodeattest_providers.errors import ChallengeRequired, Reason
from nodeattest_providers.identifiers import (
    MachineName,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
    SignerName,
    evidence_block,
    signer_for,
)
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonObject, JsonValue, SecretBytes
from nodeattest_providers.platform import Platform
from nodeattest_providers.tpm import protocol as by_tpm
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest

TPM, CHALLENGE = ProviderName("tpm"), ProviderName("challenge")
SIGNER = signer_for(PROVIDER, Purpose.CLIENT)
SECRET = SecretBytes(bytes(range(32)))
BOTH: Mapping[str, JsonValue] = {"allOf": ["tpm", "challenge"]}


def composite() -> CompositeSigner:
    return CompositeSigner(platform=Platform())


def filed(data: JsonObject, *, second: bool = False, signer: SignerName = SIGNER) -> NodeRequest:
    """A request as the API server stored it, with any evidence."""
    template = request_of(SoftTpm().first())
    number = 2 if second else 1
    return replace(
        template,
        name=f"csr-{number}",
        uid=f"uid-{number}",
        created=NOW + timedelta(seconds=2 * number - 2),
        signer_name=signer,
        evidence=Evidence(PROVIDER, VERSION, data),
    )


def parts_of(**data: JsonObject) -> JsonObject:
    """Wrap the parts' evidence as the composite carries it."""
    return {name: {"v": PART_VERSION, "data": value} for name, value in data.items()}


def part_binding(request: NodeRequest, part: ProviderName, signer: SignerName | None = None) -> bytes:
    """The binding of a part's proof, or of a proof of the same provider for another signer."""
    block = evidence_block(part, PART_VERSION)
    return replace(binding_of(request), evidence_block=block, signer_name=signer or request.signer_name).digest


def verify(request: NodeRequest, facts: Facts, signer: CompositeSigner | None = None) -> AttestedNode:
    return attested(signer or composite(), request, facts)


def challenge_of(request: NodeRequest, facts: Facts, signer: CompositeSigner | None = None) -> ChallengeRequired:
    return challenge_by(lambda: verify(request, facts, signer))


@dataclass(frozen=True, slots=True)
class Exchange:
    """A sound exchange of a TPM and a secret, in whichever order its parts are spoilt."""

    tpm: SoftTpm
    facts: Facts
    first: NodeRequest
    texts: Mapping[ProviderName, str]

    @property
    def ref(self) -> FirstRequestRef:
        return FirstRequestRef(name=self.first.name, uid=self.first.uid)

    def tpm_answer(self, tpm: SoftTpm | None = None, *, binding: bytes | None = None) -> JsonObject:
        """The TPM's second evidence; by another TPM, over another binding."""
        challenge, over = by_tpm.Challenge.parse(self.texts[TPM]), binding or part_binding(self.first, TPM)
        return answer_to(self.first, self.facts, challenge, self.tpm, binding=over, quoting=tpm).to_json()

    def secret_answer(self, secret: SecretBytes = SECRET, *, binding: bytes | None = None) -> JsonObject:
        """The secret's second evidence; under another secret, over another binding."""
        nonce = by_secret.Challenge.parse(self.texts[CHALLENGE]).nonce
        mac = by_secret.proof(secret, nonce, self.first.uid, binding or part_binding(self.first, CHALLENGE))
        return by_secret.ChallengeEvidence(first=self.ref, mac=mac).to_json()

    def answer(self, **parts: JsonObject) -> JsonObject:
        """The whole second evidence; ``parts`` replace sound ones."""
        sound = {"tpm": self.tpm_answer(), "challenge": self.secret_answer()}
        first: JsonObject = {"name": self.ref.name, "uid": self.ref.uid}
        return {"phase": 2, "first": first, "parts": parts_of(**(sound | parts))}


def facts_for(tpm: SoftTpm, settings: Mapping[str, JsonValue] = BOTH, **changes: object) -> Facts:
    facts = Facts(
        cluster=cluster(),
        machine=replace(machine(), attestation_secret=SECRET),
        settings=settings,
        sections={TPM: tpm.settings, PROVIDER: settings},
        challenge_keys=(MASTER,),
        verified_at=NOW,
    )
    return replace(facts, **changes)


def first_of(tpm: SoftTpm) -> JsonObject:
    parts = parts_of(tpm=tpm.first().to_json(), challenge={"phase": 1})
    return {"phase": 1, "parts": parts}


def sound_exchange(tpm: SoftTpm | None = None, **changes: object) -> Exchange:
    """Go through the first round."""
    tpm = tpm or SoftTpm()
    facts = facts_for(tpm, **changes)  # pyright: ignore[reportArgumentType] - the tests name real fields
    first = filed(first_of(tpm))
    texts = CompositeChallenge.parse(challenge_of(first, facts).challenge).texts
    return Exchange(tpm, replace(facts, first_request=first), first, texts)


class OneStep(ClusterAPISigner):
    """A provider whose platform can be made to say anything."""

    versions: tuple[int, ...] = (1,)

    def __init__(
        self, name: str, verdict: Exception | None = None, *, node_name: str | None = None, machine: str | None = None
    ) -> None:
        self.provider = ProviderName(name)
        self.secure = True
        self.verdict = verdict
        self.node_name = node_name
        self.machine = machine
        self.seen: list[tuple[NodeRequest, Facts]] = []
        self.provider_id: ProviderID | None = None

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        self.seen.append((request, facts))
        checks = Checks()
        looked = bool(request.evidence.data)
        checks.require(looked, "looked", section="", reason=Reason.PROOF_INVALID, expected="", got="", remedy="")
        if self.verdict is not None:
            raise self.verdict
        return AttestedNode(
            provider=self.provider,
            provider_id=self.provider_id or request.csr.provider_id,
            proven_node_name=NodeName(self.node_name) if self.node_name else None,
            fingerprints={"id": f"of-{self.provider}"},
            checks=checks.record(),
        )

    def machine_name(self, request: NodeRequest, attested: AttestedNode) -> MachineName | None:
        return MachineName(self.machine) if self.machine else None


def signer_of(*signers: ClusterAPISigner) -> CompositeSigner:
    known = {signer.provider: signer for signer in signers}
    return CompositeSigner(platform=Platform(find_signer=lambda name: known[name]))


def signer_of_parts(**names: str) -> CompositeSigner:
    """Let parts say that all is well, each of a node of its own."""
    return signer_of(*(OneStep(part, node_name=name) for part, name in names.items()))
