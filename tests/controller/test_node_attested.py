"""What the condition NodeAttested says, what is done to Nodes, and whose requests count: from the ledger alone."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_attested_world import KEY, NOW, NodeAttestedWorld, document, grant, ledger, machine, policy, record, refusal

from nodeattest_controller.controllers.node_attested import conditions, on_failure, outcomes
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.attestation_status import (
    MAX_MESSAGE,
    MAX_REASONS,
    RecordedRefusal,
    Requester,
    latest_refusals,
    parse_refusals,
    render_refusals,
)
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity
from nodeattest_controller.runtime.indexes import Inventory
from nodeattest_parsing.objects import flag, items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, Purpose

OTHER, NEW = machine(1), machine(2, node=False)
STRANGER = {"by_node": False, "username": "system:bootstrap:abcdef"}
BAD = Reason.PCR_VALUE_NOT_ALLOWED
ME = machine()
FAILING = ledger(ME, refused=BAD)
OTHERS: list[JsonValue] = [{"key": "dedicated", "value": "db", "effect": "NoExecute"}]
ACTIONS = [action for action in FailureAction if action is not FailureAction.NONE]


@pytest.mark.parametrize(
    ("nodes", "share", "most"), [(1, 10, 1), (9, 10, 1), (20, 10, 2), (29, 10, 2), (200, 1, 2), (5, 100, 5)]
)
def test_the_share_bounds_how_many_and_one_is_always_allowed(nodes: int, share: int, most: int) -> None:
    rule = policy(share=share)
    assert on_failure.decide(ME, FAILING, rule, on_failure.Around(nodes=nodes, treated=most - 1)) is FailureAction.TAINT
    assert isinstance(
        on_failure.decide(ME, FAILING, rule, on_failure.Around(nodes=nodes, treated=most)), on_failure.Withhold
    )


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40), st.integers(1, 100), st.sampled_from(ACTIONS))
def test_however_they_come_the_share_and_the_control_plane_hold(
    fleet: list[tuple[bool, bool]], share: int, action: FailureAction
) -> None:
    rule = policy(action, share)
    members = [machine(number, control_plane=cp) for number, (cp, _failing) in enumerate(fleet)]
    known: dict[str, Attestation] = {}
    for member, (_cp, failing) in zip(members, fleet, strict=True):
        known[member.name] = ledger(member, refused=BAD if failing else None)
    treated: list[MachineView] = []
    for member in members:
        around = on_failure.around_of((one, known[one.name]) for one in members)
        decided = on_failure.decide(member, known[member.name], rule, around)
        if isinstance(decided, FailureAction):
            assert not (member.is_control_plane and decided is FailureAction.DELETE_NODE)
            known[member.name] = ledger(member, refused=BAD, treated=decided)
            treated.append(member)
    assert len(treated) <= max(1, len(members) * share // 100)
    planes = [member for member in members if member.is_control_plane]
    assert sum(member.is_control_plane for member in treated) <= min(1, max(0, len(planes) - 1))


# What is written


def node(*, taints: list[JsonValue] | None = None, unschedulable: bool = False) -> JsonObject:
    spec: JsonObject = {"providerID": "sandbox://node-0"}
    if taints:
        spec["taints"] = taints
    if unschedulable:
        spec["unschedulable"] = True
    return {"metadata": {"name": "node-0", "uid": "n", "resourceVersion": "7"}, "spec": spec}


def applied(before: JsonObject, action: FailureAction) -> JsonObject:
    """Apply the patch as RFC 7386 says, one level deep."""
    patch = on_failure.node_patch(before, action)
    if patch is None:
        return before
    assert text(patch, "metadata", "resourceVersion") == "7"
    merged = {**mapping(before, "spec"), **mapping(patch, "spec")}
    return {**before, "spec": {name: value for name, value in merged.items() if value is not None}}


@pytest.mark.parametrize("action", [FailureAction.TAINT, FailureAction.CORDON])
@pytest.mark.parametrize("taints", [[], OTHERS])
@pytest.mark.parametrize("unschedulable", [False, True])
def test_what_was_done_is_undone_and_nothing_else(
    action: FailureAction, taints: list[JsonValue], unschedulable: bool
) -> None:
    before = node(taints=taints, unschedulable=unschedulable)
    treated = applied(before, action)
    assert [text(taint, "key") for taint in items(treated, "spec", "taints")][-1] == on_failure.TAINT_KEY
    assert flag(treated, "spec", "unschedulable") is (unschedulable or action is FailureAction.CORDON)
    assert on_failure.node_patch(treated, action) is None
    assert applied(treated, FailureAction.NONE) == before


@given(st.integers(1, 40), st.integers(1, 99), st.integers(0, 5))
def test_new_machines_that_cannot_join_make_no_room_to_delete_more(nodes: int, share: int, absent: int) -> None:
    rule = policy(FailureAction.DELETE_NODE, share)
    fleet: list[tuple[MachineView, Attestation | None]] = [
        (one := machine(n), ledger(one, refused=BAD)) for n in range(nodes)
    ]
    deleted = 0
    for _round in range(2 * nodes):
        for number, (member, known) in enumerate(fleet):
            if known is not None and isinstance(
                on_failure.decide(member, known, rule, on_failure.around_of(fleet, absent=absent)), FailureAction
            ):
                deleted += 1  # the Machine is replaced by one that the same policy refuses
                fleet[number] = (machine(100 + deleted, node=False), None)
    assert deleted <= max(1, (nodes + absent) * share // 100)
    assert deleted >= (0 if absent else 1)


# What a refusal says of a machine: a table over every reason, and only its own node's word counts


ROOMS = ("providers", "controller")
TREE = Path(__file__).parents[2]
LATE = re.compile(r"Unavailable\(\s*Reason\.([A-Z_]+)")


def test_reasons_that_end_a_wait_do_not_count_against_a_machine() -> None:
    sources = [path.read_text(encoding="utf-8") for room in ROOMS for path in (TREE / room).rglob("*.py")]
    late = {Reason[name] for source in sources for name in LATE.findall(source)}
    assert Reason.PLATFORM_UNAVAILABLE in late
    assert late.isdisjoint(conditions.DENIAL_SEVERITIES)


def test_a_request_that_was_not_evaluated_does_not_count_against_a_machine() -> None:
    for reason in Reason:
        assert conditions.severity_of(refusal(reason, evaluated=False)) is conditions.DenialSeverity.NOTHING


@pytest.mark.parametrize(
    ("reason", "client", "serving"),
    [
        (Reason.PCR_VALUE_NOT_ALLOWED, conditions.DenialSeverity.MACHINE, conditions.DenialSeverity.MACHINE),
        (Reason.TPM_CLOCK_REVERSED, conditions.DenialSeverity.MACHINE, conditions.DenialSeverity.MACHINE),
        (Reason.MACHINE_ALREADY_BOUND, conditions.DenialSeverity.RENEWAL, conditions.DenialSeverity.NOTHING),
        (Reason.CHALLENGE_EXPIRED, conditions.DenialSeverity.NOTHING, conditions.DenialSeverity.NOTHING),
    ],
)
def test_a_refusal_weighs_what_it_says_of_the_machine(
    reason: Reason, client: conditions.DenialSeverity, serving: conditions.DenialSeverity
) -> None:
    assert conditions.severity_of(refusal(reason)) is client
    assert conditions.severity_of(replace(refusal(reason), purpose=Purpose.SERVING)) is serving
    assert conditions.is_failing(ledger(ME, refused=reason)) is (client is conditions.DenialSeverity.MACHINE)


# Machines that are not there yet, or no more, are counted where Nodes are deleted


DELETED = ledger(ME, refused=Reason.PCR_VALUE_NOT_ALLOWED, treated=FailureAction.DELETE_NODE)


async def test_what_cluster_api_has_yet_to_bring_up_and_what_was_deleted_is_counted() -> None:
    now, world = 0.0, NodeAttestedWorld()
    world.joined(ME)
    world.machine(replace(machine(1, node=False), provider_id=ProviderID("")))
    pool = world.management_api.objects[world.pool(machine(2))]
    mapping(pool, "spec")["replicas"] = 3
    async with world.running():
        absent = on_failure.MissingMachines(KEY, world.management, lambda: now)
        assert await absent.count([(ME, ledger(ME, treated=FailureAction.TAINT))]) == 3
        assert await absent.count([]) == 3  # a tainted one that is gone holds no place
        assert await absent.count([(ME, DELETED)]) == 3
        assert await absent.count([]) == 4
        assert await absent.count([(ME, DELETED)]) == 3
        now = on_failure.HELD
        assert await absent.count([]) == 3


# Whose outcome is listened to, and what of it is written down


class Rig:
    """What is pending in a cluster with two machines that joined and one that did not."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.inventory = Inventory()
        for member in (ME, OTHER, NEW):
            self.inventory.put_machine(f"fleet/{member.name}", document(member))
        for member in (ME, OTHER):
            known = ledger(member)
            self.inventory.put_attestation(f"fleet/{known.name}", record(member, known))
        self.outcomes = outcomes.CSROutcomes(KEY, self.inventory, lambda: self.seconds)


def test_a_provider_id_that_no_machine_or_two_machines_have_says_nothing() -> None:
    rig = Rig()
    assert not rig.outcomes.refused(refusal(BAD, provider_id=ProviderID("sandbox://nobody")))
    twin: JsonObject = {**document(ME), "metadata": {"name": "twin", "namespace": "fleet", "uid": "m-9"}}
    rig.inventory.put_machine("fleet/twin", twin)
    assert not rig.outcomes.refused(refusal(BAD))


def test_a_node_speaks_for_no_other_machine_and_takes_back_no_worse_refusal() -> None:
    rig = Rig()
    rig.outcomes.refused(refusal(BAD, provider_id=OTHER.provider_id))
    assert rig.outcomes.decision(OTHER.provider_id, ledger(OTHER)) is None
    rig.outcomes.refused(refusal(BAD))
    assert rig.outcomes.decision(ME.provider_id, ledger(ME)) is not None
    milder = Rig()
    milder.outcomes.refused(refusal(Reason.ATTESTOR_NOT_AUTHORIZED))
    assert milder.outcomes.decision(ME.provider_id, FAILING) is None
    rig.outcomes.refused(refusal(BAD, at=NOW - timedelta(days=999)))  # before its certificate
    assert rig.outcomes.decision(ME.provider_id, ledger(ME)) is None


def test_another_tokens_flood_keeps_no_claim_from_being_shown() -> None:
    rig = Rig()
    for _ in range(2 * outcomes.OTHERS_BURST):
        rig.outcomes.refused(refusal(BAD, provider_id=NEW.provider_id, **STRANGER))
    own = {**STRANGER, "username": "system:bootstrap:ghijkl"}
    assert rig.outcomes.refused(refusal(Reason.ATTESTOR_NOT_AUTHORIZED, provider_id=NEW.provider_id, **own))


def test_a_flood_of_claims_on_many_machines_is_rationed_for_the_cluster_and_takes_none_of_the_nodes_own() -> None:
    rig = Rig()
    fleet = [machine(number, node=False) for number in range(10, 10 + 2 * outcomes.OTHERS_BURST)]
    for member in fleet:
        rig.inventory.put_machine(f"fleet/{member.name}", document(member))
    reported = [rig.outcomes.refused(refusal(BAD, provider_id=one.provider_id, **STRANGER)) for one in fleet]
    assert reported.count(True) == outcomes.OTHERS_BURST
    assert rig.outcomes.refused(refusal(BAD))
    assert [one.requester for one in rig.outcomes.refusals(ME.provider_id)] == [Requester.NODE]


def test_a_node_whose_refusals_alternate_replaces_its_last_decision_a_few_times() -> None:
    rig, known, written = Rig(), ledger(ME), 0
    for number in range(4 * outcomes.DECISION_BURST):
        rig.outcomes.refused(refusal((BAD, Reason.TPM_CLOCK_REVERSED)[number % 2]))
        decision = rig.outcomes.decision(ME.provider_id, known)
        rig.outcomes.decision_written(ME.provider_id)
        if decision is not None:
            known, written = replace(known, verdict=decision), written + 1
    assert written == 1 + outcomes.DECISION_BURST


def test_a_certificate_that_was_in_the_ledger_already_clears_a_refusal_since() -> None:
    rig = Rig()
    refused = ledger(ME, refused=BAD, since=NOW - timedelta(minutes=1))
    rig.outcomes.granted(grant(ME))
    found = rig.outcomes.decision(ME.provider_id, refused)
    assert found is not None
    assert found.verdict == "Approved"
    assert rig.outcomes.decision(ME.provider_id, ledger(ME, refused=BAD, since=NOW + timedelta(minutes=1))) is None


# The condition NodeAttested: from the ledger and the time alone


UNJOINED, JOINED = machine(node=False), machine()


def told(condition: Condition | None) -> tuple[ConditionStatus, str]:
    assert condition is not None
    return condition.status, condition.reason


@pytest.mark.parametrize(
    ("reason", "severity"),
    [(Reason.PCR_VALUE_NOT_ALLOWED, Severity.ERROR), (Reason.ATTESTOR_NOT_AUTHORIZED, Severity.WARNING)],
)
def test_a_refused_renewal_has_its_reason(reason: Reason, severity: Severity) -> None:
    condition = conditions.condition_of_machine(JOINED, ledger(JOINED, refused=reason), NOW)
    assert told(condition) == (ConditionStatus.FALSE, reason)
    assert condition is not None
    assert condition.severity is severity
    assert "good until 2026-01-14" in condition.message


def test_a_refused_claim_is_in_the_message_of_a_machine_that_has_not_joined_and_nowhere_else() -> None:
    claim = conditions.RefusedClaim(NOW, Reason.ENDORSEMENT_KEY_UNTRUSTED)
    shown = conditions.condition_of_machine(UNJOINED, None, NOW, claim)
    assert told(shown) == told(conditions.condition_of_machine(UNJOINED, None, NOW))
    assert "a request that claims this machine was refused at 2026-01-02T03:04:05Z" in shown.message
    assert "EndorsementKeyUntrusted" in shown.message
    for member, known in ((JOINED, ledger(JOINED)), (JOINED, None)):
        assert conditions.condition_of_machine(member, known, NOW, claim) == conditions.condition_of_machine(
            member, known, NOW
        )


def test_a_pool_counts_its_instances() -> None:
    good, ended = ledger(JOINED), ledger(JOINED, ends=NOW)
    failed = ledger(JOINED, refused=Reason.PCR_VALUE_NOT_ALLOWED)
    assert told(conditions.condition_of_pool([], NOW)) == (ConditionStatus.UNKNOWN, "NoInstances")
    assert told(conditions.condition_of_pool([good, good], NOW)) == (ConditionStatus.TRUE, "Attested")
    some = conditions.condition_of_pool([good, None, ended, failed], NOW)
    assert told(some) == (ConditionStatus.FALSE, "InstancesNotAttested")
    assert some.message == "1 of 4 instances attested"
    assert told(conditions.condition_of_pool([good, None], NOW)) == (ConditionStatus.UNKNOWN, "InstancesNotAttested")


# Refused requests on their way to a machine's record: who asked, and how often they are written


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Requester.NODE),
        ({"by_node": False, "username": "system:bootstrap:abcdef"}, Requester.BOOTSTRAP),
        ({"node_name": NodeName("node-1"), "username": "system:node:node-1"}, Requester.OTHER),
        ({"by_node": False, "username": "kubernetes-admin"}, Requester.OTHER),
        ({"by_node": False, "username": "system:node:node-0"}, Requester.OTHER),  # a node without the nodes' group
    ],
)
def test_who_asked_is_what_the_server_authenticated(changes: dict[str, object], expected: Requester) -> None:
    rig = Rig()
    assert rig.outcomes.refused(refusal(BAD, message=f"{BAD}: expected a, got b", **changes))
    [found] = rig.outcomes.refusals(ME.provider_id)
    assert (found.requester, found.reason, found.request) == (expected, BAD, "csr-1")
    assert found.message == "expected a, got b"


# What a record keeps of refused requests: the last ones, bounds, and what it does with what it cannot read


def refused(
    reason: str, seconds: int = 0, who: Requester = Requester.NODE, *, request: str = "", message: str = ""
) -> RecordedRefusal:
    at = NOW + timedelta(seconds=seconds)
    return RecordedRefusal(requester=who, reason=reason, time=at, request=request, message=message)


def test_a_token_pushes_out_nothing_that_the_node_was_refused_for() -> None:
    own = [refused(f"Own{number}") for number in range(MAX_REASONS)]
    flood = [refused(f"Token{number}", number, Requester.BOOTSTRAP) for number in range(100)]
    kept = latest_refusals([*own, *flood], NOW)
    assert {one.reason for one in kept if one.requester is Requester.NODE} == {one.reason for one in own}
    tokens = [one.reason for one in kept if one.requester is Requester.BOOTSTRAP]
    assert tokens == [f"Token{number}" for number in range(99, 99 - MAX_REASONS, -1)]


def test_what_is_written_is_read_again_cut_and_printable() -> None:
    written = render_refusals([refused("A", request="csr-1", message="x" * MAX_MESSAGE + "y")])
    [found] = parse_refusals({"status": {"refusals": [*written]}})
    assert (found.reason, found.request, found.requester, found.time) == ("A", "csr-1", Requester.NODE, NOW)
    assert found.message == "x" * (MAX_MESSAGE - 1) + "…"
    [hostile] = render_refusals([refused("A", message="a\x1b[2J\nb")])
    assert str(hostile["message"]).isprintable()


def test_what_cannot_be_read_is_none() -> None:
    good = render_refusals([refused("A")])[0]
    broken: list[JsonObject] = [
        {**good, "requester": "Ghost"}, {**good, "time": "soon"}, {**good, "reason": ""}, {},
    ]  # fmt: skip
    assert parse_refusals({"status": {"refusals": [*broken, good]}}) == parse_refusals({"status": {"refusals": [good]}})
    assert parse_refusals({}) == ()
