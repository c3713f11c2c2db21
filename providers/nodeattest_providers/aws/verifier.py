"""The ``aws`` provider's verifier: the instance's role signed this very CSR, cluster and signer.

Source: docs/wire-format.md, "aws/v1"; docs/providers/aws.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeattest_providers.aws.checks import (
    PENDING,
    Ec2Instance,
    Realm,
    VerifiedDocument,
    check_evidence,
    check_instance,
    check_recorded_place,
    check_role_session,
    wire_rules,
)
from nodeattest_providers.aws.config import RegionCertificates, parse_platform, parse_policy, read_trust_bundle
from nodeattest_providers.aws.protocol import PROVIDER, VERSION, parse_provider_id, sts_request
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason, platform_unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID, is_dns_name
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.platform import Platform, offline
from nodeattest_providers.verifier_interface import (
    Addresses,
    AttestedNode,
    BootState,
    CheckedSigner,
    Facts,
    NamedEndorsementKey,
    NodeRequest,
)

if TYPE_CHECKING:
    from nodeattest_providers.aws.api.ec2 import Instances
    from nodeattest_providers.aws.api.sts import CallerIdentity, StsClient

_SETTLING: Final = timedelta(minutes=2)
"""After its start, DescribeInstances may not know an instance yet ("Eventual consistency")."""
_MAY_READ: Final = "check the provider ID, and that the controller may read instances of that account"


class AwsSigner(CheckedSigner):
    """Verifies EC2 instances; also tells their addresses, and their endorsement keys for ``tpm``."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    read_section = staticmethod(parse_policy)
    takes_platform = True
    tells_addresses = True
    reads_infrastructure = False

    def __init__(self, *, platform: Platform) -> None:
        configuration = parse_platform(platform.settings)
        path = configuration.trust_bundle
        self._trust: RegionCertificates = {} if path is None else read_trust_bundle(path)
        self._sts: StsClient | None = None
        self._instances: Instances | None = None
        if platform.may_call:
            # botocore and aiohttp take half a second, which ``policy check`` and ``explain`` need not pay.
            from nodeattest_providers.aws.api.ec2 import Ec2, Instances
            from nodeattest_providers.aws.api.sts import StsClient

            self._sts = StsClient(configuration, platform)
            self._instances = Instances(Ec2(configuration, platform))

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        del boot
        check_recorded_place(facts, parse_policy(facts.settings))
        return ("AWS is not asked: role, tags and VPC of the instance",)

    async def addresses(self, facts: Facts) -> Addresses:
        name, policy = parse_provider_id(facts.machine.provider_id), parse_policy(facts.settings)
        account = facts.ledger.fingerprints.get("instance", "").partition("/")[0]
        if not account and len(policy.accounts) == 1:
            (account,) = policy.accounts
        instance = await self._find(Realm(account, name.region), name.instance_id)
        if instance is None or instance.owner not in policy.accounts:
            raise Denied(
                Reason.PLATFORM_INSTANCE_NOT_FOUND,
                expected="an instance of an account that the policy lists",
                got="none" if instance is None else f"one of {instance.owner}",
                remedy=_MAY_READ,
            )
        return instance.addresses

    async def endorsement_key(
        self, machine: ProviderID, *, accounts: frozenset[str], shown: PublicKey
    ) -> NamedEndorsementKey:
        if self._instances is None:
            raise offline("AWS EC2")
        return await self._instances.endorsement_key(machine, accounts=accounts, shown=shown)

    async def aclose(self) -> None:
        if self._sts is not None:
            await self._sts.aclose()
        if self._instances is not None:
            await self._instances.aclose()

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify one request.

        1. The evidence by itself (``check_evidence``).
        2. STS confirms who signed, over the binding to one of the cluster's CAs; or it did so when this very request
           was written to the ledger, and need not be asked again: it would only say that the signature is old now.
        3. That is the instance's own session of a role that the policy lists.
        4. EC2 says that the instance is of that account, runs in that zone, and has what the policy demands.
        """
        policy = parse_policy(facts.settings)
        claim = check_evidence(checks, request, facts, policy, self._trust)  # 1
        rules = wire_rules(checks)
        if facts.ledger.answered:
            rules.require(True, "STS confirmed the signature", "when this request was written to the ledger", "")  # noqa: FBT003
        else:
            check_role_session(checks, await self._caller(checks, request, facts, claim), claim, policy)  # 2, 3
        # 4
        name = claim.name
        instance = await self._find(Realm(claim.document.account, name.region), name.instance_id)
        is_young = request.created - claim.document.pending < _SETTLING
        if is_young and (instance is None or instance.state == PENDING):
            detail = "AWS EC2 does not show the instance as running yet: it was started moments ago"
            raise platform_unavailable(detail, remedy="nothing; it will be looked up again")
        expected, reason = f"instance {name.instance_id} in {name.region}", Reason.PLATFORM_INSTANCE_NOT_FOUND
        instance = rules.present(instance, "instance exists", expected, reason=reason, remedy=_MAY_READ)
        check_instance(checks, instance, claim, policy)
        return AttestedNode(
            provider=PROVIDER,
            provider_id=request.csr.provider_id,
            proven_node_name=NodeName(instance.private_dns_name) if is_dns_name(instance.private_dns_name) else None,
            fingerprints={"instance": claim.fingerprint},
            checks=checks.record(),
        )

    async def _caller(
        self, checks: Checks, request: NodeRequest, facts: Facts, claim: VerifiedDocument
    ) -> CallerIdentity:
        """Ask STS about a request that is bound to one of the cluster's CAs, one after the other."""
        if self._sts is None:
            raise offline("AWS STS")
        rules, identity = wire_rules(checks), None
        for pin in facts.cluster.first_pins:
            asked = sts_request(claim.name.region, request.binding(pin))
            try:
                identity = identity or await self._sts.caller(asked, claim.evidence.sts)
            except Denied as denied:
                checks.outcome("STS confirms the signature", rules.section, denied)
        return rules.present(
            identity,
            "signed over the binding",
            "a signature over this CSR, signer and a CA of this cluster, by credentials that STS knows",
            reason=Reason.PLATFORM_PROOF_NOT_BOUND,
            remedy="file a new request; if this comes back, the node trusts another cluster CA than this cluster has",
        )

    async def _find(self, realm: Realm, instance_id: str) -> Ec2Instance | None:
        if self._instances is None:
            raise offline("AWS EC2")
        return await self._instances.find(realm, instance_id)
