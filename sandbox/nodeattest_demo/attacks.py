"""The table of the demo's attacks: what each tries, and the Reason for which it must be refused.

Leaves all other attacks to docs/threat-model.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_demo.machines import AttestorSettings, ClaimedIdentity, DemoFailure
from nodeattest_demo.scene import CsrOutcome, Scene, new_name, new_request
from nodeattest_parsing.objects import text
from nodeattest_providers import envelope, pem
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderName, evidence_block
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonObject
from nodeattest_providers.tpm.protocol import VERSION, Challenge, SecondEvidence, qualifying_data

_INSECURE: Final = AttestorSettings(provider=ProviderName("insecure"))


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack and the Reasons that may refuse it."""

    name: str
    run: Callable[[Scene], CsrOutcome]
    expected: tuple[Reason, ...]


def attacks_for(provider: str) -> Sequence[Attack]:
    """Return the attacks for a provider."""
    return (*_COMMON, *_ATTACKS[provider])


# Attackers against every provider


def _without_evidence(scene: Scene) -> CsrOutcome:
    """File a plain PKCS#10 request, as kubeadm's TLS bootstrap files it."""
    _, csr_der = new_request(scene.victim.identity.node, scene.victim.identity.provider_id)
    return scene.submit(pem.encode([(envelope.LABEL_CSR, csr_der)]), scene.victim.attestor.signer)


def _other_token(scene: Scene) -> CsrOutcome:
    """Show all that the victim has to show, and ask with the token of another machine."""
    return scene.join(scene.victim.attestor, by=scene.insider)


def _other_name(scene: Scene) -> CsrOutcome:
    """Be an enrolled machine, honest in everything but its name."""
    identity = ClaimedIdentity(node=scene.victim.identity.node, provider_id=scene.member.identity.provider_id)
    return scene.join(scene.member.attestor, identity=identity, by=scene.insider)


def _second_key(scene: Scene) -> CsrOutcome:
    """Be a machine that has joined, and bring another key."""
    return scene.join(scene.member.attestor, identity=scene.member.identity, by=scene.insider)


def _replay(scene: Scene) -> CsrOutcome:
    """Put another node's proof, read where everybody may read it, around a key of the attacker's own."""
    identity = scene.member.identity
    _, csr_der = new_request(identity.node, identity.provider_id)
    request = envelope.encode(csr_der, scene.observed_evidence())
    return scene.submit(request, scene.member.attestor.signer, by=scene.insider)


def _unregistered(scene: Scene) -> CsrOutcome:
    """Show a genuine device, instance or secret that is not this Machine's."""
    return scene.join(scene.unregistered)


def _members(scene: Scene) -> CsrOutcome:
    """Show a compromised node's device, instance or secret for another Machine's identity."""
    return scene.join(scene.member.attestor)


# Attackers against TPMs


def _forged_tpm(scene: Scene) -> CsrOutcome:
    """Show the public endorsement key of the victim's TPM, and make everything else in software."""
    provider, signer = scene.victim.attestor.provider, scene.victim.attestor.signer
    if scene.victim.tpm is None:
        raise DemoFailure("the victim has no TPM to forge")
    key = scene.victim.tpm.endorsement_certificate("ecc-p384").public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise DemoFailure("the victim's TPM has no endorsement key to forge for")
    forged = ForgedTpm(key)
    _, csr_der = new_request(scene.victim.identity.node, scene.victim.identity.provider_id)

    def envelope_of(data: JsonObject) -> bytes:
        return envelope.encode(csr_der, Evidence(provider, VERSION, data))

    first_name = new_name()
    first = scene.attacker.submit(first_name, envelope_of(forged.first().to_json()), signer)
    ref = FirstRequestRef(name=first_name, uid=text(first, "metadata", "uid"))
    challenge = Challenge.parse(scene.attacker.challenge(first_name))
    binding = scene.attacker.binding(evidence_block(provider, VERSION), signer, csr_der)
    quote, signed, pcrs = forged.quote(challenge, qualifying_data(challenge.nonce, ref.uid, binding.digest))
    guess = os.urandom(32)  # the proof needs the secret, which only the TPM can decrypt
    second = SecondEvidence(first=ref, mac=guess, quote=quote, signature=signed, pcrs=pcrs)
    return scene.submit(envelope_of(second.to_json()), signer)


_COMMON: Final = (
    Attack("stolen token, no evidence", _without_evidence, (Reason.ENVELOPE_MALFORMED,)),
    Attack("stolen token, the insecure signer", lambda scene: scene.join(_INSECURE), (Reason.ATTESTOR_NOT_AUTHORIZED,)),
    Attack("another machine's token", _other_token, (Reason.TOKEN_NOT_THIS_MACHINES,)),
    Attack("enrolled machine, another node's name", _other_name, (Reason.NODE_NAME_MISMATCH,)),
    # The first request has another key, or: a secret that served a first join serves no second key.
    Attack(
        "replay of another node's proof with a new key", _replay, (Reason.FIRST_REQUEST_MISMATCH, Reason.SECRET_USED)
    ),
)
_ATTACKS: Final[Mapping[str, Sequence[Attack]]] = MappingProxyType(
    {
        "tpm": (
            Attack("genuine TPM that nobody registered", _unregistered, (Reason.ENDORSEMENT_KEY_UNTRUSTED,)),
            Attack("another machine's TPM", _members, (Reason.ENDORSEMENT_KEY_UNTRUSTED,)),
            Attack("forged TPM: software key and quote", _forged_tpm, (Reason.PROOF_INVALID,)),
        ),
        "challenge": (
            Attack("a secret of the attacker's own", _unregistered, (Reason.PROOF_INVALID,)),
            Attack("another machine's secret", _members, (Reason.PROOF_INVALID,)),
            Attack("a joined machine's secret, a second key", _second_key, (Reason.SECRET_USED,)),
        ),
    }
)
"""By provider, besides those of ``_COMMON``."""
