"""What the next renewal of each machine on record would meet, under policies that are not applied yet. Pure.

Promises: the controller's own choice among policies and its own rules, and each provider's own checks of what is on
record (``RecordedChecks``). Who passes does so if it proves what it proved last; what the record does not hold is
``UNKNOWN``, never a pass.
Leaves to others: what no policy decides (the request, its keys, the Node), and first joins, of which nothing is on
record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.identity_rules import NameContext, check_node_name
from nodeattest_controller.model.infrastructure_kinds import known_kind
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.node_names import NameSources
from nodeattest_controller.model.objects import text
from nodeattest_controller.model.policy import Policy, check_authorized, policy_for
from nodeattest_controller.model.serving_names import check_serving_allowed
from nodeattest_controller.verification.policy_validation import installed
from nodeattest_controller.verification.registered_names import registered_names
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
    SignerName,
)
from nodeattest_providers.node_interface import Evidence, NodeCsr
from nodeattest_providers.platform import provable_names, reads_infrastructure
from nodeattest_providers.verifier_interface import (
    ClusterAPISigner,
    ClusterFacts,
    Facts,
    MachineFacts,
    NodeRequest,
    RecordedChecks,
)

__all__ = ["InfraAnnotations", "Outcome", "RenewalForecast", "Ruling", "Simulator", "find_ruling"]


class Outcome(StrEnum):
    """What a renewal would meet."""

    PASSES = "passes"
    """Nothing on record speaks against it, and everything that the policy asks for is on record."""
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RenewalForecast:
    """About one machine."""

    outcome: Outcome
    reason: str = ""
    """A ``Reason`` where it is refused."""
    rule: str = ""
    """The check that refuses, or what is not known: few of them in a fleet."""
    message: str = ""


Ruling = Policy | Denied | Unavailable
"""The policy of a cluster, or why there is none."""


@dataclass(frozen=True, slots=True)
class InfraAnnotations:
    """The annotations of infrastructure objects, as far as they could be read."""

    found: Mapping[ContractReference, Mapping[str, str]] = field(
        default_factory=dict[ContractReference, Mapping[str, str]]
    )
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    """By kind: why its objects could not be read."""

    def of(self, reference: ContractReference) -> Mapping[str, str]:
        """Return an object's annotations; asking for one of those that are not known raises Unavailable."""
        if reference in self.found:
            return self.found[reference]
        why = self.unread.get(reference.kind, f"there is no {reference.kind} {reference.name}")
        return _Unread(f"the infrastructure object's annotations are not known: {why}")


class _Unread(Mapping[str, str]):
    """Annotations that could not be read."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getitem__(self, key: str) -> str:
        raise self._unavailable()

    def __iter__(self) -> Iterator[str]:
        raise self._unavailable()

    def __len__(self) -> int:
        raise self._unavailable()

    def _unavailable(self) -> Unavailable:
        return Unavailable(Reason.MACHINE_NOT_READY, self._why, remedy="read it with other rights")


def find_ruling(cluster: JsonObject, policies: Sequence[JsonObject], recorded: Callable[[str], int]) -> Ruling:
    """Choose a cluster's policy as the controller does."""
    try:
        return policy_for(cluster, policies, recorded=recorded)
    except (Denied, Unavailable) as error:
        return error


class Simulator:
    """Evaluates records; holds providers' offline signers and what it derived of policies."""

    def __init__(self, infra: InfraAnnotations, now: datetime) -> None:
        self._infra = infra
        self._now = now
        self._signers: dict[ProviderName, ClusterAPISigner | None] = {}
        self._registered: dict[int, tuple[Policy, Mapping[str, frozenset[ProviderID]]]] = {}

    def evaluate(
        self, attestation: Attestation, machine: MachineView | None, cluster: JsonObject, ruling: Ruling
    ) -> RenewalForecast:
        """Say what the machine's next renewals would meet, of its client and then of its serving certificate."""
        if isinstance(ruling, Denied):
            return _refused(ruling)
        if isinstance(ruling, Unavailable):
            return RenewalForecast(
                Outcome.REFUSED, ruling.reason, "one policy", f"{ruling.detail}; its certificate ends"
            )
        try:
            check_authorized(ruling, attestation.provider)
            return self._check(attestation, machine, cluster, ruling)
        except Denied as denied:
            return _refused(denied)
        except Unavailable as unavailable:
            return _unknown(unavailable.detail)

    def _check(
        self, attestation: Attestation, machine: MachineView | None, cluster: JsonObject, policy: Policy
    ) -> RenewalForecast:
        """Check one machine.

        1. The node's name is still the machine's by the policy (identity rule 2).
        2. What the provider finds on record (``RecordedChecks``).
        3. The policy still signs serving certificates, where the machine has one.
        """
        signer = self._signer(attestation.provider)
        if signer is None:
            return _unknown(f"the provider {attestation.provider} is not installed here")
        if machine is None:
            return _unknown("its Machine is not there")
        request = _next_renewal(attestation, Purpose.CLIENT, self._now)
        self._check_name(request, attestation, machine, policy, signer)  # 1
        unknown: tuple[str, ...] = (f"the provider {attestation.provider} cannot check records",)
        if isinstance(signer, RecordedChecks):  # 2
            facts = Facts(
                cluster=_cluster_facts(cluster),
                machine=self._machine_facts(machine, signer, policy),
                settings=policy.settings(attestation.provider),
                sections=policy.sections,
                ledger=attestation.facts(request),
                verified_at=self._now,
            )
            unknown = signer.check_recorded(facts, attestation.boot)
        if attestation.live(self._now, Purpose.SERVING) is not None:  # 3
            serving = _next_renewal(attestation, Purpose.SERVING, self._now)
            check_serving_allowed(serving, policy, secure=signer.secure)
        return _unknown("; ".join(unknown)) if unknown else RenewalForecast(Outcome.PASSES)

    def _check_name(
        self,
        request: NodeRequest,
        attestation: Attestation,
        machine: MachineView,
        policy: Policy,
        signer: ClusterAPISigner,
    ) -> None:
        name = request.csr.node_name
        try:
            provable = provable_names(signer, policy.sections)
        except Denied:  # a part of composite that is not installed here
            provable = None
        proven = name if provable is None else provable.get(machine.provider_id)
        around = NameContext(claimants=(), holders=(attestation,), registered=self._machines_named(name, policy))
        check_node_name(request, machine, around, NameSources(recorded=attestation.node_name, proven=proven))

    def _machines_named(self, name: NodeName, policy: Policy) -> frozenset[ProviderID]:
        held = self._registered.get(id(policy))
        if held is None:
            found: defaultdict[str, set[ProviderID]] = defaultdict(set)
            for machine, given in registered_names(policy.sections, self._require):
                found[given].add(machine)
            held = (policy, {given: frozenset(machines) for given, machines in found.items()})
            self._registered[id(policy)] = held
        return held[1].get(name, frozenset())

    def _machine_facts(self, machine: MachineView, signer: ClusterAPISigner, policy: Policy) -> MachineFacts:
        if machine.infra is None or not reads_infrastructure(signer):
            return machine.facts()
        host = known_kind(machine.infra).host
        if host is not None and host.kind in policy.infrastructure.host_objects:
            return replace(machine.facts(), endorsement_keys=_Unread(f"{host.kind} objects are not read here"))
        annotations = self._infra.of(machine.infra)
        if isinstance(annotations, _Unread):
            return replace(machine.facts(), endorsement_keys=annotations)
        key = annotations.get(ANNOTATION_TPM_ENDORSEMENT_KEY)
        source = f"{machine.infra.kind} annotation {ANNOTATION_TPM_ENDORSEMENT_KEY}"
        return machine.facts(endorsement_keys={source: key} if key is not None else {})

    def _require(self, provider: ProviderName) -> ClusterAPISigner:
        signer = self._signer(provider)
        if signer is None:
            raise Denied(Reason.POLICY_INVALID, expected="an installed provider", got=provider, remedy="install it")
        return signer

    def _signer(self, provider: ProviderName) -> ClusterAPISigner | None:
        if provider not in self._signers:
            self._signers[provider] = installed(provider)
        return self._signers[provider]


def _next_renewal(attestation: Attestation, purpose: Purpose, now: datetime) -> NodeRequest:
    """Make the renewal that a machine on record is expected to file, without keys and evidence: none is read."""
    return NodeRequest(
        name="",
        uid="",
        resource_version="",
        created=now,
        signer_name=SignerName(""),
        purpose=purpose,
        username=f"system:node:{attestation.node_name}",
        groups=frozenset({"system:nodes"}),
        usages=frozenset(),
        expiration_seconds=None,
        request=b"",
        csr=NodeCsr(der=b"", node_name=attestation.node_name, provider_id=attestation.provider_id, spki=b""),
        evidence=Evidence(attestation.provider, 1, {}),
    )


def _cluster_facts(cluster: JsonObject) -> ClusterFacts:
    meta = {name: text(cluster, "metadata", name) for name in ("name", "namespace", "uid")}
    return ClusterFacts(name=meta["name"], namespace=meta["namespace"], uid=meta["uid"], pins=frozenset())


def _refused(denied: Denied) -> RenewalForecast:
    failed = denied.checks[-1].name if denied.checks else denied.expected
    message = f"expected {denied.expected}, got {denied.got}; {denied.remedy}"
    return RenewalForecast(Outcome.REFUSED, denied.reason, failed, message)


def _unknown(why: str) -> RenewalForecast:
    return RenewalForecast(Outcome.UNKNOWN, rule=why, message=why)
