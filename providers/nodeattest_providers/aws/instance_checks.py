"""What AWS says about a claim: who signed, and what the instance is and does now.

Promises: only a session that EC2 made for this very instance passes, of a listed role in the document's account; only a
running instance of that account and zone passes, with what the policy demands.
Leaves to others: asking AWS (``api.sts``, ``api.ec2``). A role that anybody but EC2 may assume lets whoever assumes it
choose the session's name: keeping such roles out of the policy is the operator's part (docs/providers/aws.md).
Source: IAM, "IAM identifiers" (unique IDs of role sessions), "Instance metadata: security credentials".
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers.aws.api.caller_identity import CallerIdentity, parse_role_session
from nodeattest_providers.aws.api.instances import Instance
from nodeattest_providers.aws.checks import SECTION, VerifiedDocument
from nodeattest_providers.aws.config import AwsPolicy
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason

__all__ = ["PENDING", "check_instance", "check_role_session"]

PENDING: Final = "pending"
_RUNNING: Final = "running"
_OWN_ROLE: Final = "let the instance sign with the role of its instance profile, and list that in spec.aws.roles"


def check_role_session(checks: Checks, identity: CallerIdentity, claim: VerifiedDocument, policy: AwsPolicy) -> None:
    """Check who signed.

    1. A session of a role: no user, no root. 2. Of the document's partition and account. 3. Of a role that the policy
    lists, by its exact name. 4. The session is named after the instance, as EC2 alone names it.
    """
    session = parse_role_session(identity.arn)
    account, instance_id = claim.document.account, claim.name.instance_id
    got = session.role if session else "no session of a role"
    roles = ", ".join(sorted(policy.roles)) or "none, the policy lists none"
    is_own = session is not None and session.session == instance_id and identity.user_id.endswith(f":{instance_id}")
    place = (session.partition, session.account, identity.account) if session else None
    rules = (
        ("signed by a role", Reason.PLATFORM_ROLE_NOT_ALLOWED, session is not None, "a session of a role", got),
        (
            "account of the role",
            Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
            place == (claim.partition.name, account, account),
            f"account {account} of {claim.partition.name}",
            "/".join(place or ()),
        ),
        (
            "role allowed",
            Reason.PLATFORM_ROLE_NOT_ALLOWED,
            session is not None and session.role in policy.roles,
            f"one of {roles}",
            got,
        ),
        (
            "session of the instance",
            Reason.PLATFORM_INSTANCE_MISMATCH,
            is_own,
            f"a session named {instance_id}",
            session.session if session else got,
        ),
    )
    for name, reason, passed, expected, found in rules:
        checks.require(passed, name, section=SECTION, reason=reason, expected=expected, got=found, remedy=_OWN_ROLE)


def check_instance(checks: Checks, instance: Instance, claim: VerifiedDocument, policy: AwsPolicy) -> None:
    """Check what EC2 says of the instance now.

    1. The account that the document names owns it; 2. it is in that zone; 3. it runs; 4. it has the tags, and is in one
    of the networks, that the policy demands.
    """
    wrong = sorted(key for key, value in policy.tags.items() if instance.tags.get(key) != value)
    in_network = policy.vpcs is None or instance.vpc in policy.vpcs
    account, zone, state = claim.document.account, claim.name.zone, instance.state
    mismatch, not_allowed = Reason.PLATFORM_INSTANCE_MISMATCH, Reason.PLATFORM_TAGS_NOT_ALLOWED
    machine = "compare the Machine's spec.providerID with the instance"
    rules = (
        ("owner", mismatch, instance.owner == account, account, instance.owner, machine),
        ("zone", mismatch, instance.zone == zone, zone, instance.zone, machine),
        (
            "state",
            Reason.PLATFORM_INSTANCE_NOT_RUNNING,
            state == _RUNNING,
            _RUNNING,
            state,
            "start the instance, if it is to join; it then files anew",
        ),
        (
            "tags",
            not_allowed,
            not wrong,
            "the tags of spec.aws.tags",
            f"others for {', '.join(wrong)}" if wrong else "those",
            "let the infrastructure provider tag the instance as spec.aws.tags says",
        ),
        (
            "network",
            Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
            in_network,
            "any" if policy.vpcs is None else ", ".join(sorted(policy.vpcs)) or "none, the policy lists none",
            instance.vpc or "none",
            "list the instance's VPC in spec.aws.vpcs, if its machines may join",
        ),
    )
    for name, reason, passed, expected, got, remedy in rules:
        checks.require(
            passed,
            f"{name} of the instance",
            section="EC2, DescribeInstances",
            reason=reason,
            expected=expected,
            got=got,
            remedy=remedy,
        )
