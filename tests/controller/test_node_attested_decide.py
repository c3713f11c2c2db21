"""What is done to Nodes: how many, which, and undone exactly."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_attested_kit import KEY, ledger, machine, policy, refusal
from node_attested_world import NodeAttestedWorld

from nodeattest_controller.controllers.node_attested import conditions
from nodeattest_controller.controllers.node_attested.conditions import DENIAL_SEVERITIES, DenialSeverity, severity_of
from nodeattest_controller.controllers.node_attested.decide import (
    TAINT_KEY,
    Around,
    NoAction,
    Remediate,
    Withhold,
    around_of,
    decide,
    is_failing,
    node_patch,
)
from nodeattest_controller.controllers.node_attested.pending import HELD, MissingMachines
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction
from nodeattest_parsing.objects import flag, items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderID, Purpose

BAD = Reason.PCR_VALUE_NOT_ALLOWED
ME = machine()
FAILING = ledger(ME, refused=BAD)
OTHERS: list[JsonValue] = [{"key": "dedicated", "value": "db", "effect": "NoExecute"}]
ROOM = Around(nodes=10)
ACTIONS = [action for action in FailureAction if action is not FailureAction.NONE]


def test_nothing_is_done_by_default_nor_in_audit() -> None:
    assert decide(ME, FAILING, policy(FailureAction.NONE), ROOM) is NoAction.LEAVE
    assert decide(ME, FAILING, policy(enforce=False), ROOM) is NoAction.LEAVE


@pytest.mark.parametrize(
    ("nodes", "share", "most"), [(1, 10, 1), (9, 10, 1), (20, 10, 2), (29, 10, 2), (200, 1, 2), (5, 100, 5)]
)
def test_the_share_bounds_how_many_and_one_is_always_allowed(nodes: int, share: int, most: int) -> None:
    rule = policy(share=share)
    assert isinstance(decide(ME, FAILING, rule, Around(nodes=nodes, treated=most - 1)), Remediate)
    assert isinstance(decide(ME, FAILING, rule, Around(nodes=nodes, treated=most)), Withhold)


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
        around = around_of((one, known[one.name]) for one in members)
        decided = decide(member, known[member.name], rule, around)
        if isinstance(decided, Remediate):
            assert not (member.is_control_plane and decided.action is FailureAction.DELETE_NODE)
            known[member.name] = ledger(member, refused=BAD, treated=decided.action)
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
    patch = node_patch(before, action)
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
    assert [text(taint, "key") for taint in items(treated, "spec", "taints")][-1] == TAINT_KEY
    assert flag(treated, "spec", "unschedulable") is (unschedulable or action is FailureAction.CORDON)
    assert node_patch(treated, action) is None
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
                decide(member, known, rule, around_of(fleet, absent=absent)), Remediate
            ):
                deleted += 1  # the Machine is replaced by one that the same policy refuses
                fleet[number] = (machine(100 + deleted, node=False), None)
    assert deleted <= max(1, (nodes + absent) * share // 100)
    assert deleted >= (0 if absent else 1)


# What a refusal says of a machine: a table over every reason, and only its own node's word counts


ROOMS = ("providers", "controller")
TREE = Path(__file__).parents[2]
LATE = re.compile(r"Unavailable\(\s*Reason\.([A-Z_]+)")


def test_no_reason_has_two_severities() -> None:
    listed = [*conditions._RENEWAL, *conditions._MACHINE]  # pyright: ignore[reportPrivateUsage] - a dict would hide one that stands in two lists
    assert len(listed) == len(set(listed))


def test_reasons_that_end_a_wait_do_not_count_against_a_machine() -> None:
    sources = [path.read_text(encoding="utf-8") for room in ROOMS for path in (TREE / room).rglob("*.py")]
    late = {Reason[name] for source in sources for name in LATE.findall(source)}
    assert Reason.PLATFORM_UNAVAILABLE in late
    assert late.isdisjoint(DENIAL_SEVERITIES)


def test_nobody_but_the_node_speaks_for_its_machine() -> None:
    for reason in Reason:
        assert severity_of(refusal(reason, by_node=False, username="system:bootstrap:abcdef")) is DenialSeverity.NOTHING


def test_a_request_that_was_not_evaluated_does_not_count_against_a_machine() -> None:
    for reason in Reason:
        assert severity_of(refusal(reason, evaluated=False)) is DenialSeverity.NOTHING


@pytest.mark.parametrize(
    ("reason", "client", "serving"),
    [
        (Reason.PCR_VALUE_NOT_ALLOWED, DenialSeverity.MACHINE, DenialSeverity.MACHINE),
        (Reason.TPM_CLOCK_REVERSED, DenialSeverity.MACHINE, DenialSeverity.MACHINE),
        (Reason.MACHINE_ALREADY_BOUND, DenialSeverity.RENEWAL, DenialSeverity.NOTHING),
        (Reason.CHALLENGE_EXPIRED, DenialSeverity.NOTHING, DenialSeverity.NOTHING),
    ],
)
def test_a_refusal_weighs_what_it_says_of_the_machine(
    reason: Reason, client: DenialSeverity, serving: DenialSeverity
) -> None:
    assert severity_of(refusal(reason)) is client
    assert severity_of(replace(refusal(reason), purpose=Purpose.SERVING)) is serving
    assert is_failing(ledger(ME, refused=reason)) is (client is DenialSeverity.MACHINE)


# Machines that are not there yet, or no more, are counted where Nodes are deleted


DELETED = ledger(ME, refused=Reason.PCR_VALUE_NOT_ALLOWED, treated=FailureAction.DELETE_NODE)


async def test_what_cluster_api_has_yet_to_bring_up_and_what_was_deleted_is_counted() -> None:
    now, world = 0.0, NodeAttestedWorld()
    world.joined(ME)
    world.machine(replace(machine(1, node=False), provider_id=ProviderID("")))
    pool = world.management_api.objects[world.pool(machine(2))]
    mapping(pool, "spec")["replicas"] = 3
    async with world.running():
        absent = MissingMachines(KEY, world.management, lambda: now)
        assert await absent.count([(ME, ledger(ME, treated=FailureAction.TAINT))]) == 3
        assert await absent.count([]) == 3  # a tainted one that is gone holds no place
        assert await absent.count([(ME, DELETED)]) == 3
        assert await absent.count([]) == 4
        assert await absent.count([(ME, DELETED)]) == 3
        now = HELD
        assert await absent.count([]) == 3
