"""From a request's key to a verdict: gather facts, verify, review. Reads only; ``reconcile`` acts on the verdict.

The order is cheap first: parsing and policy cost no I/O, identity rules look at memory, and only then come cryptography
and live reads. A second request, and any approval, is judged on a Machine, a Node and a first request read just now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from nodeattest_controller.controllers.kubelet_serving.sans import SANEvaluator, SANRequest
from nodeattest_controller.model.attestation import Attestation, new_attestation
from nodeattest_controller.model.bound_tokens import check_bound_token
from nodeattest_controller.model.certificate_authority import CertificateAuthority, SubjectAltNames
from nodeattest_controller.model.csr_request import RequestState, parse_request, summarize
from nodeattest_controller.model.identity_rules import (
    NameContext,
    check_adoption,
    check_binding,
    check_fingerprints,
    check_no_hijack,
    check_node_name,
    check_takeover,
    find_machine,
)
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import key_of
from nodeattest_controller.model.policy import Policy, check_authorized
from nodeattest_controller.model.serving_names import check_client_certificate, check_serving_allowed
from nodeattest_controller.runtime.challenge_keys import ChallengeKeys
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigReader
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verifiers.runner import VerificationRunner
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers import evidence_versions
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ProviderName, Purpose
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.platform import reads_infrastructure, reads_secret
from nodeattest_providers.verifier_interface import (
    AttestedNode,
    ChallengeSigner,
    ClusterAPISigner,
    Facts,
    MachineFacts,
    NodeRequest,
)

__all__ = ["Approval", "Evaluator"]

_RESTARTS = MappingProxyType({str(reason): reason for reason in (Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED)})
"""What may have become of a first request whose agent may begin anew: an answer can wait too long for its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A request that may be signed."""

    request: NodeRequest
    attested: AttestedNode
    member: MachineView
    ledger: Attestation
    policy: Policy
    authority: CertificateAuthority
    first: JsonObject | None
    """The first request's object, to be closed afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is known before anything is verified."""

    cluster: JsonObject
    workload: WorkloadClient
    request: NodeRequest
    signer: ClusterAPISigner
    policy: Policy
    ref: FirstRequestRef | None


class Evaluator:
    """Gives verdicts."""

    def __init__(
        self,
        management: ManagementCache,
        challenge_keys: ChallengeKeys,
        *,
        configs: KubeadmConfigReader,
        addresses: SANEvaluator,
        signer: Callable[[ProviderName], ClusterAPISigner],
        provider_id_oid: str,
        verifications: VerificationRunner,
        now: Callable[[], datetime],
    ) -> None:
        self._management = management
        self._challenge_keys = challenge_keys
        self._configs = configs
        self._addresses = addresses
        self._signer = signer
        self._oid = provider_id_oid
        self._verifications = verifications
        self._now = now

    async def judge(self, workload: WorkloadClient, request: NodeRequest) -> Approval:
        """Prove a request; raises Denied, Unavailable or ChallengeRequired.

        1. Hold a bound token to its machine; 2. policy; 3. one live Machine; 4. rules that memory can
        answer; 5. the machine's bootstrap configuration names the token that asks; 6. verify the evidence; 7. rules
        that need fresh reads.
        """
        check_bound_token(request, workload.key)  # 1
        case = self._open(workload, request)  # 2
        inventory = self._management.inventory
        member = find_machine(request, inventory.members(workload.key, request.csr.provider_id))  # 3
        final = case.ref is not None or not isinstance(case.signer, ChallengeSigner)
        if final:
            member = await self._live(request, member)
        ledger = inventory.ledger(workload.key, member.provider_id) or new_attestation(member)
        owners = inventory.owners(workload.key, member.provider_id)
        check_binding(request, member, ledger, secure=case.signer.secure, owners=owners)  # 4
        if request.purpose is Purpose.SERVING:
            check_client_certificate(request, ledger, self._now())
            self._addresses.check_remembered(_wanted(case, member))
        around = NameContext(
            claimants=inventory.claimants(workload.key, request.csr.node_name),
            holders=inventory.holders(workload.key, request.csr.node_name),
            is_alive=lambda ledger: bool(inventory.members(workload.key, ledger.provider_id)),
        )
        # Before a platform is asked about it: a name that nothing but a proof could make this machine's may pass here.
        may_be_proven = request.csr.node_name if final and case.signer.secure else None
        check_node_name(request, member, around, may_be_proven)
        if not final:
            _check_unanswered(request, ledger)
        configured = inventory.configured_by(workload.key, member)
        await self._configs.check(request, configured, case.policy.token_binding)  # 5
        first = await workload.read_request(case.ref.name) if case.ref else None
        attested = await self._verify(case, member, ledger, first)  # 6
        check_node_name(request, member, around, attested.proven_node_name)  # 7
        check_fingerprints(member, around, self._holders_of(workload, attested))
        node = await workload.read_node(request.csr.node_name)
        check_no_hijack(member, around, node)
        check_takeover(request, ledger, node)
        check_adoption(request, member, ledger, node)
        if request.purpose is Purpose.SERVING:
            await self._addresses.check(_wanted(case, member))
        return Approval(
            request=request,
            attested=attested,
            member=member,
            ledger=ledger,
            policy=case.policy,
            authority=self._management.authority(workload.key),
            first=first,
        )

    def parse_request(self, csr: JsonObject) -> NodeRequest:
        """Read a request; raises Denied."""
        return parse_request(csr, provider_id_oid=self._oid)

    def _holders_of(self, workload: WorkloadClient, attested: AttestedNode) -> list[Attestation]:
        inventory = self._management.inventory
        found = [inventory.fingerprint_holders(workload.key, *pair) for pair in attested.fingerprints.items()]
        return [ledger for holders in found for ledger in holders]

    def _open(self, workload: WorkloadClient, request: NodeRequest) -> _Case:
        cluster = self._management.active_cluster(workload.key)
        policy = self._management.policy_of(cluster)
        check_authorized(policy, request.evidence.provider)
        signer = self._signer(request.evidence.provider)  # looked up by name, so only after the policy named it
        evidence_versions.check(request.evidence, signer.versions)
        if request.purpose is Purpose.SERVING:
            check_serving_allowed(request, policy, secure=signer.secure)
        ref = signer.first_request(request) if isinstance(signer, ChallengeSigner) else None
        return _Case(cluster=cluster, workload=workload, request=request, signer=signer, policy=policy, ref=ref)

    async def _live(self, request: NodeRequest, member: MachineView) -> MachineView:
        live = await self._management.live_member(member)
        return find_machine(request, [live] if live else [])

    async def _verify(
        self, case: _Case, member: MachineView, ledger: Attestation, first: JsonObject | None
    ) -> AttestedNode:
        facts = Facts(
            cluster=self._management.facts_of(case.cluster),
            machine=await self._machine_facts(case, member),
            settings=case.policy.settings(case.request.evidence.provider),
            sections=case.policy.sections,
            ledger=ledger.facts(case.request, case.ref.uid if case.ref else ""),
            first_request=_first_request(first, ledger, case.request, self._oid),
            challenge_keys=self._challenge_keys.keys() if isinstance(case.signer, ChallengeSigner) else (),
            verified_at=self._now(),
        )
        serving = case.request.purpose is Purpose.SERVING
        signer = case.signer
        verify = signer.verify_serving_attestation_data if serving else signer.verify_client_attestation_data
        # Not by machine alone: whoever names another's machine again and again would keep it from its turn.
        key = (case.workload.key, member.provider_id, case.request.username)
        return await self._verifications.run(key, lambda: verify(case.request, facts))

    async def _machine_facts(self, case: _Case, member: MachineView) -> MachineFacts:
        infra = await self._management.infra_of(member) if reads_infrastructure(case.signer) else None
        secret = await self._management.attestation_secret(member) if reads_secret(case.signer) else None
        return member.facts(infra=infra, secret=secret)


def _wanted(case: _Case, member: MachineView) -> SANRequest:
    request = case.request
    return SANRequest(
        cluster=case.cluster,
        member=member,
        names=SubjectAltNames(request.csr.dns_names, request.csr.ip_addresses),
        node_name=request.csr.node_name,
        at=request.created,
        provider=request.evidence.provider,
    )


def _check_unanswered(request: NodeRequest, ledger: Attestation) -> None:
    """Close a first request whose answer was certified: the controller was killed before it could."""
    if ledger.answered_first(request.uid):
        raise Denied(
            Reason.SUPERSEDED,
            expected="a first request that nobody answered yet",
            got="one whose second request was certified",
            remedy="nothing to do",
        )


def _first_request(
    first: JsonObject | None, ledger: Attestation, request: NodeRequest, provider_id_oid: str
) -> NodeRequest | None:
    """Read the first request of a challenge, unless it was refused.

    A ledger entry for this key is asked before the first request's own state: a copy of the second request, handled
    earlier, closes the first one, and must not get the honest second one denied (docs/architecture.md, "Two rounds").
    """
    stored = summarize(first) if first is not None else None
    if first is None or stored is None or stored.is_kubelets:
        return None
    found = parse_request(first, provider_id_oid=provider_id_oid)
    same = found.csr.der == request.csr.der  # otherwise the link check says what is wrong
    known = ledger.entry_for(request.csr.spki_sha256, request.purpose)
    if same and stored.state is not RequestState.PENDING and known is None:
        raise Denied(
            _RESTARTS.get(stored.denial_reason, Reason.FIRST_REQUEST_MISMATCH),
            expected="a first request that is still pending",
            got=f"{key_of(first)} is {stored.state}",
            remedy="file a new first request",
        )
    return found
