"""Attackers against TPMs: devices of others, and one made in software."""

from __future__ import annotations

import os
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodeattest_cli.demo.attacker import CsrOutcome, new_request
from nodeattest_cli.demo.attacks.context import Attack, AttackContext, join_with_agent, new_name, submit_request
from nodeattest_cli.demo.forged_tpm import ForgedTpm
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_controller.model.objects import text
from nodeattest_providers import envelope
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import evidence_block
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonObject
from nodeattest_providers.tpm.protocol import VERSION, Challenge, SecondEvidence, qualifying_data

__all__ = ["ATTACKS", "forge"]


def _own_device(context: AttackContext) -> CsrOutcome:
    """Show a genuine device that is not this Machine's."""
    return join_with_agent(context, context.victim.identity, context.unregistered)


def _members_device(context: AttackContext) -> CsrOutcome:
    """Show a compromised node's device for another Machine's identity."""
    return join_with_agent(context, context.victim.identity, context.member.attestor)


def _forged_quote(context: AttackContext) -> CsrOutcome:
    """Show the victim's public endorsement key, and make everything else in software."""
    if context.victim.tpm is None:
        raise DemoFailure("the victim has no TPM to forge")
    return forge(context, context.victim.tpm.endorsement_certificate().public_key())


def forge(context: AttackContext, key: object) -> CsrOutcome:
    """Play the victim's TPM with this endorsement key of it, of which only the public half is known."""
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise DemoFailure("the victim's TPM has no endorsement key to forge for")
    identity, attacker, signer = context.victim.identity, context.attacker, context.victim.attestor.signer
    forged = ForgedTpm(key)
    provider = context.victim.attestor.provider
    _, csr_der = new_request(identity.node, identity.provider_id)

    def envelope_of(data: JsonObject) -> bytes:
        return envelope.encode(csr_der, Evidence(provider, VERSION, data))

    first_name = new_name()
    first = attacker.submit(first_name, envelope_of(forged.first().to_json()), signer)
    ref = FirstRequestRef(name=first_name, uid=text(first, "metadata", "uid"))
    challenge = Challenge.parse(attacker.challenge(first_name))
    binding = attacker.binding(evidence_block(provider, VERSION), signer, csr_der)
    extra = qualifying_data(challenge.nonce, ref.uid, binding.digest)
    quote, signature, pcrs = forged.quote(challenge, extra)
    guess = os.urandom(32)  # the proof needs the secret, which only the TPM can decrypt
    second = SecondEvidence(first=ref, mac=guess, quote=quote, signature=signature, pcrs=pcrs)
    return submit_request(context, envelope_of(second.to_json()), context.victim.attestor)


ATTACKS: Final = (
    Attack(
        name="genuine TPM that nobody registered",
        expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,),
        run=_own_device,
    ),
    Attack(
        name="another machine's TPM",
        expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,),
        run=_members_device,
    ),
    Attack(name="forged TPM: software key and quote", expected=(Reason.PROOF_INVALID,), run=_forged_quote),
)
