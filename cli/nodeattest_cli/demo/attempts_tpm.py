"""Impostors against TPMs: devices of others, and one made in software."""

from __future__ import annotations

import os
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodeattest_cli.demo.attacker import Verdict, new_request
from nodeattest_cli.demo.forged_tpm import ForgedTpm
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.scene import Attempt, Scene, by_agent, file_request, new_name
from nodeattest_controller.model.objects import text
from nodeattest_providers import envelope
from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonObject
from nodeattest_providers.tpm.protocol import Challenge, SecondEvidence, qualifying_data

__all__ = ["ATTEMPTS", "forge"]


def _strangers_device(scene: Scene) -> Verdict:
    """Show a genuine device that is not this Machine's."""
    return by_agent(scene, scene.victim.identity, scene.stranger)


def _members_device(scene: Scene) -> Verdict:
    """Show a compromised node's device for another Machine's identity."""
    return by_agent(scene, scene.victim.identity, scene.member.seat)


def _forged_quote(scene: Scene) -> Verdict:
    """Show the victim's public endorsement key, and make everything else in software."""
    if scene.victim.tpm is None:
        raise DemoFailure("the victim has no TPM to forge")
    return forge(scene, scene.victim.tpm.endorsement_certificate().public_key())


def forge(scene: Scene, key: object) -> Verdict:
    """Play the victim's TPM with this endorsement key of it, of which only the public half is known."""
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise DemoFailure("the victim's TPM has no endorsement key to forge for")
    identity, attacker, signer = scene.victim.identity, scene.attacker, scene.victim.seat.signer
    forged = ForgedTpm(key)
    _, csr_der = new_request(identity.node, identity.provider_id)

    def envelope_of(data: JsonObject) -> bytes:
        return envelope.encode(csr_der, Evidence(scene.victim.seat.provider, 1, data))

    first_name = new_name()
    first = attacker.file(first_name, envelope_of(forged.first().to_json()), signer)
    ref = FirstRequestRef(name=first_name, uid=text(first, "metadata", "uid"))
    challenge = Challenge.parse(attacker.challenge(first_name))
    extra = qualifying_data(challenge.nonce, ref.uid, attacker.binding(signer, csr_der).digest)
    quote, signature, pcrs = forged.quote(challenge, extra)
    guess = os.urandom(32)  # the proof needs the secret, which only the TPM can decrypt
    second = SecondEvidence(first=ref, mac=guess, quote=quote, signature=signature, pcrs=pcrs)
    return file_request(scene, envelope_of(second.to_json()), scene.victim.seat)


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
