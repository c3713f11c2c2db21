"""Attackers against Google Cloud: other vTPMs, other projects, instances that do not run, tokens."""

from __future__ import annotations

from itertools import count
from typing import Final

from nodeattest_cli.demo.attacker import CsrOutcome
from nodeattest_cli.demo.attacks.context import (
    Attack,
    AttackContext,
    attacker_with_token_of,
    join_with_agent,
    submit_with_evidence,
)
from nodeattest_cli.demo.attacks.tpm import forge
from nodeattest_cli.demo.fleet import provision
from nodeattest_cli.demo.machine_spec import AttestorSettings, MachineSpec
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.platforms.gcp import GcpDemoPlatform
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence

__all__ = ["ATTACKS"]

_OTHER_PROJECT: Final = "somebodys-project"
_NUMBERS = count(900)
"""Of attack machines."""


def _own_vtpm(context: AttackContext) -> CsrOutcome:
    """Show the vTPM of a sound instance of the same project that is no Machine's."""
    return join_with_agent(context, context.victim.identity, context.unregistered)


def _members_vtpm(context: AttackContext) -> CsrOutcome:
    """Show a compromised node's vTPM for another Machine's identity."""
    return join_with_agent(context, context.victim.identity, context.member.attestor)


def _other_project(context: AttackContext) -> CsrOutcome:
    """Be a Machine's true instance, in a project that the policy does not list."""
    return _as_a_machine(context, _platform(context).create_machine(next(_NUMBERS), project=_OTHER_PROJECT))


def _stopped(context: AttackContext) -> CsrOutcome:
    """Have the vTPM of a Machine's instance that does not run, as a thief of its state would."""
    return _as_a_machine(context, _platform(context).create_machine(next(_NUMBERS), status="TERMINATED"))


def _as_a_machine(context: AttackContext, spec: MachineSpec) -> CsrOutcome:
    machine = provision(context.world, next(_NUMBERS), spec)
    return join_with_agent(context, spec.identity, spec.attestor, by=attacker_with_token_of(context.world, machine))


def _tpm_signer(context: AttackContext) -> CsrOutcome:
    """Ask the signer of the tpm provider with the very vTPM of the victim."""
    settings = {"tcti": context.victim.attestor.settings["tcti"]}
    return join_with_agent(
        context, context.victim.identity, AttestorSettings(provider=ProviderName("tpm"), settings=settings)
    )


def _token(context: AttackContext) -> CsrOutcome:
    """Show an instance identity token, such as any process on an instance gets."""
    token = "eyJhbGciOiJub25lIn0.eyJhdWQiOiJub2RlYXR0ZXN0In0."
    evidence = Evidence(ProviderName("gcp"), 1, {"identityToken": token})
    return submit_with_evidence(context, context.victim.identity, context.victim.attestor, lambda _: evidence)


def _forged(context: AttackContext) -> CsrOutcome:
    """Show the endorsement key that the platform names for the victim, and make everything else in software."""
    tpm = context.victim.tpm
    if tpm is None:
        raise DemoFailure("the victim has no vTPM to forge")
    return forge(context, tpm.endorsement_certificate("rsa2048").public_key())


def _platform(context: AttackContext) -> GcpDemoPlatform:
    if not isinstance(context.platform, GcpDemoPlatform):
        raise DemoFailure("these attacks are for Google Cloud")
    return context.platform


ATTACKS: Final = (
    Attack(
        name="vTPM of an instance that is no Machine's",
        expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,),
        run=_own_vtpm,
    ),
    Attack(name="a joined machine's vTPM", expected=(Reason.ENDORSEMENT_KEY_UNTRUSTED,), run=_members_vtpm),
    Attack(
        name="an instance of another project",
        expected=(Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,),
        run=_other_project,
    ),
    Attack(name="a stopped instance", expected=(Reason.PLATFORM_INSTANCE_NOT_RUNNING,), run=_stopped),
    Attack(
        name="the victim's own vTPM, the tpm signer",
        expected=(Reason.ATTESTOR_NOT_AUTHORIZED,),
        run=_tpm_signer,
    ),
    Attack(name="an instance identity token", expected=(Reason.EVIDENCE_MALFORMED,), run=_token),
    Attack(name="forged vTPM: software key and quote", expected=(Reason.PROOF_INVALID,), run=_forged),
)
