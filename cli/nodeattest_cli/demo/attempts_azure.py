"""Impostors against Azure: genuine machines that are others, documents that are old or of one's own making."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from nodeattest_cli.demo.attacker import Verdict
from nodeattest_cli.demo.grounds.azure import AzureGround, seat_of
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.scene import Attempt, Scene, by_agent, with_proof
from nodeattest_providers.azure.protocol import PROVIDER, VERSION, AzureEvidence, nonce_for
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.clouds.azure.authority import Issuer, signer_of
from nodeattest_sandbox.clouds.azure.metadata import Signing, attested, content_of
from nodeattest_sandbox.clouds.azure.state import SandboxMachine

__all__ = ["ATTEMPTS"]

_OLD: Final = timedelta(minutes=10)


def _ground(scene: Scene) -> AzureGround:
    if not isinstance(scene.ground, AzureGround):
        raise DemoFailure("these impostors know Azure only")
    return scene.ground


def _machine(scene: Scene) -> SandboxMachine:
    """Find the victim's machine: what anybody can know of it stands in the open."""
    wanted = scene.victim.identity.provider_id
    return next(one for one in _ground(scene).cloud.state.machines if one.provider_id == wanted)


def _foreign(scene: Scene) -> Verdict:
    """Ask from a machine of another subscription, with the victim's names."""
    return by_agent(scene, scene.victim.identity, seat_of(_ground(scene).foreign()))


def _strangers(scene: Scene) -> Verdict:
    """Ask from a machine of the same group that Cluster API does not know."""
    return by_agent(scene, scene.victim.identity, scene.stranger)


def _members(scene: Scene) -> Verdict:
    """Ask from a compromised node, with the victim's names."""
    return by_agent(scene, scene.victim.identity, scene.member.seat)


def _old(scene: Scene) -> Verdict:
    """Show a document that Azure really signed for this very request, ten minutes ago."""
    cloud = _ground(scene).cloud
    return _signed_by(scene, cloud.signing, datetime.now(UTC) - _OLD)


def _self_made(scene: Scene) -> Verdict:
    """Sign the right document with a chain of one's own, whose names are Azure's."""
    issuing = Issuer.root("DigiCert Global Root G2").issuing("Microsoft Azure RSA TLS Issuing CA 03")
    return _signed_by(scene, Signing(*signer_of(issuing)), datetime.now(UTC))


def _signed_by(scene: Scene, signing: Signing, created: datetime) -> Verdict:
    machine = _machine(scene)

    def prove(binding: Binding) -> Evidence:
        document = attested(signing, content_of(machine, nonce_for(binding.digest), created))
        return Evidence(PROVIDER, VERSION, AzureEvidence(document).to_json())

    return with_proof(scene, scene.victim.identity, scene.victim.seat, prove)


ATTEMPTS: Final = (
    Attempt(
        name="genuine machine of another subscription",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        act=_foreign,
    ),
    Attempt(
        name="genuine machine of the group that nobody registered",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        act=_strangers,
    ),
    Attempt(name="another node's metadata service", expected=(Reason.PLATFORM_INSTANCE_MISMATCH,), act=_members),
    Attempt(name="document of ten minutes ago", expected=(Reason.PLATFORM_PROOF_EXPIRED,), act=_old),
    Attempt(
        name="document signed by a chain of one's own",
        expected=(Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,),
        act=_self_made,
    ),
)
