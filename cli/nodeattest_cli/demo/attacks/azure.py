"""Attackers against Azure: genuine machines that are others, documents that are old or of one's own making."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from nodeattest_cli.demo.attacker import CsrOutcome
from nodeattest_cli.demo.attacks.context import Attack, AttackContext, join_with_agent, submit_with_evidence
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.platforms.azure import AzureDemoPlatform, machine_attestor_settings
from nodeattest_providers.azure.protocol import PROVIDER, VERSION, AzureEvidence, nonce_for
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.clouds.azure.authority import Issuer, signer_of
from nodeattest_sandbox.clouds.azure.metadata import Signing, attested, content_of
from nodeattest_sandbox.clouds.azure.state import SandboxMachine

__all__ = ["ATTACKS"]

_OLD: Final = timedelta(minutes=10)


def _platform(context: AttackContext) -> AzureDemoPlatform:
    if not isinstance(context.platform, AzureDemoPlatform):
        raise DemoFailure("these attacks are for Azure")
    return context.platform


def _machine(context: AttackContext) -> SandboxMachine:
    """Find the victim's machine: what anybody can know of it is public."""
    wanted = context.victim.identity.provider_id
    return next(one for one in _platform(context).cloud.state.machines if one.provider_id == wanted)


def _foreign(context: AttackContext) -> CsrOutcome:
    """Ask from a machine of another subscription, with the victim's names."""
    return join_with_agent(context, context.victim.identity, machine_attestor_settings(_platform(context).foreign()))


def _own_machine(context: AttackContext) -> CsrOutcome:
    """Ask from a machine of the same group that Cluster API does not know."""
    return join_with_agent(context, context.victim.identity, context.unregistered)


def _members(context: AttackContext) -> CsrOutcome:
    """Ask from a compromised node, with the victim's names."""
    return join_with_agent(context, context.victim.identity, context.member.attestor)


def _old(context: AttackContext) -> CsrOutcome:
    """Show a document that Azure really signed for this very request, ten minutes ago."""
    cloud = _platform(context).cloud
    return _signed_by(context, cloud.signing, datetime.now(UTC) - _OLD)


def _self_made(context: AttackContext) -> CsrOutcome:
    """Sign the right document with a chain of one's own, whose names are Azure's."""
    issuing = Issuer.root("DigiCert Global Root G2").issuing("Microsoft Azure RSA TLS Issuing CA 03")
    return _signed_by(context, Signing(*signer_of(issuing)), datetime.now(UTC))


def _signed_by(context: AttackContext, signing: Signing, created: datetime) -> CsrOutcome:
    machine = _machine(context)

    def prove(binding: Binding) -> Evidence:
        document = attested(signing, content_of(machine, nonce_for(binding.digest), created))
        return Evidence(PROVIDER, VERSION, AzureEvidence(document).to_json())

    return submit_with_evidence(context, context.victim.identity, context.victim.attestor, prove)


ATTACKS: Final = (
    Attack(
        name="genuine machine of another subscription",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        run=_foreign,
    ),
    Attack(
        name="genuine machine of the group that nobody registered",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        run=_own_machine,
    ),
    Attack(name="another node's metadata service", expected=(Reason.PLATFORM_INSTANCE_MISMATCH,), run=_members),
    Attack(name="document of ten minutes ago", expected=(Reason.PLATFORM_PROOF_EXPIRED,), run=_old),
    Attack(
        name="document signed by a chain of one's own",
        expected=(Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,),
        run=_self_made,
    ),
)
