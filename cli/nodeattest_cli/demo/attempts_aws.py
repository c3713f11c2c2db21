"""Impostors against AWS: other instances, stolen identity documents, other roles, a document of one's own making."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

from nodeattest_cli.demo.attacker import Verdict
from nodeattest_cli.demo.equipment import Seat
from nodeattest_cli.demo.grounds.aws import ROLE, AwsGround, seat_of
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.scene import Attempt, Scene, by_agent, with_proof
from nodeattest_providers.aws.imds import NAME, Session
from nodeattest_providers.aws.imds_answers import InstanceCredentials, parse_document, parse_signature
from nodeattest_providers.aws.protocol import PROVIDER, VERSION, AwsEvidence, sts_request
from nodeattest_providers.aws.sigv4 import sign
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Reason
from nodeattest_providers.metadata_service import MetadataService, endpoint
from nodeattest_providers.node_interface import Evidence, SecretBytes
from nodeattest_sandbox.clouds.aws.authority import make_region_key
from nodeattest_sandbox.clouds.aws.cloud import Credentials, SandboxAws
from nodeattest_sandbox.clouds.aws.documents import signature

__all__ = ["ATTEMPTS"]

_OTHER_ACCOUNT: Final = "444455556666"
_LIFE: Final = timedelta(hours=1)


def _other_account(scene: Scene) -> Verdict:
    """Run an instance in an account of the attacker's own, with a role of the right name."""
    own = _cloud(scene).launch(account=_OTHER_ACCOUNT, role=ROLE)
    return by_agent(scene, scene.victim.identity, seat_of(own))


def _other_instance(scene: Scene) -> Verdict:
    """Show a sound instance of the same account that is no Machine's."""
    return by_agent(scene, scene.victim.identity, scene.stranger)


def _members_instance(scene: Scene) -> Verdict:
    """Show a compromised node's instance for another Machine's identity."""
    return by_agent(scene, scene.victim.identity, scene.member.seat)


def _own_role(scene: Scene) -> Verdict:
    """Take the victim's identity document, and sign as another role of the same account may."""
    keys = _cloud(scene).session("batch-jobs", _instance_id(scene))
    return _with_stolen_document(scene, _signing_with(keys))


def _person(scene: Scene) -> Verdict:
    """Take the victim's identity document, and sign as a person who may assume the nodes' role."""
    return _with_stolen_document(scene, _signing_with(_cloud(scene).session(ROLE, "mallory@example.com")))


def _other_nodes_role(scene: Scene) -> Verdict:
    """Take the victim's identity document, and sign as the instance of a compromised node."""
    return _with_stolen_document(scene, _session(scene.member.seat).credentials())


def _self_made(scene: Scene) -> Verdict:
    """Write the victim's identity document, and sign it under a certificate of the attacker's own."""
    session = _session(scene.victim.seat)
    document = session.document()
    pkcs7 = parse_signature(signature(document, make_region_key(), now=datetime.now(UTC)))
    keys = _session(scene.stranger).credentials()
    return _with(scene, document, pkcs7, keys)


def _altered(scene: Scene) -> Verdict:
    """Take the document of an instance of the attacker's own, and put the victim's ID into its plain copy."""
    session = _session(scene.stranger)
    values = json.loads(session.document())
    values["instanceId"] = _instance_id(scene)
    document = json.dumps(values).encode()
    return _with(scene, document, parse_signature(session.signature()), session.credentials())


def _with_stolen_document(scene: Scene, keys: InstanceCredentials) -> Verdict:
    """Use what a forged request to the victim's metadata service brings; the role's credentials are not had so."""
    session = _session(scene.victim.seat)
    return _with(scene, session.document(), parse_signature(session.signature()), keys)


def _with(scene: Scene, document: bytes, pkcs7: bytes, keys: InstanceCredentials) -> Verdict:
    """File evidence of these parts, bound to a fresh key as an honest node binds it."""

    def prove(binding: Binding) -> Evidence:
        region = parse_document(document).region
        sts = sign(sts_request(region, binding), keys, now=datetime.now(UTC))
        found = AwsEvidence(document=document, pkcs7=pkcs7, region=region, sts=sts)
        return Evidence(PROVIDER, VERSION, found.to_json())

    return with_proof(scene, scene.victim.identity, scene.victim.seat, prove)


def _cloud(scene: Scene) -> SandboxAws:
    if not isinstance(scene.ground, AwsGround):
        raise DemoFailure("these impostors are for AWS")
    return scene.ground.cloud


def _session(seat: Seat) -> Session:
    host, port = endpoint(seat.settings["metadataEndpoint"])
    return Session.begin(MetadataService(host, port, name=NAME))


def _instance_id(scene: Scene) -> str:
    return scene.victim.identity.provider_id.rpartition("/")[2]


def _signing_with(keys: Credentials) -> InstanceCredentials:
    return InstanceCredentials(
        access_key_id=keys.access_key_id,
        secret=SecretBytes(keys.secret.encode()),
        token=keys.token,
        expiration=datetime.now(UTC) + _LIFE,
    )


ATTEMPTS: Final = (
    Attempt(
        name="an instance of another account",
        expected=(Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,),
        act=_other_account,
    ),
    Attempt(
        name="another instance of the same account",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        act=_other_instance,
    ),
    Attempt(
        name="a joined machine's instance",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        act=_members_instance,
    ),
    Attempt(
        name="stolen identity document, a role not listed",
        expected=(Reason.PLATFORM_ROLE_NOT_ALLOWED,),
        act=_own_role,
    ),
    Attempt(
        name="stolen identity document, a person in the role",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        act=_person,
    ),
    Attempt(
        name="stolen identity document, another node's role",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        act=_other_nodes_role,
    ),
    Attempt(
        name="self-made identity document",
        expected=(Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,),
        act=_self_made,
    ),
    Attempt(
        name="altered identity document",
        expected=(Reason.PLATFORM_DOCUMENT_MISMATCH,),
        act=_altered,
    ),
)
