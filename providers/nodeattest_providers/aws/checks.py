"""The checks of the ``aws`` provider. Pure: what is compared was read before.

A document is no secret and proves nothing about its sender: the role session does, which EC2 alone names after the
instance. Roles that others may assume must not be in the policy (docs/providers/aws.md).
Source: docs/wire-format.md, "aws/v1"; IAM, "IAM identifiers".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from nodeattest_providers import cms
from nodeattest_providers.aws.api.instances import Ec2Instance
from nodeattest_providers.aws.api.sts import CallerIdentity, parse_role_session
from nodeattest_providers.aws.config import AwsPolicy
from nodeattest_providers.aws.identity_document import IdentityDocument, RegionCertificates, parse_identity_document
from nodeattest_providers.aws.protocol import (
    MAX_PKCS7,
    PROVIDER,
    VERSION,
    Authorization,
    AwsEvidence,
    InstanceRef,
    Partition,
    parse_authorization,
    parse_evidence,
    parse_provider_id,
    partition_of,
)
from nodeattest_providers.checks import Checks, check_block, check_parsed
from nodeattest_providers.errors import Reason
from nodeattest_providers.verifier_interface import Facts, NodeRequest

FRESHNESS: Final = timedelta(minutes=5)
"""Between the signature and the request's creation, either way; STS allows as much."""
SECTION: Final = "wire format, aws/v1"
_DOCUMENT: Final = "send the metadata service's own document and signature, unchanged and from this instance"
_FILE_ANEW: Final = "file anew from the instance itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedDocument:
    """Evidence that contradicts nothing; who made it is open."""

    evidence: AwsEvidence = field(repr=False)
    name: InstanceRef
    partition: Partition
    document: IdentityDocument

    @property
    def fingerprint(self) -> str:
        """Name the instance in the ledger: its ID is its account's."""
        return f"{self.document.account}/{self.name.instance_id}"


def check_evidence(
    checks: Checks, request: NodeRequest, facts: Facts, policy: AwsPolicy, trust: RegionCertificates
) -> VerifiedDocument:
    """Check the evidence by itself, cheapest test first.

    1. Evidence of this provider, a known version, a closed schema.
    2. The provider ID is one of AWS; its zone gives region and partition; the policy allows the region.
    3. The header set is of the one form, for STS in that region, signed within five minutes of the request.
    4. The identity document says that very instance, zone and region, and an account that the policy allows.
    5. It is the content of the PKCS#7, which a certificate of that region signed.
    6. The ledger knows the instance by the same account, if it knows it.
    """
    # 1
    check_block(checks, request.evidence, PROVIDER, (VERSION,))
    evidence = check_parsed(checks, "evidence schema", SECTION, lambda: parse_evidence(request.evidence.data))
    # 2
    name = check_parsed(checks, "provider ID", SECTION, lambda: parse_provider_id(request.csr.provider_id))
    partition = check_parsed(checks, "partition", SECTION, lambda: partition_of(name.region))
    _check_region(checks, evidence, name, policy)
    # 3
    signed = check_parsed(checks, "signed headers", SECTION, lambda: parse_authorization(evidence.sts))
    _check_header_set(checks, signed, name, request.created)
    # 4
    document = check_parsed(checks, "identity document", SECTION, lambda: parse_identity_document(evidence.document))
    _check_document(checks, document, name, policy, request.created)
    # 5
    _check_signature(checks, evidence, trust.get(name.region, ()), name.region, request.created)
    claim = VerifiedDocument(evidence=evidence, name=name, partition=partition, document=document)
    # 6
    pinned = facts.ledger.fingerprints.get("instance", claim.fingerprint)
    checks.require(
        pinned == claim.fingerprint,
        "pinned instance",
        section=SECTION,
        reason=Reason.PLATFORM_INSTANCE_MISMATCH,
        expected=pinned,
        got=claim.fingerprint,
        remedy="if the machine was replaced, an operator resets the ledger (nodeattest machines reset)",
    )
    return claim


def check_recorded_place(facts: Facts, policy: AwsPolicy) -> None:
    """Hold a machine's region, and the account on record, to the policy; raises Denied."""
    checks = Checks()
    name = check_parsed(checks, "provider ID", SECTION, lambda: parse_provider_id(facts.machine.provider_id))
    _check_region_allowed(checks, name, policy)
    pinned = facts.ledger.fingerprints.get("instance")
    if pinned is not None:
        _check_account(checks, pinned.partition("/")[0], policy)


def _check_region(checks: Checks, evidence: AwsEvidence, name: InstanceRef, policy: AwsPolicy) -> None:
    _check_region_allowed(checks, name, policy)
    checks.require(
        evidence.region == name.region,
        "region of the evidence",
        section=SECTION,
        reason=Reason.PLATFORM_DOCUMENT_MISMATCH,
        expected=name.region,
        got="another",
        remedy=_FILE_ANEW,
    )


def _check_region_allowed(checks: Checks, name: InstanceRef, policy: AwsPolicy) -> None:
    checks.require(
        name.region in policy.regions,
        "region allowed",
        section=SECTION,
        reason=Reason.PLATFORM_REGION_NOT_ALLOWED,
        expected=f"one of {_listed(policy.regions)}",
        got=name.region,
        remedy="list the region in spec.aws.regions, if machines from there may join",
    )


def _check_header_set(checks: Checks, signed: Authorization, name: InstanceRef, created: datetime) -> None:
    checks.require(
        signed.region == name.region,
        "region of the signature",
        section=SECTION,
        reason=Reason.PLATFORM_PROOF_MALFORMED,
        expected=f"a credential scope of {name.region}",
        got="another region",
        remedy=_FILE_ANEW,
    )
    age = created - signed.signed_at
    checks.require(
        abs(age) <= FRESHNESS,
        "signed in time",
        section=SECTION,
        reason=Reason.PLATFORM_PROOF_EXPIRED,
        expected=f"within {FRESHNESS.total_seconds():.0f} s of the request's creation",
        got=f"{age.total_seconds():.0f} s before it",
        remedy="set the node's clock (chrony or systemd-timesyncd); a request that came too late is filed anew",
    )


def _check_account(checks: Checks, account: str, policy: AwsPolicy) -> None:
    checks.require(
        account in policy.accounts,
        "account allowed",
        section=SECTION,
        reason=Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        expected=f"one of {_listed(policy.accounts)}",
        got=account,
        remedy="list the account in spec.aws.accounts, if its machines may join",
    )


def _check_document(
    checks: Checks, document: IdentityDocument, name: InstanceRef, policy: AwsPolicy, created: datetime
) -> None:
    _check_account(checks, document.account, policy)
    for what, expected, got in (
        ("instance ID", name.instance_id, document.instance_id),
        ("availability zone", name.zone, document.zone),
        ("region", name.region, document.region),
    ):
        checks.require(
            expected == got,
            f"{what} of the document",
            section=SECTION,
            reason=Reason.PLATFORM_INSTANCE_MISMATCH,
            expected=expected,
            got=got,
            remedy="compare the Machine's spec.providerID with the instance",
        )
    checks.require(
        document.pending <= created + FRESHNESS,
        "pendingTime",
        section=SECTION,
        reason=Reason.PLATFORM_DOCUMENT_MISMATCH,
        expected="an instance that was started before the request",
        got=document.pending.isoformat(),
        remedy=_DOCUMENT,
    )


def _check_signature(
    checks: Checks,
    evidence: AwsEvidence,
    certificates: tuple[x509.Certificate, ...],
    region: str,
    at: datetime,
) -> None:
    checks.require(
        bool(certificates),
        "region's certificates",
        section=SECTION,
        reason=Reason.PLATFORM_REGION_NOT_ALLOWED,
        expected=f"certificates of {region} in platforms.aws.trustBundle",
        got="none",
        remedy="an operator adds AWS's RSA-2048 certificate of the region to the controller's trust bundle",
    )
    signed = check_parsed(checks, "PKCS#7 structure", "RFC 5652 §5", lambda: cms.parse(evidence.pkcs7, limit=MAX_PKCS7))
    checks.require(
        signed.content == evidence.document,
        "content of the PKCS#7",
        section=SECTION,
        reason=Reason.PLATFORM_DOCUMENT_MISMATCH,
        expected="the document",
        got="the document" if signed.content == evidence.document else "other bytes",
        remedy=_DOCUMENT,
    )
    is_signed = any(_is_valid(one, at) and signed.signed_by(one) for one in certificates)
    checks.require(
        is_signed,
        "signature of the document",
        section="RFC 5652 §5.6",
        reason=Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
        expected=f"a signature by a certificate of {region}",
        got="one" if is_signed else "none of theirs",
        remedy="if AWS changed the region's certificate, an operator adds the new one to the trust bundle",
    )


def _is_valid(certificate: x509.Certificate, at: datetime) -> bool:
    return certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words)) or "none, the policy lists none"


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


def check_instance(checks: Checks, instance: Ec2Instance, claim: VerifiedDocument, policy: AwsPolicy) -> None:
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
