"""Attackers against machines that must prove themselves twice: one proof of two, and two of different machines."""

from __future__ import annotations

from typing import Final

from nodeattest_cli.demo.attacker import CsrOutcome
from nodeattest_cli.demo.attacks.context import Attack, AttackContext, join_with_agent, submit_with_evidence
from nodeattest_cli.demo.machine_spec import AttestorSettings
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence, JsonObject

__all__ = ["ATTACKS"]

_TPM, _SECRET = "tpm.tcti", "challenge.secretFile"


def _mixed(context: AttackContext, *, tpm: AttestorSettings, secret: AttestorSettings) -> CsrOutcome:
    """Join as the victim with the devices of two machines."""
    settings = {_TPM: tpm.settings[_TPM], _SECRET: secret.settings[_SECRET]}
    return join_with_agent(
        context, context.victim.identity, AttestorSettings(provider=context.victim.attestor.provider, settings=settings)
    )


def _another_machines_secret(context: AttackContext) -> CsrOutcome:
    """Show the right TPM, and the secret of a node that was broken into."""
    return _mixed(context, tpm=context.victim.attestor, secret=context.member.attestor)


def _another_machines_tpm(context: AttackContext) -> CsrOutcome:
    """Show the right secret, read from bootstrap data, and the TPM of another machine."""
    return _mixed(context, tpm=context.member.attestor, secret=context.victim.attestor)


def _one_proof_alone(context: AttackContext) -> CsrOutcome:
    """Show the right secret at the signer that wants no other proof."""
    settings = {"secretFile": context.victim.attestor.settings[_SECRET]}
    return join_with_agent(
        context, context.victim.identity, AttestorSettings(provider=ProviderName("challenge"), settings=settings)
    )


def _without_the_tpm(context: AttackContext) -> CsrOutcome:
    """Put something else in the place of one of the proofs."""
    parts: JsonObject = {name: {"v": 1, "data": {"phase": 1}} for name in ("challenge", "contoso")}
    evidence = Evidence(context.victim.attestor.provider, 1, {"phase": 1, "parts": parts})
    return submit_with_evidence(context, context.victim.identity, context.victim.attestor, lambda _: evidence)


ATTACKS: Final = (
    Attack(name="one of two proofs, alone", expected=(Reason.ATTESTOR_NOT_AUTHORIZED,), run=_one_proof_alone),
    Attack(name="one of two proofs, and something else", expected=(Reason.PROOF_MISSING,), run=_without_the_tpm),
    Attack(
        name="the right TPM, another machine's secret", expected=(Reason.PROOF_INVALID,), run=_another_machines_secret
    ),
    Attack(
        name="the right secret, another machine's TPM",
        expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,),
        run=_another_machines_tpm,
    ),
)
