"""Older requests of a requester for a node that has got its certificate: nobody waits for them any more.

Promises: only requests with another key, of the very user for whom the certificate was issued, and no younger than the
request that was certified, are closed; so a token closes nobody else's requests, and a copy with the same key gets the
same certificate. Times are whole seconds: of two requests of one second, the one that was open when the other was
certified is closed, and one that is seen only afterwards counts as newer. Memory is bounded, and losing it is harmless:
what is not closed here ends by its own limits.
Source: the two-step protocol §E5 step 2b (older ones are denied only after a newer one succeeded).

Every check of an attested request, in the order in which they run: the one list of controller and ``explain``.

Cheap first: what the request itself says, then memory, then the provider's verification and live reads; last, under
the issuer's reservation, the rules about keys and certificates. Numbers of rules are those of
docs/identity-rules.md. The rules are pure functions of ``model``; a check here says which facts they get.
The parser (``model.csr_request``) comes before all of these: without a ``NodeRequest`` there is nothing to check.
Leaves to others: where a fact comes from (``verification.facts``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.csr_request import RequestState, parse_request, summarize
from nodeattest_controller.model.identity_rules import (
    check_adoption,
    check_binding,
    check_fingerprints,
    check_machine_name,
    check_node_name,
    check_pool_instance,
    check_takeover,
    find_machine,
)
from nodeattest_controller.model.infrastructure_kinds import known_kind
from nodeattest_controller.model.issuance_rules import (
    check_approval_known,
    check_bound_token,
    check_challenge_answered_once,
    check_first_request_pending,
    check_key_is_new,
    check_live_certificates,
    check_not_answered,
    check_pinned_fingerprints,
    check_replacement_interval,
)
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import NameSources, NameStrength, claim_to, is_named, node_names
from nodeattest_controller.model.policy import check_authorized
from nodeattest_controller.model.resolver import (
    ExpectedProviderID,
    Infrastructure,
    check_provider_id,
    check_provider_id_free,
    check_record_owner,
    check_recorded_provider_id,
    check_renewable,
    expected_provider_id,
    host_names,
    identified,
    select_machine,
)
from nodeattest_controller.model.serving_names import check_client_certificate, check_serving_allowed
from nodeattest_controller.model.token_binding import check_token_binding
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.verification import sans
from nodeattest_controller.verification.checks import Needs, RequestCheck, Round, Stage
from nodeattest_controller.verification.facts import FactSource, RequestFacts, Verification, fact, registered_names
from nodeattest_controller.verification.shared_checks import ACTIVE_CLUSTER, MACHINE_NOW, NO_OTHER_NODE
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_parsing.objects import key_of
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import evidence_versions
from nodeattest_providers.config_fields import split_pin
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose, SignerName
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.platform import provable_names
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, NodeRequest

_REMEMBERED: Final = 20_000
"""Open requests, and certified nodes; the oldest are forgotten."""

_Wanted = tuple[ClusterKey, SignerName, str, NodeName]
"""Cluster, signer (a serving certificate is none for a client), user and node name."""


@dataclass(frozen=True, slots=True)
class _Open:
    """What is kept of a request."""

    name: str
    created: datetime
    spki: str
    closed: bool = False
    """Whether it was open when a request that is no older was certified."""

    def is_superseded_by(self, certified: _Open) -> bool:
        """Whether nobody waits for it any more, if it was open when the other was certified."""
        return self.created <= certified.created and self.spki != certified.spki

    def is_older_than(self, certified: _Open) -> bool:
        """Whether nobody waits for it any more, whenever it was seen."""
        return self.created < certified.created and self.spki != certified.spki


class Duplicates:
    """The requests that are open, and the newest certified ones."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._open: dict[_Wanted, dict[str, _Open]] = {}
        """By UID."""
        self._wanted: OrderedDict[str, _Wanted] = OrderedDict()
        """By UID, oldest first."""
        self._certified: OrderedDict[_Wanted, _Open] = OrderedDict()

    def check(self, cluster: ClusterKey, request: NodeRequest) -> None:
        """Note an open request; raises Denied where a newer one was certified."""
        wanted = _wanted(cluster, request)
        this = _Open(request.name, request.created, request.csr.spki_sha256)
        seen = self._open.get(wanted, {}).get(request.uid)
        certified = self._certified.get(wanted)
        if (seen is not None and seen.closed) or (certified is not None and this.is_older_than(certified)):
            raise Denied(
                Reason.SUPERSEDED,
                expected="the newest request of this requester for this node",
                got="one that is older than the one that was certified",
                remedy="nothing to do if the node has its certificate; else file a new first request",
            )
        self._open.setdefault(wanted, {})[request.uid] = seen or this
        self._wanted[request.uid] = wanted
        if len(self._wanted) > self._remembered:
            self.forget(next(iter(self._wanted)))

    def certified(self, cluster: ClusterKey, request: NodeRequest, asked: datetime) -> tuple[str, ...]:
        """Note what was certified, first asked for at ``asked``; returns the names of the requests to be closed."""
        wanted = _wanted(cluster, request)
        self.forget(request.uid)
        certified = self._certified[wanted] = _Open(request.name, asked, request.csr.spki_sha256)
        self._certified.move_to_end(wanted)
        if len(self._certified) > self._remembered:
            self._certified.popitem(last=False)
        requests = self._open.get(wanted, {})
        closed = {uid: one for uid, one in requests.items() if one.is_superseded_by(certified)}
        requests.update((uid, replace(one, closed=True)) for uid, one in closed.items())
        return tuple(one.name for one in closed.values())

    def forget(self, uid: str) -> None:
        """Drop a request that is settled."""
        wanted = self._wanted.pop(uid, None)
        if wanted is None:
            return
        requests = self._open[wanted]
        del requests[uid]
        if not requests:
            del self._open[wanted]

    def __len__(self) -> int:
        return len(self._wanted)


def _wanted(cluster: ClusterKey, request: NodeRequest) -> _Wanted:
    return cluster, request.signer_name, request.username, request.csr.node_name


EVIDENCE: Final = "evidence version and schema"
ROUND: Final = "round of the request"
VERIFICATION: Final = "the provider's verification"
_SERVING: Final = frozenset({Purpose.SERVING})
_FIRST: Final = frozenset({Round.FIRST})
_FINAL: Final = frozenset({Round.FINAL})


class CSRFacts(RequestFacts):
    """The facts about one attested request."""

    def __init__(self, source: FactSource, request: NodeRequest, state: RequestState = RequestState.PENDING) -> None:
        """``state`` is the request's own."""
        super().__init__(
            source,
            purpose=request.purpose,
            node_name=request.csr.node_name,
            names=SubjectAltNames(request.csr.dns_names, request.csr.ip_addresses),
            created=request.created,
        )
        self.request = request
        self.state = state

    async def verifier(self) -> ClusterAPISigner:
        """Return the verifier that the request names; looked up by name, so only after the policy named it."""
        return self.source.verifier(self.request.evidence.provider)

    @fact
    async def ref(self) -> FirstRequestRef | None:
        """Return which first request this one answers; raises Denied on malformed evidence."""
        return (await self.verifier()).first_request(self.request)

    @fact
    async def round(self) -> Round:
        """Return whether this request could be granted."""
        two_step = (await self.verifier()).two_step
        return Round.FIRST if two_step and await self.ref() is None else Round.FINAL

    def require_one(self, machines: list[MachineView]) -> MachineView:
        """Apply identity rule 1 by provider ID."""
        return find_machine(self.request, machines)

    @fact
    async def by_provider_id(self) -> list[MachineView]:
        """Return the machines with the request's provider ID."""
        provider_id = self.request.csr.provider_id
        return self.source.machines(provider_id) if provider_id else []

    @fact
    async def by_token(self) -> list[MachineView]:
        """Return the machines whose own bootstrap token the requester has; none for a node."""
        username = self.request.username
        token_id = username.removeprefix(USER_PREFIX)
        if self.request.is_renewal or token_id == username:
            return []
        return await self.source.machines_of_token(token_id, is_needed=not await self.by_provider_id())

    @fact
    async def infrastructure(self) -> Infrastructure | None:
        """Return the infrastructure machine and the host object of the request's machine."""
        return await self.source.infrastructure(await self.machine())

    @fact
    async def selected_machine(self) -> MachineView:
        """Return the first that provider ID or token names; that there is but one is a check of its own."""
        found = [*await self.by_provider_id(), *await self.by_token()]
        return found[0] if found else self.require_one([])

    @fact
    async def expected_provider_id(self) -> ExpectedProviderID | None:
        """Return the provider ID that the machine has, or will have."""
        machine = await self.selected_machine()
        infrastructure = (
            None if machine.is_confirmed and machine.provider_id else await self.source.infrastructure(machine)
        )
        return expected_provider_id(machine, infrastructure)

    @fact
    async def cached_machine(self) -> MachineView:
        """Return the machine with the requested provider ID; whether it is the machine's is a check of its own."""
        return identified(
            await self.selected_machine(), self.request.csr.provider_id, await self.expected_provider_id()
        )

    async def machine_for_memory_checks(self) -> MachineView:
        """Return the machine, which was read live by then where the request could be granted."""
        return await self.machine()

    async def address_provider(self) -> ProviderName | None:
        """Return the provider of the evidence."""
        return self.request.evidence.provider

    @fact
    async def first_object(self) -> JsonObject | None:
        """Return the object of the first request, as it was when its answer came or later."""
        ref = await self.ref()
        return await self.source.first_request(ref) if ref is not None else None

    @fact
    async def first(self) -> NodeRequest | None:
        """Return the first request, parsed; None where there is none that a node could have filed here."""
        first = await self.first_object()
        stored = summarize(first) if first is not None else None
        if first is None or stored is None or stored.is_kubelets:
            return None
        return parse_request(first, provider_id_oid=self.source.provider_id_oid)

    @fact
    async def attested(self) -> AttestedNode:
        """Return what the provider's verification proved; raises Denied, Unavailable or ChallengeRequired."""
        verification = Verification(
            request=self.request, verifier=await self.verifier(), ref=await self.ref(), first=await self.first()
        )
        return await self.source.verify(self, verification)

    @fact
    async def registered_names(self) -> Mapping[ProviderID, NodeName]:
        """Return the names that sections of the policy give to machines, whichever provider attests."""
        return dict(registered_names((await self.policy()).sections, self.source.verifier))

    async def name_sources(self, proven: NodeName | None) -> NameSources:
        """Return what is known of the machine's names beside the Machine."""
        return NameSources(
            recorded=await self.recorded_name(),
            registered=(await self.registered_names()).get((await self.machine()).provider_id),
            proven=proven,
            host=host_names(await self.infrastructure()) if await self.reads_host() else None,
        )

    async def node_name_source(self) -> str:
        """Say what gives the machine the requested name, once that is proven; empty where its record does."""
        if await self.recorded_name() is not None:
            return ""
        claims = node_names(await self.machine(), await self.name_sources((await self.attested()).proven_node_name))
        short = (await self.policy()).infrastructure.short_node_names
        claim = claim_to(claims, self.node_name, short_names=short)
        return claim.source if claim is not None else ""

    async def reads_host(self) -> bool:
        """Return whether the policy takes names from the host object of the request's machine."""
        host = known_kind((await self.machine()).infra).host
        if host is None or await self.recorded_name() is not None:
            return False
        return host.kind in (await self.policy()).infrastructure.host_objects

    @fact
    async def pool_makes_machines(self) -> bool:
        """Return whether each instance of the request's pool gets a Machine."""
        return await self.source.makes_machines(await self.machine())

    @fact
    async def node(self) -> JsonObject | None:
        """Return the Node of the requested name, read live."""
        return await self.source.node(self.node_name, by_node=self.request.is_renewal)

    async def holders_of_fingerprints(self) -> list[Attestation]:
        """Return the attestations of the cluster that pin what this machine proved itself by."""
        inventory, key = self.source.inventory, self.source.key
        pins = (await self.attested()).pins.items()
        return [
            holder for pin, value in pins for holder in inventory.fingerprint_holders(key, split_pin(pin)[1], value)
        ]


# The request itself, policy and provider


async def _bound_token(facts: CSRFacts) -> None:
    check_bound_token(facts.request, facts.source.key)


async def _policy(facts: CSRFacts) -> None:
    await facts.policy()


async def _attestor_authorized(facts: CSRFacts) -> None:
    check_authorized(await facts.policy(), facts.request.evidence.provider)


async def _evidence_version(facts: CSRFacts) -> None:
    evidence_versions.check(facts.request.evidence, (await facts.verifier()).versions)


async def _serving_allowed(facts: CSRFacts) -> None:
    check_serving_allowed(facts.request, await facts.policy(), secure=(await facts.verifier()).secure)


async def _first_request_named(facts: CSRFacts) -> None:
    await facts.ref()


# The machine


async def _one_machine(facts: CSRFacts) -> None:
    by_provider_id, by_token = await facts.by_provider_id(), await facts.by_token()
    recorded = facts.source.inventory.attestation(facts.source.key, facts.request.csr.provider_id)
    if recorded is not None and not by_provider_id:
        owner = facts.source.inventory.machine_by_uid(facts.source.key, recorded.owner_uid)
        check_record_owner(facts.request, recorded, owner)
    select_machine(facts.request, by_provider_id, by_token, (await facts.policy()).token_binding)


async def _own_provider_id(facts: CSRFacts) -> None:
    check_provider_id(facts.request, await facts.selected_machine(), await facts.expected_provider_id())


async def _one_provider_id(facts: CSRFacts) -> None:
    machine = await facts.machine()
    check_recorded_provider_id(machine, facts.source.inventory.attestations_of_owner(facts.source.key, machine.uid))
    if not machine.is_confirmed:
        check_renewable(machine, secure=(await facts.verifier()).secure)
    if not machine.is_confirmed and not (await facts.attestation()).has_joined:
        check_provider_id_free(machine, await facts.source.others_with_provider_id(machine))


async def _not_bound_otherwise(facts: CSRFacts) -> None:
    machine, secure = await facts.machine(), (await facts.verifier()).secure
    attestation = await facts.attestation()
    is_owned = facts.source.inventory.is_owner(facts.source.key, machine.provider_id, attestation.owner_uid)
    check_binding(facts.request, machine, attestation, secure=secure, is_owned=is_owned)


async def _joined_machine(facts: CSRFacts) -> None:
    recorded = facts.source.recorded_attestation(await facts.machine())
    check_client_certificate(facts.request, recorded, facts.source.now())


async def _node_name(facts: CSRFacts) -> None:
    # Before a platform is asked about it: a name that nothing but a proof could make this machine's may pass here.
    provable = provable_names(await facts.verifier(), (await facts.policy()).sections)
    proven = facts.node_name if provable is None else provable.get(facts.request.csr.provider_id)
    await _check_node_name(facts, proven)


async def _check_node_name(facts: CSRFacts, proven: NodeName | None) -> None:
    registered = await facts.registered_names()
    around = await facts.name_context()
    machines = (
        machine for machine, own in registered.items() if is_named(own, facts.node_name, short=around.short_names)
    )
    around = replace(around, registered=frozenset(machines))
    machine, sources = await facts.machine(), await facts.name_sources(proven)
    claims = node_names(machine, sources)
    if machine.is_pool_instance and not claims:
        check_pool_instance(machine, has_machines=await facts.pool_makes_machines())
    claim = claim_to(claims, facts.node_name, short_names=around.short_names)
    if claim is not None and claim.strength is not NameStrength.REGISTERED:
        around = replace(around, hosts=await facts.source.hosts_with_name(machine, facts.node_name))
    check_node_name(facts.request, machine, around, sources)


async def _not_answered(facts: CSRFacts) -> None:
    check_not_answered(facts.request, await facts.attestation())


async def _own_token(facts: CSRFacts) -> None:
    configured = facts.source.inventory.bootstrap_owner(facts.source.key, await facts.machine())
    binding = (await facts.policy()).token_binding
    await check_token_binding(facts.request, configured, binding, facts.source.named_tokens)


async def _first_request_pending(facts: CSRFacts) -> None:
    if await facts.ref() is None:  # a provider of one round
        return
    request, attestation, first = facts.request, await facts.attestation(), await facts.first()
    summary = facts.source.summary(await facts.first_object(), request, attestation)
    if first is None or summary is None or first.csr.der != request.csr.der:
        return  # the provider's verification says what is wrong with it
    check_first_request_pending(request, summary, key_of(await facts.first_object() or {}), attestation)


async def _verified(facts: CSRFacts) -> None:
    await facts.attested()


# What was proven, and live reads


async def _proven_node_name(facts: CSRFacts) -> None:
    await _check_node_name(facts, (await facts.attested()).proven_node_name)


async def _proven_machine(facts: CSRFacts) -> None:
    proven = (await facts.verifier()).machine_name(facts.request, await facts.attested())
    check_machine_name(await facts.machine(), proven)


async def _own_hardware(facts: CSRFacts) -> None:
    check_fingerprints(await facts.machine(), await facts.name_context(), await facts.holders_of_fingerprints())


async def _no_takeover(facts: CSRFacts) -> None:
    check_takeover(facts.request, await facts.attestation(), await facts.node())


async def _adoption(facts: CSRFacts) -> None:
    check_adoption(facts.request, await facts.machine(), await facts.attestation(), await facts.node())


# Directly before signing


async def _approval_known(facts: CSRFacts) -> None:
    check_approval_known(facts.request, await facts.attestation(), facts.state)


async def _new_key(facts: CSRFacts) -> None:
    holders = facts.source.inventory.key_holders(facts.source.key, facts.request.csr.spki_sha256)
    check_key_is_new(facts.request, await facts.machine(), await facts.attestation(), holders)


async def _answered_once(facts: CSRFacts) -> None:
    check_challenge_answered_once(facts.request, await facts.attestation(), await facts.attested())


async def _replacement_interval(facts: CSRFacts) -> None:
    check_replacement_interval(facts.request, await facts.attestation(), facts.source.now())


async def _live_certificates(facts: CSRFacts) -> None:
    check_live_certificates(facts.purpose, await facts.attestation(), facts.source.now())


async def _pinned_fingerprints(facts: CSRFacts) -> None:
    check_pinned_fingerprints(await facts.attestation(), await facts.attested())


CHECKS: Final[tuple[RequestCheck[CSRFacts], ...]] = (
    RequestCheck(
        "a token of no other machine",
        "A requester whose group binds it to a machine asks for that machine, and is bound to no other.",
        "identity rule 4",
        Needs.REQUEST,
        _bound_token,
    ),
    ACTIVE_CLUSTER,
    RequestCheck(
        "one policy",
        "Exactly one NodeAttestationPolicy selects the cluster, and it can be read.",
        "identity rule 0",
        Needs.MEMORY,
        _policy,
    ),
    RequestCheck(
        "attestor authorized",
        "The policy's authorizedAttestors name the provider; an empty list names none.",
        "identity rule 0",
        Needs.MEMORY,
        _attestor_authorized,
    ),
    RequestCheck(
        EVIDENCE,
        "The controller knows the provider and the version of its evidence.",
        "wire format",
        Needs.REQUEST,
        _evidence_version,
    ),
    RequestCheck(
        "attested serving request",
        "The policy signs attested serving requests, the provider is secure, and the node itself asks.",
        "serving certificates",
        Needs.MEMORY,
        _serving_allowed,
        purposes=_SERVING,
    ),
    RequestCheck(
        ROUND,
        "The evidence says whether the request is a first one or which first request it answers.",
        "wire format",
        Needs.REQUEST,
        _first_request_named,
    ),
    RequestCheck(
        "one Machine, alive and ready",
        "Bootstrap token and provider ID name exactly one machine of the cluster, and the same, which stays, is not "
        "paused, and has its bootstrap data.",
        "identity rule 1",
        Needs.MEMORY,
        _one_machine,
    ),
    RequestCheck(
        "the Machine's provider ID",
        "The provider ID is the one that the Machine has, or that its infrastructure objects give it.",
        "identity rule 1",
        Needs.MEMORY,
        _own_provider_id,
    ),
    MACHINE_NOW,
    RequestCheck(
        "not bound otherwise",
        "A machine that is bound already is not bound again by the holder of a token.",
        "identity rules 3 and 4",
        Needs.LIVE,
        _not_bound_otherwise,
    ),
    RequestCheck(
        "a joined machine",
        "The node's client certificate is on record, by the same provider, and has a key of its own.",
        "serving certificates",
        Needs.LIVE,
        _joined_machine,
        purposes=_SERVING,
    ),
    *sans.MEMORY_CHECKS,
    RequestCheck(
        "the Machine's node name",
        "The requested name is this machine's, or could be proven to be, and no other machine's.",
        "identity rule 2",
        Needs.LIVE,
        _node_name,
    ),
    RequestCheck(
        "first request not answered",
        "No certificate was issued for an answer to this first request.",
        "two steps",
        Needs.MEMORY,
        _not_answered,
        rounds=_FIRST,
    ),
    RequestCheck(
        "a token that the machine's bootstrap configuration names",
        "A bootstrap token is the one in the machine's own bootstrap configuration, as the policy's tokenBinding says.",
        "identity rule 4",
        Needs.LIVE,
        _own_token,
    ),
    RequestCheck(
        "one provider ID for one Machine",
        "The Machine joined with no other provider ID; until Cluster API confirms it, no other object has it.",
        "identity rule 1",
        Needs.LIVE,
        _one_provider_id,
    ),
    RequestCheck(
        "first request still pending",
        "The first request that is answered was not decided before.",
        "two steps",
        Needs.LIVE,
        _first_request_pending,
        rounds=_FINAL,
    ),
    RequestCheck(
        VERIFICATION,
        "The provider's verifier proves that the machine asks, bound to this request, signer and cluster.",
        "identity rule 6",
        Needs.PROVIDER,
        _verified,
    ),
    RequestCheck(
        "the Machine as proven",
        "The Machine that the evidence proves, if it proves one, is the one that the provider ID names.",
        "identity rule 7",
        Needs.PROVIDER,
        _proven_machine,
    ),
    RequestCheck(
        "the node name as proven",
        "The requested name is this machine's by its own sources, or the provider proved it.",
        "identity rule 2",
        Needs.PROVIDER,
        _proven_node_name,
    ),
    RequestCheck(
        "hardware of no other machine",
        "The TPM or secret that the machine proved itself by proves no other machine of the cluster.",
        "identity rule 3",
        Needs.PROVIDER,
        _own_hardware,
    ),
    NO_OTHER_NODE,
    RequestCheck(
        "no takeover of a node",
        "A token does not take over a Node whose machine never joined attested.",
        "identity rules 3 and 4",
        Needs.LIVE,
        _no_takeover,
    ),
    RequestCheck(
        "adoption of the machine's own node",
        "A node that never joined attested is the one that its machine has.",
        "identity rules 3 and 4",
        Needs.LIVE,
        _adoption,
    ),
    *sans.LIVE_CHECKS,
    RequestCheck(
        "approval by this controller",
        "A request that is approved already has a certificate on record.",
        "issuing",
        Needs.LIVE,
        _approval_known,
        stage=Stage.ISSUE,
    ),
    RequestCheck(
        "a key that was never certified",
        "The key has no certificate: not of this machine, not of another, not for the other purpose.",
        "issuing",
        Needs.LIVE,
        _new_key,
        stage=Stage.ISSUE,
    ),
    RequestCheck(
        "one key for one challenge",
        "The first request was not answered with another key.",
        "two steps",
        Needs.PROVIDER,
        _answered_once,
        stage=Stage.ISSUE,
    ),
    RequestCheck(
        "time between two keys",
        "Outside renewal a machine replaces a live key at most every ten minutes.",
        "issuing",
        Needs.LIVE,
        _replacement_interval,
        stage=Stage.ISSUE,
    ),
    RequestCheck(
        "number of live certificates",
        "A machine has a bounded number of live certificates.",
        "issuing",
        Needs.LIVE,
        _live_certificates,
        stage=Stage.ISSUE,
    ),
    RequestCheck(
        "fingerprints as pinned",
        "What was pinned for the machine is what it proved itself by.",
        "identity rule 3",
        Needs.PROVIDER,
        _pinned_fingerprints,
        stage=Stage.ISSUE,
    ),
)
"""In the order in which they run."""
