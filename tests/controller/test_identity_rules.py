"""The identity rules, one law a test."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import bound, make_member, make_request

from nodeattest_controller.model.attestation import new_attestation
from nodeattest_controller.model.identity_rules import (
    NameContext,
    check_adoption,
    check_binding,
    check_fingerprints,
    check_machine_name,
    check_no_hijack,
    check_node_name,
    check_takeover,
    find_machine,
)
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.node_names import NameSources
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import MachineName, NodeName, ProviderID
from nodeattest_providers.verifier_interface import NodeRequest

NOBODY = NameContext(claimants=(), holders=())
NODE = NodeName("node-0")
NOTHING = NameSources()


# Rule 1


def test_a_machine_that_is_not_there_is_waited_for() -> None:
    with pytest.raises(Unavailable) as refused:
        find_machine(make_request(), [])
    assert refused.value.reason is Reason.MACHINE_NOT_FOUND


def test_a_request_without_a_provider_id_has_no_machine() -> None:
    with pytest.raises(Unavailable) as refused:
        find_machine(make_request(provider_id=""), [make_member()])
    assert refused.value.reason is Reason.MACHINE_NOT_FOUND


def test_two_machines_with_one_provider_id_are_denied() -> None:
    with pytest.raises(Denied) as refused:
        find_machine(make_request(), [make_member(), make_member(name="node-1", uid="m-1")])
    assert refused.value.reason is Reason.MACHINE_AMBIGUOUS


def test_a_machine_on_its_way_out_is_denied() -> None:
    with pytest.raises(Denied) as refused:
        find_machine(make_request(), [make_member(deleting=True)])
    assert refused.value.reason is Reason.MACHINE_DELETING


@pytest.mark.parametrize("state", [{"bootstrap_ready": False}, {"paused": True}])
def test_a_machine_that_is_not_ready_is_waited_for(state: dict[str, bool]) -> None:
    with pytest.raises(Unavailable) as refused:
        find_machine(make_request(), [make_member(**state)])
    assert refused.value.reason is Reason.MACHINE_NOT_READY


def test_a_machine_that_has_a_node_renews_whatever_becomes_of_its_bootstrap_data() -> None:
    member = make_member(bootstrap_ready=False, node_ref_name=NodeName("node-0"))
    assert find_machine(make_request(), [member]) is member


# Rule 2


@pytest.mark.parametrize("asked", ["node-1", "node-00", "node-0.lan", "ode-0"])
def test_another_machines_name_is_denied(asked: str) -> None:
    with pytest.raises(Denied) as refused:
        check_node_name(make_request(node=asked), make_member(), NOBODY, NOTHING)
    assert refused.value.reason is Reason.NODE_NAME_MISMATCH


def test_a_pool_instance_without_a_proven_name_is_denied() -> None:
    with pytest.raises(Denied) as refused:
        check_node_name(make_request(), make_member(kind="MachinePool"), NOBODY, NOTHING)
    assert refused.value.reason is Reason.NODE_NAME_MISMATCH


def test_a_name_that_two_machines_claim_is_denied() -> None:
    other = make_member(uid="m-1", provider_id=ProviderID("sandbox://other"))
    with pytest.raises(Denied) as refused:
        check_node_name(make_request(), make_member(), NameContext(claimants=[other], holders=()), NOTHING)
    assert refused.value.reason is Reason.MACHINE_AMBIGUOUS


def liar(**changes: object) -> MachineView:
    """Return another Machine, whose guest reports the name."""
    given = {"name": "liar", "uid": "m-1", "provider_id": ProviderID("sandbox://liar")}
    return make_member(**{**given, "addresses": (("Hostname", "node-0"),), **changes})


def check(machine: MachineView, *claimants: MachineView, sources: NameSources = NOTHING) -> None:
    around = NameContext(claimants=[machine, *claimants], holders=())
    check_node_name(make_request(), machine, around, sources)


@pytest.mark.parametrize(
    "changes", [{}, {"node_ref_name": NODE}, {"given_name": NODE}, {"infra": ContractReference("g", "k", "node-0")}]
)
def test_a_claim_by_addresses_takes_no_name_from_a_machine_that_has_it_by_more(changes: dict[str, object]) -> None:
    mine = make_member(**changes)
    check(mine, liar())
    with pytest.raises(Denied) as refused:
        check(liar(), mine)
    assert refused.value.reason is Reason.MACHINE_AMBIGUOUS


@pytest.mark.parametrize(
    ("sources", "other"),
    [
        (NameSources(recorded=NODE), {"name": "node-0"}),
        (NameSources(registered=NODE), {"name": "node-0"}),
        (NameSources(proven=NODE), {}),
        (NameSources(host={"BareMetalHost": ("node-0",)}), {}),
    ],
)
def test_of_two_claims_the_stronger_one_counts(sources: NameSources, other: dict[str, object]) -> None:
    check(make_member(name="another"), liar(**other), sources=sources)


def test_claims_of_one_strength_exclude_each_other() -> None:
    pairs = [
        (make_member(node_ref_name=NODE), liar(node_ref_name=NODE)),
        (make_member(), liar(name="node-0")),
        (make_member(name="another", addresses=(("Hostname", "node-0"),)), liar()),
    ]
    for mine, other in pairs:
        with pytest.raises(Denied) as refused:
            check(mine, other)
        assert refused.value.reason is Reason.MACHINE_AMBIGUOUS


def test_two_machines_without_a_provider_id_are_two() -> None:
    nameless = make_member(provider_id=ProviderID(""))
    with pytest.raises(Denied) as refused:
        check(nameless, liar(name="node-0", provider_id=ProviderID("")))
    assert refused.value.reason is Reason.MACHINE_AMBIGUOUS


def test_a_node_that_joined_keeps_its_name_and_gets_no_other() -> None:
    """As after ``clusterctl move``, which drops nodeRef and addresses; a nodeRef is what a Node says of itself."""
    joined = NameSources(recorded=NODE)
    check(make_member(name="another"), liar(), sources=joined)
    check(make_member(kind="MachinePool"), liar(), sources=joined)
    check(make_member(node_ref_name=NodeName("another")), sources=joined)
    with pytest.raises(Denied) as refused:
        check(make_member(), sources=NameSources(recorded=NodeName("another")))
    assert refused.value.reason is Reason.NODE_NAME_MISMATCH


def test_a_pools_instance_is_not_named_by_the_record_of_another() -> None:
    mine, other = make_member(kind="MachinePool"), bound(liar())
    with pytest.raises(Denied) as refused:
        check_no_hijack(mine, NameContext(claimants=(), holders=[bound(mine), other]), None)
    assert refused.value.reason is Reason.NODE_NAME_TAKEN


def test_a_name_that_the_policy_gives_to_another_machine_is_taken() -> None:
    owner = ProviderID("sandbox://owner")
    for changes in ({"node_ref_name": "node-0"}, {"given_name": "node-0"}, {}):
        around = NameContext(claimants=(), holders=(), registered=frozenset({owner}))
        with pytest.raises(Denied) as refused:
            check_node_name(make_request(), make_member(**changes), around, NOTHING)
        assert refused.value.reason is Reason.NODE_NAME_TAKEN


def test_a_short_name_stands_for_one_fully_qualified_name_only() -> None:
    mine = make_member(name="another", addresses=(("Hostname", "node-0.a.example"),))
    other = liar(addresses=(("Hostname", "node-0.b.example"),))
    around = NameContext(claimants=[mine], holders=(), short_names=True)
    check_node_name(make_request(), mine, around, NOTHING)
    for context in (replace(around, short_names=False), replace(around, claimants=[mine, other])):
        with pytest.raises(Denied):
            check_node_name(make_request(), mine, context, NOTHING)
    with pytest.raises(Denied):
        check_node_name(make_request(node="node-0.b.example"), make_member(), around, NOTHING)


def test_a_machines_own_claim_does_not_count_against_it() -> None:
    check(make_member())


# Rule 3


def test_a_name_bound_to_another_machine_is_denied() -> None:
    other = bound(make_member(provider_id=ProviderID("sandbox://other")))
    with pytest.raises(Denied) as refused:
        check_no_hijack(make_member(), NameContext(claimants=(), holders=[other]), None)
    assert refused.value.reason is Reason.NODE_NAME_TAKEN


@pytest.mark.parametrize(
    ("node", "member", "taken"),
    [
        ({"spec": {"providerID": "sandbox://node-0"}}, {}, False),
        ({"spec": {"providerID": "sandbox://node-1"}}, {}, True),
        ({"spec": {"providerID": "sandbox://node-1"}, "metadata": {"uid": "n"}}, {"node_ref_uid": "n"}, True),
        ({"spec": {}, "metadata": {"uid": "n"}}, {"node_ref_uid": "n"}, False),
        ({"spec": {}, "metadata": {"uid": "n"}}, {"node_ref_uid": "other"}, True),
        ({"spec": {}, "metadata": {"uid": "n"}}, {}, True),
        (None, {}, False),
    ],
)
def test_a_node_of_that_name_must_be_the_machines_own(
    node: JsonObject | None, member: dict[str, object], taken: bool
) -> None:
    if not taken:
        check_no_hijack(make_member(**member), NOBODY, node)
        return
    with pytest.raises(Denied) as refused:
        check_no_hijack(make_member(**member), NOBODY, node)
    assert refused.value.reason is Reason.NODE_NAME_TAKEN


def test_a_machine_that_is_going_away_claims_no_name() -> None:
    other = make_member(uid="m-1", provider_id=ProviderID("sandbox://other"), deleting=True)
    check_node_name(make_request(), make_member(), NameContext(claimants=[other], holders=()), NOTHING)


def test_the_ledger_of_a_machine_that_is_gone_is_waited_out() -> None:
    other = bound(make_member(provider_id=ProviderID("sandbox://other")))
    gone = NameContext(claimants=(), holders=[other], is_alive=lambda _: False)
    for check in (
        lambda: check_no_hijack(make_member(), gone, None),
        lambda: check_fingerprints(make_member(), gone, [other]),
    ):
        with pytest.raises(Unavailable) as refused:
            check()
        assert refused.value.reason is Reason.MACHINE_NOT_READY


def test_one_tpm_or_secret_serves_one_machine() -> None:
    other = bound(make_member(provider_id=ProviderID("sandbox://other")))
    with pytest.raises(Denied) as refused:
        check_fingerprints(make_member(), NOBODY, [other])
    assert refused.value.reason is Reason.MACHINE_AMBIGUOUS
    check_fingerprints(make_member(), NOBODY, [bound(make_member())])


# Rules 3 and 4: bound machines


def test_a_machine_with_a_node_but_no_ledger_takes_no_first_join() -> None:
    member = make_member(node_ref_name="node-0")
    with pytest.raises(Denied) as refused:
        check_binding(make_request(), member, new_attestation(member), secure=True)
    assert refused.value.reason is Reason.MACHINE_ALREADY_BOUND


@pytest.mark.parametrize("secure", [True, False])
def test_a_machine_whose_ledger_was_reset_joins_anew_although_it_has_a_node(*, secure: bool) -> None:
    member = make_member(node_ref_name="node-0")
    cleared = replace(bound(member), issued=(), was_reset=True)
    check_binding(make_request(), member, cleared, secure=secure)


def test_a_reset_opens_an_insecure_machine_for_one_key() -> None:
    member = make_member(node_ref_name="node-0")
    with pytest.raises(Denied) as refused:
        check_binding(make_request(), member, replace(bound(member), was_reset=True), secure=False)
    assert refused.value.reason is Reason.MACHINE_ALREADY_BOUND


def test_an_insecure_machine_is_not_bound_to_a_second_key() -> None:
    member = make_member()
    with pytest.raises(Denied) as refused:
        check_binding(make_request(), member, bound(member), secure=False)
    assert refused.value.reason is Reason.MACHINE_ALREADY_BOUND


def test_a_proven_machine_may_replace_a_lost_key() -> None:
    member = make_member(node_ref_name="node-0")
    check_binding(make_request(), member, bound(member), secure=True)


def test_the_same_key_may_ask_again() -> None:
    member, request = make_member(), make_request()
    check_binding(request, member, bound(member, request.csr.spki_sha256), secure=False)


def test_a_node_without_a_ledger_may_renew() -> None:
    member = make_member(node_ref_name="node-0")
    check_binding(make_request(username="system:node:node-0"), member, new_attestation(member), secure=True)


def test_a_pools_instance_that_became_a_machine_keeps_its_ledger() -> None:
    pool = make_member(kind="MachinePool", name="pool", uid="p-0")
    joined = replace(new_attestation(pool), resource_version="1")
    machine, renewal = make_member(), make_request(username="system:node:node-0")
    check_binding(renewal, machine, joined, secure=True, is_owned=True)
    with pytest.raises(Unavailable):
        check_binding(renewal, machine, joined, secure=True, is_owned=False)


def test_a_predecessors_ledger_is_waited_out() -> None:
    member = make_member()
    with pytest.raises(Unavailable) as refused:
        check_binding(make_request(), member, replace(bound(member), owner_uid="gone"), secure=True)
    assert refused.value.reason is Reason.MACHINE_NOT_READY


# Adoption


def as_node() -> NodeRequest:
    return make_request(username="system:node:node-0")


REGISTERED: JsonObject = {"metadata": {"name": "node-0", "uid": "n-0"}, "spec": {"providerID": "sandbox://node-0"}}


def test_a_node_that_joined_before_is_adopted_as_the_machines_own() -> None:
    ours = make_member(node_ref_name=NodeName("node-0"), node_ref_uid="n-0")
    check_adoption(as_node(), ours, new_attestation(ours), REGISTERED)
    pool = make_member(kind="MachinePool")
    check_adoption(as_node(), pool, new_attestation(pool), REGISTERED)


@pytest.mark.parametrize(
    ("changes", "node"),
    [({}, REGISTERED), ({"node_ref_name": "node-0"}, None), ({"kind": "MachinePool"}, None)],
    ids=["no nodeRef", "no Node", "no Node of a pool"],
)
def test_a_node_that_its_machine_does_not_know_waits_for_adoption(
    changes: dict[str, object], node: JsonObject | None
) -> None:
    member = make_member(**changes)
    with pytest.raises(Unavailable) as refused:
        check_adoption(as_node(), member, new_attestation(member), node)
    assert refused.value.reason is Reason.MACHINE_NOT_READY


def test_a_recorded_machines_node_is_adopted_by_its_name_and_provider_id() -> None:
    """Nobody writes the nodeRef of a record."""
    record = make_member(kind="MachineRecord", given_name=NodeName("node-0"))
    check_adoption(as_node(), record, new_attestation(record), REGISTERED)
    others: tuple[JsonObject | None, ...] = (
        None,
        {**REGISTERED, "spec": {}},
        {**REGISTERED, "spec": {"providerID": "sandbox://other"}},
    )
    for node in others:
        with pytest.raises(Unavailable) as refused:
            check_adoption(as_node(), record, new_attestation(record), node)
        assert refused.value.reason is Reason.MACHINE_NOT_READY


def test_no_token_takes_over_a_node_that_stands_and_never_joined_attested() -> None:
    member = make_member(kind="MachineRecord", given_name=NodeName("node-0"))
    with pytest.raises(Denied) as refused:
        check_takeover(make_request(), new_attestation(member), REGISTERED)
    assert refused.value.reason is Reason.MACHINE_ALREADY_BOUND
    assert "nodeattest machines adopt --open" in refused.value.remedy
    assert "delete the Node" in refused.value.remedy


def test_a_token_joins_where_no_node_stands_or_its_machine_joined_attested_or_was_reset() -> None:
    member = make_member()
    check_takeover(make_request(), new_attestation(member), None)
    check_takeover(make_request(), bound(member), REGISTERED)
    check_takeover(make_request(), replace(new_attestation(member), was_reset=True), REGISTERED)
    check_takeover(as_node(), new_attestation(member), REGISTERED)


def test_a_node_of_the_name_with_another_provider_id_is_not_adopted() -> None:
    ours = make_member(node_ref_name=NodeName("node-0"), node_ref_uid="n-0")
    others: tuple[JsonObject, ...] = (
        {**REGISTERED, "spec": {"providerID": "sandbox://other"}},
        {"metadata": {"name": "node-0", "uid": "n-1"}, "spec": {}},
    )
    for node in others:
        with pytest.raises(Denied) as refused:
            check_no_hijack(ours, NOBODY, node)
        assert refused.value.reason is Reason.NODE_NAME_TAKEN


def test_who_joined_attested_or_was_reset_or_has_a_token_is_not_adopted_but_judged_as_ever() -> None:
    member = make_member()
    check_adoption(make_request(), member, new_attestation(member), None)
    check_adoption(as_node(), member, replace(new_attestation(member), was_reset=True), None)
    check_adoption(as_node(), member, bound(member), None)


def test_the_refusal_of_a_token_says_how_a_node_is_adopted() -> None:
    member = make_member(node_ref_name=NodeName("node-0"))
    with pytest.raises(Denied) as refused:
        check_binding(make_request(), member, new_attestation(member), secure=True)
    assert "kubelet-authenticator adopt" in refused.value.remedy
    assert "nodeattest machines adopt --open" in refused.value.remedy


# Rule 7


@pytest.mark.parametrize("proven", [None, MachineName("node-0")])
def test_evidence_that_names_this_machine_or_none_passes(proven: MachineName | None) -> None:
    check_machine_name(make_member(), proven)


@pytest.mark.parametrize(
    ("member", "proven"),
    [
        (make_member(), "node-1"),
        (make_member(), "node-0 "),
        (make_member(), ""),
        (make_member(kind="MachinePool"), "node-0"),
    ],
)
def test_evidence_that_names_another_machine_is_denied(member: MachineView, proven: str) -> None:
    with pytest.raises(Denied) as refused:
        check_machine_name(member, MachineName(proven))
    assert refused.value.reason is Reason.EVIDENCE_FOR_OTHER_MACHINE
