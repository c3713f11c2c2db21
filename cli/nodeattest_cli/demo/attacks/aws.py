"""Attackers against AWS: other instances, stolen identity documents, other roles, a document of one's own making."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

from nodeattest_cli.demo.attacker import CsrOutcome
from nodeattest_cli.demo.attacks.context import Attack, AttackContext, join_with_agent, submit_with_evidence
from nodeattest_cli.demo.machine_spec import AttestorSettings
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.platforms.aws import ROLE, AwsDemoPlatform, instance_attestor_settings
from nodeattest_providers.aws.node.imds import NAME, Session
from nodeattest_providers.aws.node.imds_answers import InstanceCredentials, parse_imds_document, parse_imds_signature
from nodeattest_providers.aws.node.sigv4 import sign
from nodeattest_providers.aws.protocol import PROVIDER, VERSION, AwsEvidence, sts_request
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Reason
from nodeattest_providers.metadata_service import MetadataService, endpoint
from nodeattest_providers.node_interface import Evidence, SecretBytes
from nodeattest_sandbox.clouds.aws.authority import make_region_key
from nodeattest_sandbox.clouds.aws.cloud import Credentials, SandboxAws
from nodeattest_sandbox.clouds.aws.documents import signature

__all__ = ["ATTACKS"]

_OTHER_ACCOUNT: Final = "444455556666"
_LIFE: Final = timedelta(hours=1)


def _other_account(context: AttackContext) -> CsrOutcome:
    """Run an instance in an account of the attacker's own, with a role of the right name."""
    own = _cloud(context).launch(account=_OTHER_ACCOUNT, role=ROLE)
    return join_with_agent(context, context.victim.identity, instance_attestor_settings(own))


def _other_instance(context: AttackContext) -> CsrOutcome:
    """Show a sound instance of the same account that is no Machine's."""
    return join_with_agent(context, context.victim.identity, context.unregistered)


def _members_instance(context: AttackContext) -> CsrOutcome:
    """Show a compromised node's instance for another Machine's identity."""
    return join_with_agent(context, context.victim.identity, context.member.attestor)


def _own_role(context: AttackContext) -> CsrOutcome:
    """Take the victim's identity document, and sign as another role of the same account may."""
    keys = _cloud(context).session("batch-jobs", _instance_id(context))
    return _with_stolen_document(context, _signing_with(keys))


def _person(context: AttackContext) -> CsrOutcome:
    """Take the victim's identity document, and sign as a person who may assume the nodes' role."""
    return _with_stolen_document(context, _signing_with(_cloud(context).session(ROLE, "mallory@example.com")))


def _other_nodes_role(context: AttackContext) -> CsrOutcome:
    """Take the victim's identity document, and sign as the instance of a compromised node."""
    return _with_stolen_document(context, _session(context.member.attestor).credentials())


def _self_made(context: AttackContext) -> CsrOutcome:
    """Write the victim's identity document, and sign it under a certificate of the attacker's own."""
    session = _session(context.victim.attestor)
    document = session.document()
    pkcs7 = parse_imds_signature(signature(document, make_region_key(), now=datetime.now(UTC)))
    keys = _session(context.unregistered).credentials()
    return _with(context, document, pkcs7, keys)


def _altered(context: AttackContext) -> CsrOutcome:
    """Take the document of an instance of the attacker's own, and put the victim's ID into its plain copy."""
    session = _session(context.unregistered)
    values = json.loads(session.document())
    values["instanceId"] = _instance_id(context)
    document = json.dumps(values).encode()
    return _with(context, document, parse_imds_signature(session.signature()), session.credentials())


def _with_stolen_document(context: AttackContext, keys: InstanceCredentials) -> CsrOutcome:
    """Use what a forged request to the victim's metadata service brings; the role's credentials are not had so."""
    session = _session(context.victim.attestor)
    return _with(context, session.document(), parse_imds_signature(session.signature()), keys)


def _with(context: AttackContext, document: bytes, pkcs7: bytes, keys: InstanceCredentials) -> CsrOutcome:
    """File evidence of these parts, bound to a fresh key as an honest node binds it."""

    def prove(binding: Binding) -> Evidence:
        region = parse_imds_document(document).region
        sts = sign(sts_request(region, binding), keys, now=datetime.now(UTC))
        found = AwsEvidence(document=document, pkcs7=pkcs7, region=region, sts=sts)
        return Evidence(PROVIDER, VERSION, found.to_json())

    return submit_with_evidence(context, context.victim.identity, context.victim.attestor, prove)


def _cloud(context: AttackContext) -> SandboxAws:
    if not isinstance(context.platform, AwsDemoPlatform):
        raise DemoFailure("these attacks are for AWS")
    return context.platform.cloud


def _session(attestor: AttestorSettings) -> Session:
    host, port = endpoint(attestor.settings["metadataEndpoint"])
    return Session.begin(MetadataService(host, port, name=NAME))


def _instance_id(context: AttackContext) -> str:
    return context.victim.identity.provider_id.rpartition("/")[2]


def _signing_with(keys: Credentials) -> InstanceCredentials:
    return InstanceCredentials(
        access_key_id=keys.access_key_id,
        secret=SecretBytes(keys.secret.encode()),
        token=keys.token,
        expiration=datetime.now(UTC) + _LIFE,
    )


ATTACKS: Final = (
    Attack(
        name="an instance of another account",
        expected=(Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,),
        run=_other_account,
    ),
    Attack(
        name="another instance of the same account",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        run=_other_instance,
    ),
    Attack(
        name="a joined machine's instance",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        run=_members_instance,
    ),
    Attack(
        name="stolen identity document, a role not listed",
        expected=(Reason.PLATFORM_ROLE_NOT_ALLOWED,),
        run=_own_role,
    ),
    Attack(
        name="stolen identity document, a person in the role",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        run=_person,
    ),
    Attack(
        name="stolen identity document, another node's role",
        expected=(Reason.PLATFORM_INSTANCE_MISMATCH,),
        run=_other_nodes_role,
    ),
    Attack(
        name="self-made identity document",
        expected=(Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,),
        run=_self_made,
    ),
    Attack(
        name="altered identity document",
        expected=(Reason.PLATFORM_DOCUMENT_MISMATCH,),
        run=_altered,
    ),
)
