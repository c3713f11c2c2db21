"""From an attested request to its certificate: checks, attestation record, approval, certificate, in this order.

Each write is safe to lose and to repeat: a restart finds the record and continues with the same bytes. Key, name and
fingerprints are reserved during the write, so one of two requests for them passes. Between record and approval the
Lease is read: what is recorded and not confirmed is not published (docs/decisions.md).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Final

from nodeattest_controller.controllers.csr.checks import CHECKS, check_key_of_one_machine
from nodeattest_controller.controllers.csr.kubelet_checks import CHECKS as KUBELET_CHECKS
from nodeattest_controller.controllers.csr.kubelet_checks import KubeletFacts
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate, record_certificate
from nodeattest_controller.model.attestation_object import render_attestation
from nodeattest_controller.model.certificate_authority import CertificateAuthority, names_in, sign_certificate
from nodeattest_controller.model.csr_request import KUBELET, CSRSummary, RequestState, parse_kubelet_request, summarize
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import MIN_LIFETIME, Policy
from nodeattest_controller.model.resolver import UNCONFIRMED_LIFETIME
from nodeattest_controller.runtime.cluster_controller import CSRIssued, CSRObserver
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache, member_ref
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.checks import Pipeline, Stage
from nodeattest_controller.verification.controller_facts import ControllerFacts
from nodeattest_controller.verification.facts import CSRFacts
from nodeattest_kube.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from nodeattest_kube.events import EventLimiter, EventRecorder
from nodeattest_kube.periodic import notify
from nodeattest_parsing.objects import moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.config_fields import split_pin
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import Purpose, signer_for
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

_LOG: Final = logging.getLogger(__name__)
INSECURE_LIFETIME: Final = 365 * 86400
"""Seconds. An insecure provider cannot rotate, so its certificates live as long as the in-tree signer's."""
_REUSE_MARGIN: Final = timedelta(seconds=60)
"""A certificate this close to its end is of no use to the node that asks for it again; of a short one, a quarter."""
_EVENT_PERIOD: Final = 10.0
"""Seconds between two Events of a cluster: a burst of joins costs one. Each Machine has a condition."""


class AttestationConflict(Conflict):
    """The record changed, or is gone: by another replica, or another request for the same key, name or machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A request that passed every check of its evaluation and may be signed."""

    request: NodeRequest
    attested: AttestedNode
    member: MachineView
    attestation: Attestation
    policy: Policy
    authority: CertificateAuthority
    first: JsonObject | None
    """The first request's object, to be closed afterwards."""
    facts: CSRFacts
    """For the checks directly before signing."""


class Issuer:
    """Evaluates attested requests, and turns approvals into certificates."""

    _pipeline: ClassVar[Pipeline[CSRFacts]] = Pipeline(CHECKS)
    _kubelet_pipeline: ClassVar[Pipeline[KubeletFacts]] = Pipeline(KUBELET_CHECKS)
    """No setting, flag or parameter changes either list."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        events: EventRecorder,
        metrics: Metrics,
        observers: Sequence[CSRObserver],
        still_leads: Callable[[], Awaitable[bool]],
        certificate_lifetime: int,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        """``still_leads`` reads now whether nobody else has led; raises ApiError. ``clock`` is monotonic seconds."""
        self._management = management
        self._events = events
        self._limiter = EventLimiter(clock)
        self._metrics = metrics
        self._observers = observers
        self._still_leads = still_leads
        self._lifetime = certificate_lifetime
        self._now = now
        self._reserved: set[tuple[ClusterKey, str]] = set()

    async def evaluate(self, source: ControllerFacts, request: NodeRequest, state: RequestState) -> Approval:
        """Run the checks of a request; raises Denied, Unavailable or ChallengeRequired. Reads only."""
        facts = CSRFacts(source, request, state)
        await self._pipeline.run(facts)
        return Approval(
            request=request,
            attested=await facts.attested(),
            member=await facts.machine(),
            attestation=await facts.attestation(),
            policy=await facts.policy(),
            authority=self._management.authority(source.key),
            first=await facts.first_object(),
            facts=facts,
        )

    async def approve_kubelets(self, source: ControllerFacts, csr: JsonObject) -> None:
        """Approve exactly this request of kubelet itself; raises Denied, Unavailable, Conflict or ApiError."""
        request = parse_kubelet_request(csr)
        facts = KubeletFacts(source, request)
        await self._kubelet_pipeline.run(facts)
        machine = await facts.machine()
        reviewed = "names and addresses are those of the node's Machine"
        await source.workload.approve(csr, "AddressesVerified", reviewed)
        self._metrics.verdict(KUBELET, "approve", "")
        more = fields(cluster=source.key, csr=request.name, node=request.node_name, machine=machine.name)
        _LOG.info("approved", extra=more)
        names = ", ".join((*request.names.dns_names, *request.names.ip_addresses))
        message = f"kubelet of node {request.node_name} serves {names}"
        self._events.record(member_ref(machine), "Normal", "ServingApproved", message)

    async def issue(self, workload: WorkloadClient, csr: JsonObject, stored: CSRSummary, approval: Approval) -> None:
        """Approve and sign exactly the request that was evaluated; raises Denied, Conflict or ApiError."""
        entry = await self._entry(workload, approval)
        await self._confirm(workload.key)
        if stored.state is RequestState.PENDING:
            recorded = f"MachineAttestation {approval.attestation.name}"
            message = f"{approval.attested.provider} attestation verified; {recorded}"
            csr = await workload.approve(csr, "Attested", message)
        await workload.publish_certificate(csr, entry.certificate)
        self._report(workload, approval, entry)
        await self._close_first(workload, approval)

    async def _entry(self, workload: WorkloadClient, approval: Approval) -> IssuedCertificate:
        """Find the key's certificate on record, or sign one and record it first."""
        now, request, attestation = self._now(), approval.request, approval.attestation
        known = attestation.entry_for(request.csr.spki_sha256, request.purpose)
        earliest = max(now, request.created)  # our clock may be behind: what is over is not handed out again
        with self._reserve(workload.key, approval):
            if known is not None and is_reusable(known, earliest) and _is_the_same(approval, known):
                self._check_recorded(workload.key, approval, known)
                return known
            await self._pipeline.run(approval.facts, Stage.ISSUE)
            self._check_unchanged(workload.key, approval)
            issued = sign_certificate(
                approval.authority,
                node_name=request.csr.node_name,
                spki=request.csr.spki,
                lifetime=self._lifetime_of(approval),
                now=now,
                created=request.created,
                server_time=workload.client.server_time(),
                purpose=request.purpose,
                names=approval.facts.names,
            )
            policy, sources = approval.policy.name, await approval.facts.sources()
            attested = approval.attested
            updated = record_certificate(attestation, request, attested, issued, now, policy=policy, sources=sources)
            await self._write_attestation(updated, approval)
        return updated.issued[-1]

    @contextmanager
    def _reserve(self, cluster: ClusterKey, approval: Approval) -> Generator[None]:
        """Hold key and node name for one machine while its record is written; raises Conflict when another has them."""
        request, owner, pins = approval.request, approval.member.provider_id, approval.attested.pins.items()
        wanted = {(cluster, request.csr.spki_sha256), (cluster, f"node:{request.csr.node_name}")}
        if not approval.member.is_confirmed:
            wanted |= {(cluster, f"machine:{approval.member.uid}"), (cluster, f"provider-id:{owner}")}
        wanted |= {(cluster, f"{split_pin(pin)[1]}:{value}") for pin, value in pins}
        if wanted & self._reserved:
            message = "another request for the same key, name or machine is being recorded"
            raise AttestationConflict(409, "Conflict", message)
        self._reserved |= wanted
        try:
            yield
        finally:
            self._reserved -= wanted

    def _check_unchanged(self, cluster: ClusterKey, approval: Approval) -> None:
        """Raise Conflict if the node name, a fingerprint or the Machine was recorded otherwise since the evaluation."""
        inventory, member = self._management.inventory, approval.member
        others = inventory.attestations_by_node_name(cluster, approval.request.csr.node_name)
        for pin, value in approval.attested.pins.items():
            others = others + inventory.fingerprint_holders(cluster, split_pin(pin)[1], value)
        if member.kind == "Machine":
            others = others + inventory.attestations_of_owner(cluster, member.uid)
        for other in others:
            if other.provider_id != member.provider_id and (other.has_joined or other.owner_uid != member.uid):
                raise AttestationConflict(409, "Conflict", "another machine was recorded with this name or fingerprint")

    def _check_recorded(self, cluster: ClusterKey, approval: Approval, entry: IssuedCertificate) -> None:
        """Raise Conflict or Denied if what is on record must not be published: perhaps it never was.

        A replica that had lost the cluster may have recorded it after another machine got the same key, name or pin.
        """
        inventory, member = self._management.inventory, approval.member
        recorded = inventory.attestation(cluster, member.provider_id)
        if recorded is None or entry not in recorded.issued:
            raise AttestationConflict(409, "Conflict", "the record was reset or deleted since it was read")
        check_key_of_one_machine(member, inventory.key_holders(cluster, entry.spki))
        self._check_unchanged(cluster, approval)

    async def _confirm(self, cluster: ClusterKey) -> None:
        """Raise Unreachable unless nobody else served the cluster before the record was written."""
        if not await self._still_leads():
            raise Unreachable(f"a certificate is not published: {cluster} was or is served by another replica")

    def _lifetime_of(self, approval: Approval) -> int:
        default = INSECURE_LIFETIME if approval.attested.provider == "insecure" else self._lifetime
        longest = approval.policy.lifetime or default
        if not approval.member.is_confirmed:
            longest = min(longest, UNCONFIRMED_LIFETIME)
        return clamp_lifetime(longest, approval.request.expiration_seconds)

    async def _write_attestation(self, attestation: Attestation, approval: Approval) -> None:
        signer_name = signer_for(attestation.provider, Purpose.CLIENT)
        body = render_attestation(attestation, approval.member, signer_name)
        exists, client = bool(attestation.resource_version), self._management.client

        async def write(path: str) -> JsonObject:
            if exists:
                return await client.merge_patch(path, body)
            return await client.create(path.rpartition("/")[0], body)

        try:
            await self._management.ask_attestation(attestation.namespace, attestation.name, write)
        except (Conflict, AlreadyExists, NotFound) as error:
            if isinstance(error, NotFound) and not exists:  # not the record is absent, but what it is created in
                raise
            raise AttestationConflict(error.status, error.reason, error.message) from error

    def _report(self, workload: WorkloadClient, approval: Approval, entry: IssuedCertificate) -> None:
        request, provider = approval.request, approval.attested.provider
        self._metrics.verdict(provider, "approve", "")
        self._metrics.issued(provider)
        first = moment(text(approval.first, "metadata", "creationTimestamp")) if approval.first is not None else None
        self._metrics.request_age_seconds((self._now() - (first or request.created)).total_seconds())
        more = fields(
            cluster=workload.key,
            csr=request.name,
            node=request.csr.node_name,
            machine=approval.member.name,
            provider=provider,
            purpose=request.purpose,
            serial=entry.serial,
            expires=entry.not_after.isoformat(),
        )
        _LOG.info("issued", extra=more)
        verified = f"{provider} attestation of node {request.csr.node_name} verified"
        message = f"{verified}; {request.purpose} certificate {entry.serial}"
        if self._limiter.allow(workload.key, _EVENT_PERIOD):
            self._events.record(member_ref(approval.member), "Normal", "NodeAttested", message)
        verdict = CSRIssued(cluster=workload.key, member=approval.member, at=self._now())
        for observer in self._observers:
            notify(observer.granted, verdict)

    async def _close_first(self, workload: WorkloadClient, approval: Approval) -> None:
        """Deny the answered first request, so that the in-tree cleaner removes it."""
        if approval.first is None:
            return
        stored = summarize(approval.first)
        if stored is None or stored.state is not RequestState.PENDING:
            return
        try:
            await workload.deny(approval.first, Reason.SUPERSEDED, "the second request was approved; nothing to do")
        except ApiError as error:
            more = fields(cluster=workload.key, csr=stored.name, error=error.reason)
            _LOG.info("the first request stays until it expires", extra=more)


def clamp_lifetime(longest: int, asked: int | None) -> int:
    return longest if asked is None else min(longest, max(asked, MIN_LIFETIME))


def is_reusable(entry: IssuedCertificate, now: datetime) -> bool:
    margin = min(_REUSE_MARGIN, (entry.not_after - entry.issued_at) / 4)
    return entry.not_after - margin > now


def _is_the_same(approval: Approval, known: IssuedCertificate) -> bool:
    """Return whether a certificate of the request's key and purpose is the one that the request asks for."""
    if approval.attestation.node_name != approval.request.csr.node_name:
        return False
    return known.purpose is Purpose.CLIENT or names_in(known.certificate).same_as(approval.facts.names)
