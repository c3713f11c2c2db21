"""The impostors: what each tries with a stolen token, and the reason for which it must be refused.

Every attempt is a real agent process or a real client of the API server; none has help from inside. What else is tried:
docs/threat-model.md.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_cli.demo.attacker import Attacker, Verdict, new_request
from nodeattest_cli.demo.children import Children
from nodeattest_cli.demo.equipment import Identity, Seat
from nodeattest_cli.demo.fleet import DemoMachine, run_join
from nodeattest_cli.demo.forged_tpm import ForgedTpm
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.results import Refused
from nodeattest_cli.demo.world import World
from nodeattest_controller.objects import text
from nodeattest_providers import envelope, pem
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.interface import Evidence, FirstRequestRef, JsonObject
from nodeattest_providers.names import ProviderName
from nodeattest_providers.tpm.protocol import Challenge, SecondEvidence, qualifying_data

__all__ = ["Attempt", "Scene", "attempts_for", "carry_out"]

_SECOND_PHASE: Final = 2
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Who is there when the impostors come."""

    world: World
    children: Children
    agent: Path
    directory: Path
    attacker: Attacker
    victim: DemoMachine
    """A Machine that is provisioned and has not joined: nothing in the ledger protects it yet."""
    member: DemoMachine
    """A machine that has joined."""
    stranger: Seat
    """What an attacker's own machine has to show: a genuine TPM that nobody registered, or a secret of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One thing that an impostor tries."""

    name: str
    expected: tuple[Reason, ...]
    act: Callable[[Scene], Verdict]


def attempts_for(provider: ProviderName) -> Sequence[Attempt]:
    """Choose the attempts that make sense against a provider."""
    match provider:
        case "tpm":
            return (*_COMMON, *_TPM)
        case "challenge":
            return (*_COMMON, *_CHALLENGE)
        case _:
            return _INSECURE


def carry_out(scene: Scene, attempt: Attempt) -> Refused:
    """Let an impostor try."""
    verdict = attempt.act(scene)
    return Refused(attempt=attempt.name, expected=attempt.expected, reason=verdict.reason, message=verdict.message)


# With the real agent


def _by_agent(scene: Scene, identity: Identity, seat: Seat) -> Verdict:
    """Join with the agent; the answer is read from the API server, not from what the agent says."""
    known = scene.attacker.own_names()
    root = scene.directory / f"impostor-{next(_NUMBERS)}"
    run_join(scene.world, scene.children, scene.agent, root, identity=identity, seat=seat, token=scene.attacker.token)
    return scene.attacker.verdict_besides(known)


def _strangers_device(scene: Scene) -> Verdict:
    """Show a genuine device that is not this Machine's."""
    return _by_agent(scene, scene.victim.identity, scene.stranger)


def _members_device(scene: Scene) -> Verdict:
    """Show a compromised node's device for another Machine's identity."""
    return _by_agent(scene, scene.victim.identity, scene.member.seat)


def _other_name(scene: Scene) -> Verdict:
    """Be an enrolled machine, honest in everything but its name."""
    identity = Identity(node=scene.victim.identity.node, provider_id=scene.member.identity.provider_id)
    return _by_agent(scene, identity, scene.member.seat)


def _other_name_insecure(scene: Scene) -> Verdict:
    identity = Identity(node=scene.member.identity.node, provider_id=scene.victim.identity.provider_id)
    return _by_agent(scene, identity, scene.victim.seat)


def _downgrade(scene: Scene) -> Verdict:
    """Ask the signer that demands no proof."""
    return _by_agent(scene, scene.victim.identity, Seat(provider=ProviderName("insecure")))


def _second_key(scene: Scene) -> Verdict:
    """Be a machine that has joined, and bring another key."""
    return _by_agent(scene, scene.member.identity, scene.member.seat)


# By hand


def _without_evidence(scene: Scene) -> Verdict:
    """File a plain PKCS#10 request, as kubeadm's TLS bootstrap files it."""
    identity = scene.victim.identity
    _, csr_der = new_request(identity.node, identity.provider_id)
    return _file(scene, pem.encode([(envelope.LABEL_CSR, csr_der)]), scene.victim.seat)


def _unknown_machine(scene: Scene) -> Verdict:
    """Claim a provider ID that no Machine has; the controller waits a little, for the Machine might yet appear."""
    _, csr_der = new_request("worker-nobody", "demo://rack-9/9")
    return _file(scene, envelope.encode(csr_der, Evidence(ProviderName("insecure"), 1, {})), scene.victim.seat)


def _replay(scene: Scene) -> Verdict:
    """Put another node's proof, read where everybody may read it, around a key of the attacker's own."""
    evidence = _observed_proof(scene)
    identity = scene.member.identity
    _, csr_der = new_request(identity.node, identity.provider_id)
    return _file(scene, envelope.encode(csr_der, evidence), scene.member.seat)


def _observed_proof(scene: Scene) -> Evidence:
    for csr in scene.attacker.observed():
        try:
            node, evidence = envelope.decode(base64.b64decode(text(csr, "spec", "request")))
        except Denied:
            continue
        if node.node_name == scene.member.identity.node and evidence.data.get("phase") == _SECOND_PHASE:
            return evidence
    raise DemoFailure(f"no second request of {scene.member.identity.node} can be observed")


def _forged_quote(scene: Scene) -> Verdict:
    """Show the victim's public endorsement key, and make everything else in software."""
    tpm, identity, attacker, signer = scene.victim.tpm, scene.victim.identity, scene.attacker, scene.victim.seat.signer
    key = tpm.endorsement_certificate().public_key() if tpm else None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DemoFailure("the victim's TPM has no elliptic-curve endorsement key to forge for")
    forged = ForgedTpm(key)
    _, csr_der = new_request(identity.node, identity.provider_id)

    def envelope_of(evidence: Evidence) -> bytes:
        return envelope.encode(csr_der, evidence)

    first_name = _name()
    first = attacker.file(first_name, envelope_of(_tpm(forged.first().to_json())), signer)
    ref = FirstRequestRef(name=first_name, uid=text(first, "metadata", "uid"))
    challenge = Challenge.parse(attacker.challenge(first_name))
    extra = qualifying_data(challenge.nonce, ref.uid, attacker.binding(signer, csr_der).digest)
    quote, signature, pcrs = forged.quote(challenge, extra)
    guess = os.urandom(32)  # the proof needs the secret, which only the TPM can decrypt
    second = SecondEvidence(first=ref, mac=guess, quote=quote, signature=signature, pcrs=pcrs)
    return _file(scene, envelope_of(_tpm(second.to_json())), scene.victim.seat)


def _tpm(data: JsonObject) -> Evidence:
    return Evidence(ProviderName("tpm"), 1, data)


def _file(scene: Scene, request: bytes, seat: Seat) -> Verdict:
    name = _name()
    scene.attacker.file(name, request, seat.signer)
    return scene.attacker.verdict(name)


def _name() -> str:
    return f"impostor-{next(_NUMBERS)}"


_COMMON: Final = (
    Attempt(name="stolen token, no evidence", expected=(Reason.ENVELOPE_MALFORMED,), act=_without_evidence),
    Attempt(
        name="stolen token, the insecure signer",
        expected=(Reason.ATTESTOR_NOT_AUTHORIZED,),
        act=_downgrade,
    ),
    Attempt(
        name="enrolled machine, another node's name",
        expected=(Reason.NODE_NAME_MISMATCH,),
        act=_other_name,
    ),
    Attempt(
        name="replay of another node's proof with a new key",
        # The first request has another key; and a secret that served a first join serves no second key.
        expected=(Reason.FIRST_REQUEST_MISMATCH, Reason.SECRET_USED),
        act=_replay,
    ),
)
_TPM: Final = (
    Attempt(
        name="genuine TPM that nobody registered",
        expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,),
        act=_strangers_device,
    ),
    Attempt(
        name="another machine's TPM",
        expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,),
        act=_members_device,
    ),
    Attempt(name="forged TPM: software key and quote", expected=(Reason.PROOF_INVALID,), act=_forged_quote),
)
_CHALLENGE: Final = (
    Attempt(name="a secret of the attacker's own", expected=(Reason.PROOF_INVALID,), act=_strangers_device),
    Attempt(name="another machine's secret", expected=(Reason.PROOF_INVALID,), act=_members_device),
    Attempt(name="a joined machine's secret, a second key", expected=(Reason.SECRET_USED,), act=_second_key),
)
_INSECURE: Final = (
    Attempt(name="stolen token, no evidence", expected=(Reason.ENVELOPE_MALFORMED,), act=_without_evidence),
    Attempt(name="another node's name", expected=(Reason.NODE_NAME_MISMATCH,), act=_other_name_insecure),
    Attempt(name="a joined machine, a second key", expected=(Reason.MACHINE_ALREADY_BOUND,), act=_second_key),
    Attempt(name="a machine that nobody made", expected=(Reason.MACHINE_NOT_FOUND,), act=_unknown_machine),
)
