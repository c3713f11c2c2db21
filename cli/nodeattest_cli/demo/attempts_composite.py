"""Impostors against machines that must prove themselves twice: one proof of two, and two of different machines."""

from __future__ import annotations

from typing import Final

from nodeattest_cli.demo.attacker import Verdict
from nodeattest_cli.demo.equipment import Seat
from nodeattest_cli.demo.scene import Attempt, Scene, by_agent, with_proof
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence, JsonObject

__all__ = ["ATTEMPTS"]

_TPM, _SECRET = "tpm.tcti", "challenge.secretFile"


def _mixed(scene: Scene, *, tpm: Seat, secret: Seat) -> Verdict:
    """Join as the victim with the devices of two machines."""
    settings = {_TPM: tpm.settings[_TPM], _SECRET: secret.settings[_SECRET]}
    return by_agent(scene, scene.victim.identity, Seat(provider=scene.victim.seat.provider, settings=settings))


def _another_machines_secret(scene: Scene) -> Verdict:
    """Show the right TPM, and the secret of a node that was broken into."""
    return _mixed(scene, tpm=scene.victim.seat, secret=scene.member.seat)


def _another_machines_tpm(scene: Scene) -> Verdict:
    """Show the right secret, read from bootstrap data, and the TPM of another machine."""
    return _mixed(scene, tpm=scene.member.seat, secret=scene.victim.seat)


def _one_proof_alone(scene: Scene) -> Verdict:
    """Show the right secret at the signer that wants no other proof."""
    settings = {"secretFile": scene.victim.seat.settings[_SECRET]}
    return by_agent(scene, scene.victim.identity, Seat(provider=ProviderName("challenge"), settings=settings))


def _without_the_tpm(scene: Scene) -> Verdict:
    """Put something else in the place of one of the proofs."""
    parts: JsonObject = {name: {"v": 1, "data": {"phase": 1}} for name in ("challenge", "contoso")}
    evidence = Evidence(scene.victim.seat.provider, 1, {"phase": 1, "parts": parts})
    return with_proof(scene, scene.victim.identity, scene.victim.seat, lambda _: evidence)


ATTEMPTS: Final = (
    Attempt(name="one of two proofs, alone", expected=(Reason.ATTESTOR_NOT_AUTHORIZED,), act=_one_proof_alone),
    Attempt(name="one of two proofs, and something else", expected=(Reason.PROOF_MISSING,), act=_without_the_tpm),
    Attempt(
        name="the right TPM, another machine's secret", expected=(Reason.PROOF_INVALID,), act=_another_machines_secret
    ),
    Attempt(
        name="the right secret, another machine's TPM",
        expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,),
        act=_another_machines_tpm,
    ),
)
