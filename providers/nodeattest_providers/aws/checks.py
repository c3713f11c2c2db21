"""The checks of the ``aws`` provider. Pure: what is compared was read before.

A document is no secret and proves nothing about its sender: the role session does, which EC2 alone names after the
instance. Source: docs/wire-format.md, "aws/v1"; IAM, "IAM identifiers".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509

from nodeattest_providers import cms
from nodeattest_providers.aws import protocol
from nodeattest_providers.aws.api.sts import CallerIdentity, parse_role_session
from nodeattest_providers.aws.config import AwsPolicy, IdentityDocument, RegionCertificates, parse_identity_document
from nodeattest_providers.checks import Checks, Rules, check_block
from nodeattest_providers.errors import Reason
from nodeattest_providers.verifier_interface import Facts, NodeRequest

FRESHNESS: Final = timedelta(minutes=5)
"""Between the signature and the request's creation, either way; STS allows as much."""
_COMPARE: Final = "compare the Machine's spec.providerID with the instance"
_DOCUMENT: Final = "send the metadata service's own document and signature, unchanged and from this instance"
_NEW_REQUEST: Final = "file a new request from the instance itself"
_CLOCK: Final = "set the node's clock (chrony or systemd-timesyncd) and file a new request"
_OWN_ROLE: Final = "let the instance sign with the role of its instance profile, and list that in spec.aws.roles"
_CERTIFICATES: Final = "add AWS's RSA-2048 certificate of the region to platforms.aws.trustBundle of the controller"
_RESET: Final = "if the machine was replaced, an operator resets the ledger (nodeattest machines reset)"


RUNNING: Final = "running"
PENDING: Final = "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Instance:
    """What DescribeInstances says, as far as it is read."""

    instance_id: str
    owner: str
    state: str
    zone: str
    has_tpm: bool = False
    tags: Mapping[str, str] = field(repr=False)
    vpc: str
    private_dns_name: str
    addresses: tuple[tuple[str, str], ...]


class Realm(NamedTuple):
    """Whose instances, and where."""

    account: str
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedDocument:
    """Evidence without contradictions; who made it is open."""

    evidence: protocol.AwsEvidence = field(repr=False)
    name: protocol.InstanceRef
    partition: protocol.Partition
    document: IdentityDocument

    @property
    def fingerprint(self) -> str:
        return f"{self.document.account}/{self.name.instance_id}"


def wire_rules(checks: Checks) -> Rules:
    return Rules(checks, "wire format, aws/v1", Reason.PLATFORM_INSTANCE_MISMATCH, _COMPARE)


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
    rules = wire_rules(checks)
    # 1
    check_block(checks, request.evidence, protocol.PROVIDER, (protocol.VERSION,))
    evidence = rules.parsed("evidence schema", lambda: protocol.parse_evidence(request.evidence.data))
    # 2
    name = rules.parsed("provider ID", lambda: protocol.parse_provider_id(request.csr.provider_id))
    partition = rules.parsed("partition", lambda: protocol.partition_of(name.region))
    _check_region_allowed(rules, name, policy)
    mismatch = Reason.PLATFORM_DOCUMENT_MISMATCH
    rules.equal("region of the evidence", name.region, evidence.region, reason=mismatch, remedy=_NEW_REQUEST)
    # 3
    signed = rules.parsed("signed headers", lambda: protocol.parse_authorization(evidence.sts))
    malformed = Reason.PLATFORM_PROOF_MALFORMED
    rules.equal("region of the signature", name.region, signed.region, reason=malformed, remedy=_NEW_REQUEST)
    age = request.created - signed.signed_at
    expected, got = f"within {FRESHNESS} of the request's creation", f"{age.total_seconds():.0f} s before it"
    in_time, expired = abs(age) <= FRESHNESS, Reason.PLATFORM_PROOF_EXPIRED
    rules.require(in_time, "signed in time", expected, got, reason=expired, remedy=_CLOCK)
    # 4
    document = rules.parsed("identity document", lambda: parse_identity_document(evidence.document))
    _check_account_allowed(rules, document.account, policy)
    rules.equal("instance ID of the document", name.instance_id, document.instance_id)
    rules.equal("availability zone of the document", name.zone, document.zone)
    rules.equal("region of the document", name.region, document.region)
    expected, got = "an instance that was started before the request", document.pending.isoformat()
    is_started = document.pending <= request.created + FRESHNESS
    rules.require(is_started, "pendingTime", expected, got, reason=mismatch, remedy=_DOCUMENT)
    # 5
    _check_signature(rules, evidence, trust.get(name.region, ()), name.region, request.created)
    claim = VerifiedDocument(evidence=evidence, name=name, partition=partition, document=document)
    # 6
    pinned = facts.ledger.fingerprints.get("instance", claim.fingerprint)
    rules.equal("pinned instance", pinned, claim.fingerprint, remedy=_RESET)
    return claim


def check_recorded_place(facts: Facts, policy: AwsPolicy) -> None:
    rules = wire_rules(Checks())
    name = rules.parsed("provider ID", lambda: protocol.parse_provider_id(facts.machine.provider_id))
    _check_region_allowed(rules, name, policy)
    pinned = facts.ledger.fingerprints.get("instance")
    if pinned is not None:
        _check_account_allowed(rules, pinned.partition("/")[0], policy)


def _check_region_allowed(rules: Rules, name: protocol.InstanceRef, policy: AwsPolicy) -> None:
    reason, remedy = Reason.PLATFORM_REGION_NOT_ALLOWED, "list the region in spec.aws.regions"
    rules.member("region allowed", policy.regions, name.region, reason=reason, remedy=remedy)


def _check_account_allowed(rules: Rules, account: str, policy: AwsPolicy) -> None:
    reason, remedy = Reason.PLATFORM_ACCOUNT_NOT_ALLOWED, "list the account in spec.aws.accounts"
    rules.member("account allowed", policy.accounts, account, reason=reason, remedy=remedy)


def _check_signature(
    rules: Rules, evidence: protocol.AwsEvidence, certificates: tuple[x509.Certificate, ...], region: str, at: datetime
) -> None:
    expected, reason = f"certificates of {region}", Reason.PLATFORM_REGION_NOT_ALLOWED
    rules.require(bool(certificates), "region's certificates", expected, "none", reason=reason, remedy=_CERTIFICATES)
    cms_rules = Rules(rules.checks, "RFC 5652 §5", Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID, _CERTIFICATES)
    signed = cms_rules.parsed("PKCS#7 structure", lambda: cms.parse(evidence.pkcs7, limit=protocol.MAX_PKCS7))
    is_content, reason = signed.content == evidence.document, Reason.PLATFORM_DOCUMENT_MISMATCH
    rules.require(is_content, "content of the PKCS#7", "the document", "other bytes", reason=reason, remedy=_DOCUMENT)
    is_signed = any(_is_valid(each, at) and signed.signed_by(each) for each in certificates)
    cms_rules.require(
        is_signed, "signature of the document", f"a signature by a certificate of {region}", "none of theirs"
    )


def _is_valid(certificate: x509.Certificate, at: datetime) -> bool:
    return certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc


def check_role_session(checks: Checks, identity: CallerIdentity, claim: VerifiedDocument, policy: AwsPolicy) -> None:
    """Check who signed.

    1. A session of a role: no user, no root. 2. Of the document's partition and account. 3. Of a role that the policy
    lists, by its exact name. 4. The session is named after the instance, as EC2 alone names it.
    """
    rules = Rules(checks, "wire format, aws/v1", Reason.PLATFORM_ROLE_NOT_ALLOWED, _OWN_ROLE)
    account, instance_id = claim.document.account, claim.name.instance_id
    session = rules.present(parse_role_session(identity.arn), "signed by a role", "a session of a role")
    rules.equal(
        "account of the role",
        f"{claim.partition.name}/{account}/{account}",
        f"{session.partition}/{session.account}/{identity.account}",
        reason=Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
    )
    rules.member("role allowed", policy.roles, session.role)
    is_own = session.session == instance_id and identity.user_id.endswith(f":{instance_id}")
    expected, reason = f"a session named {instance_id}", Reason.PLATFORM_INSTANCE_MISMATCH
    rules.require(is_own, "session of the instance", expected, session.session, reason=reason)


def check_instance(checks: Checks, instance: Ec2Instance, claim: VerifiedDocument, policy: AwsPolicy) -> None:
    """Check what EC2 says of the instance now.

    1. The account that the document names owns it; 2. it is in that zone; 3. it runs; 4. it has the tags, and is in one
    of the networks, that the policy demands.
    """
    rules = Rules(checks, "EC2, DescribeInstances", Reason.PLATFORM_INSTANCE_MISMATCH, _COMPARE)
    rules.equal("owner of the instance", claim.document.account, instance.owner)
    rules.equal("zone of the instance", claim.name.zone, instance.zone)
    reason, remedy = Reason.PLATFORM_INSTANCE_NOT_RUNNING, "start the instance, if it is to join"
    rules.equal("state of the instance", RUNNING, instance.state, reason=reason, remedy=remedy)
    wrong = sorted(key for key, value in policy.tags.items() if instance.tags.get(key) != value)
    expected, got = "the tags of spec.aws.tags", f"others for {', '.join(wrong)}"
    reason, remedy = Reason.PLATFORM_TAGS_NOT_ALLOWED, "let the infrastructure provider tag the instance so"
    rules.require(not wrong, "tags of the instance", expected, got, reason=reason, remedy=remedy)
    allowed = {instance.vpc} if policy.vpcs is None else policy.vpcs
    reason, remedy = Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED, "list the instance's VPC in spec.aws.vpcs"
    rules.member("network of the instance", allowed, instance.vpc, reason=reason, remedy=remedy)
