"""Impostors against TPMs: devices of others, and one made in software."""

from __future__ import annotations

import os
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_cli.demo.attacker import Verdict, new_request
from nodeattest_cli.demo.forged_tpm import ForgedTpm
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.scene import Attempt, Scene, by_agent, file_request, new_name
from nodeattest_controller.objects import text
from nodeattest_providers import envelope
from nodeattest_providers.errors import Reason
from nodeattest_providers.interface import Evidence, FirstRequestRef, JsonObject
from nodeattest_providers.names import ProviderName
from nodeattest_providers.tpm.protocol import Challenge, SecondEvidence, qualifying_data

__all__ = ["ATTEMPTS"]


def _strangers_device(scene: Scene) -> Verdict:
    """Show a genuine device that is not this Machine's."""
    return by_agent(scene, scene.victim.identity, scene.stranger)


def _members_device(scene: Scene) -> Verdict:
    """Show a compromised node's device for another Machine's identity."""
    return by_agent(scene, scene.victim.identity, scene.member.seat)


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

    first_name = new_name()
    first = attacker.file(first_name, envelope_of(_tpm(forged.first().to_json())), signer)
    ref = FirstRequestRef(name=first_name, uid=text(first, "metadata", "uid"))
    challenge = Challenge.parse(attacker.challenge(first_name))
    extra = qualifying_data(challenge.nonce, ref.uid, attacker.binding(signer, csr_der).digest)
    quote, signature, pcrs = forged.quote(challenge, extra)
    guess = os.urandom(32)  # the proof needs the secret, which only the TPM can decrypt
    second = SecondEvidence(first=ref, mac=guess, quote=quote, signature=signature, pcrs=pcrs)
    return file_request(scene, envelope_of(_tpm(second.to_json())), scene.victim.seat)


def _tpm(data: JsonObject) -> Evidence:
    return Evidence(ProviderName("tpm"), 1, data)


ATTEMPTS: Final = (
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
