"""Impostors against Google Cloud: other vTPMs, other projects, instances that do not run, tokens."""

from __future__ import annotations

from itertools import count
from typing import Final

from nodeattest_cli.demo.attacker import Verdict
from nodeattest_cli.demo.attempts_tpm import forge
from nodeattest_cli.demo.equipment import Equipment, Seat
from nodeattest_cli.demo.fleet import provision
from nodeattest_cli.demo.grounds.gcp import GcpGround
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.scene import Attempt, Scene, by_agent, thief_of, with_proof
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence

__all__ = ["ATTEMPTS"]

_OTHER_PROJECT: Final = "somebodys-project"
_NUMBERS = count(900)
"""Of machines that only impostors need."""


def _strangers_vtpm(scene: Scene) -> Verdict:
    """Show the vTPM of a sound instance of the same project that is no Machine's."""
    return by_agent(scene, scene.victim.identity, scene.stranger)


def _members_vtpm(scene: Scene) -> Verdict:
    """Show a compromised node's vTPM for another Machine's identity."""
    return by_agent(scene, scene.victim.identity, scene.member.seat)


def _other_project(scene: Scene) -> Verdict:
    """Be a Machine's true instance, in a project that the policy does not list."""
    return _as_a_machine(scene, _ground(scene).equip(next(_NUMBERS), project=_OTHER_PROJECT))


def _stopped(scene: Scene) -> Verdict:
    """Have the vTPM of a Machine's instance that does not run, as whoever copied its state would."""
    return _as_a_machine(scene, _ground(scene).equip(next(_NUMBERS), status="TERMINATED"))


def _as_a_machine(scene: Scene, equipment: Equipment) -> Verdict:
    machine = provision(scene.world, next(_NUMBERS), equipment)
    return by_agent(scene, equipment.identity, equipment.seat, by=thief_of(scene.world, machine))


def _tpm_signer(scene: Scene) -> Verdict:
    """Ask the signer of the tpm provider with the very vTPM of the victim."""
    settings = {"tcti": scene.victim.seat.settings["tcti"]}
    return by_agent(scene, scene.victim.identity, Seat(provider=ProviderName("tpm"), settings=settings))


def _token(scene: Scene) -> Verdict:
    """Show an instance identity token, such as any process on an instance gets."""
    token = "eyJhbGciOiJub25lIn0.eyJhdWQiOiJub2RlYXR0ZXN0In0."  # noqa: S105 - of algorithm none
    evidence = Evidence(ProviderName("gcp"), 1, {"identityToken": token})
    return with_proof(scene, scene.victim.identity, scene.victim.seat, lambda _: evidence)


def _forged(scene: Scene) -> Verdict:
    """Show the endorsement key that the platform names for the victim, and make everything else in software."""
    tpm = scene.victim.tpm
    if tpm is None:
        raise DemoFailure("the victim has no vTPM to forge")
    return forge(scene, tpm.endorsement_certificate("rsa2048").public_key())


def _ground(scene: Scene) -> GcpGround:
    if not isinstance(scene.ground, GcpGround):
        raise DemoFailure("these impostors are for Google Cloud")
    return scene.ground


ATTEMPTS: Final = (
    Attempt(
        name="vTPM of an instance that is no Machine's",
        expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,),
        act=_strangers_vtpm,
    ),
    Attempt(name="a joined machine's vTPM", expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,), act=_members_vtpm),
    Attempt(
        name="an instance of another project",
        expected=(Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,),
        act=_other_project,
    ),
    Attempt(name="a stopped instance", expected=(Reason.PLATFORM_INSTANCE_NOT_RUNNING,), act=_stopped),
    Attempt(
        name="the victim's own vTPM, the tpm signer",
        expected=(Reason.ATTESTOR_NOT_AUTHORIZED,),
        act=_tpm_signer,
    ),
    Attempt(name="an instance identity token", expected=(Reason.EVIDENCE_MALFORMED,), act=_token),
    Attempt(name="forged vTPM: software key and quote", expected=(Reason.PROOF_INVALID,), act=_forged),
)
