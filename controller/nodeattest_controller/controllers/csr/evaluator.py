"""From a request to an approval: runs the declared checks (``checks``) on the controller's facts. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from nodeattest_controller.controllers.csr.checks import CHECKS
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.certificate_authority import CertificateAuthority
from nodeattest_controller.model.csr_request import RequestState, parse_request
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.informers import machine_key
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.checks import Pipeline, Stage
from nodeattest_controller.verification.controller_facts import ControllerFacts
from nodeattest_controller.verification.facts import CSRFacts
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_parsing.objects import moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import ChallengeRequired, Denied, Unavailable
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

NOTHING: Final = "nothing"
"""No provider ID or key: no change wakes such a request early."""


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
    node_name_source: str
    """What gives the machine its node name; empty where its record does."""
    facts: CSRFacts
    """For the checks directly before signing."""

    @property
    def begun(self) -> datetime:
        """When the node filed the request, or the first of the two that a challenge takes."""
        created = moment(text(self.first, "metadata", "creationTimestamp")) if self.first is not None else None
        return created or self.request.created


class Evaluator:
    """Evaluates requests."""

    _pipeline: ClassVar[Pipeline[CSRFacts]] = Pipeline(CHECKS)
    """No setting, flag or parameter changes it."""

    def __init__(self, facts_of: Callable[[WorkloadClient], ControllerFacts], *, provider_id_oid: str) -> None:
        """``facts_of`` gives the facts of a cluster."""
        self._facts_of = facts_of
        self._oid = provider_id_oid

    def parse_request(self, csr: JsonObject) -> NodeRequest:
        """Read a request; raises Denied."""
        return parse_request(csr, provider_id_oid=self._oid)

    async def evaluate(
        self, workload: WorkloadClient, request: NodeRequest, state: RequestState
    ) -> Approval | ChallengeRequired | Unavailable | Denied:
        """Run the checks of a request, and return how they ended."""
        source = self._facts_of(workload)
        facts = CSRFacts(source, request, state)
        try:
            await self._pipeline.run(facts)
            return Approval(
                request=request,
                attested=await facts.attested(),
                member=await facts.machine(),
                attestation=await facts.attestation(),
                policy=await facts.policy(),
                authority=source.management.authority(workload.key),
                first=await facts.first_object(),
                node_name_source=await facts.node_name_source(),
                facts=facts,
            )
        except (ChallengeRequired, Unavailable, Denied) as end:
            return end

    def waits_for(self, workload: WorkloadClient, request: NodeRequest) -> str:
        """Name what wakes a request: its provider ID, or the Machine of its token while that has none."""
        if request.csr.provider_id and self._facts_of(workload).machines(request.csr.provider_id):
            return request.csr.provider_id
        machine = self.machine_of_token(workload, request)
        return machine_key(machine.uid) if machine is not None else request.csr.provider_id or NOTHING

    def machine_of_token(self, workload: WorkloadClient, request: NodeRequest) -> MachineView | None:
        """Return the one Machine whose KubeadmConfig names the requester's token."""
        token_id = request.username.removeprefix(USER_PREFIX)
        return self._facts_of(workload).machine_of_token(token_id) if token_id != request.username else None

    async def check_issuance(self, approval: Approval) -> None:
        """Run the checks that come directly before signing; raises Denied. The issuer holds its reservation."""
        await self._pipeline.run(approval.facts, Stage.ISSUE)
