"""The identity rules: a table of what each refuses, and what passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import bound, make_member, make_request

from nodeattest_controller.model.attestation import Attestation, new_attestation
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
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import MachineName, NodeName, ProviderID

NOBODY = NameContext(claimants=(), holders=())
NODE = NodeName("node-0")
NOTHING = NameSources()
MEMBER, WITH_NODE, OF_POOL = make_member(), make_member(node_ref_name=NODE), make_member(kind="MachinePool")
OTHER = make_member(uid="m-1", provider_id=ProviderID("sandbox://other"))
AS_NODE = make_request(username="system:node:node-0")
REGISTERED: JsonObject = {"metadata": {"name": "node-0", "uid": "n-0"}, "spec": {"providerID": "sandbox://node-0"}}
OTHERS_NODE: JsonObject = {**REGISTERED, "spec": {"providerID": "sandbox://other"}}


# Rule 1: the machine


@pytest.mark.parametrize(
    ("provider_id", "members", "error", "reason"),
    [
        ("sandbox://node-0", [], Unavailable, Reason.MACHINE_NOT_FOUND),
        ("", [MEMBER], Unavailable, Reason.MACHINE_NOT_FOUND),
        ("sandbox://node-0", [MEMBER, make_member(uid="m-1")], Denied, Reason.MACHINE_AMBIGUOUS),
        ("sandbox://node-0", [make_member(deleting=True)], Denied, Reason.MACHINE_DELETING),
        ("sandbox://node-0", [make_member(bootstrap_ready=False)], Unavailable, Reason.MACHINE_NOT_READY),
        ("sandbox://node-0", [make_member(paused=True)], Unavailable, Reason.MACHINE_NOT_READY),
    ],
)
def test_a_request_finds_one_machine_that_is_ready_or_none(
    provider_id: str, members: list[MachineView], error: type[Exception], reason: Reason
) -> None:
    with pytest.raises(error, match=reason):
        find_machine(make_request(provider_id=provider_id), members)


def test_a_machine_that_has_a_node_renews_whatever_becomes_of_its_bootstrap_data() -> None:
    member = replace(WITH_NODE, bootstrap_ready=False)
    assert find_machine(make_request(), [member]) is member


# Rule 2: the node's name


@pytest.mark.parametrize("asked", ["node-1", "node-00", "node-0.lan", "ode-0"])
def test_another_machines_name_is_denied(asked: str) -> None:
    with pytest.raises(Denied, match=Reason.NODE_NAME_MISMATCH):
        check_node_name(make_request(node=asked), MEMBER, NOBODY, NOTHING)


def test_a_pool_instance_without_a_proven_name_is_denied() -> None:
    with pytest.raises(Denied, match=Reason.NODE_NAME_MISMATCH):
        check_node_name(make_request(), OF_POOL, NOBODY, NOTHING)


def liar(**changes: object) -> MachineView:
    """Return another Machine, whose guest reports the name."""
    given = {"name": "liar", "uid": "m-1", "provider_id": ProviderID("sandbox://liar")}
    return make_member(**{**given, "addresses": (("Hostname", "node-0"),), **changes})


def check(machine: MachineView, *claimants: MachineView, sources: NameSources = NOTHING) -> None:
    around = NameContext(claimants=[machine, *claimants], holders=())
    check_node_name(make_request(), machine, around, sources)


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (MEMBER, OTHER),
        (make_member(node_ref_name=NODE), liar(node_ref_name=NODE)),
        (make_member(name="another", addresses=(("Hostname", "node-0"),)), liar()),
        (make_member(provider_id=ProviderID("")), liar(name="node-0", provider_id=ProviderID(""))),
        (liar(), MEMBER),
        (liar(), WITH_NODE),
        (liar(), make_member(given_name=NODE)),
        (liar(), make_member(infra=ContractReference("g", "k", "node-0"))),
    ],
)
def test_a_name_that_two_machines_claim_is_denied(mine: MachineView, other: MachineView) -> None:
    with pytest.raises(Denied, match=Reason.MACHINE_AMBIGUOUS):
        check(mine, other)


@pytest.mark.parametrize(
    ("mine", "other", "sources"),
    [
        (MEMBER, MEMBER, NOTHING),  # its own claim
        (MEMBER, replace(OTHER, deleting=True), NOTHING),
        (WITH_NODE, liar(), NOTHING),
        (make_member(infra=ContractReference("g", "k", "node-0")), liar(), NOTHING),
        (make_member(name="another"), liar(name="node-0"), NameSources(recorded=NODE)),
        (make_member(name="another"), liar(name="node-0"), NameSources(registered=NODE)),
        (make_member(name="another"), liar(), NameSources(proven=NODE)),
        (make_member(name="another"), liar(), NameSources(host={"BareMetalHost": ("node-0",)})),
    ],
)
def test_of_two_claims_the_stronger_one_counts(mine: MachineView, other: MachineView, sources: NameSources) -> None:
    check(mine, other, sources=sources)


def test_a_node_that_joined_keeps_its_name_and_gets_no_other() -> None:
    """As after ``clusterctl move``, which drops nodeRef and addresses; a nodeRef is what a Node says of itself."""
    for machine in (make_member(name="another"), OF_POOL, make_member(node_ref_name=NodeName("another"))):
        check(machine, liar(), sources=NameSources(recorded=NODE))
    with pytest.raises(Denied, match=Reason.NODE_NAME_MISMATCH):
        check(MEMBER, sources=NameSources(recorded=NodeName("another")))


def test_a_name_that_the_policy_gives_to_another_machine_is_taken() -> None:
    around = replace(NOBODY, registered=frozenset({ProviderID("sandbox://owner")}))
    for member in (MEMBER, WITH_NODE, make_member(given_name=NODE)):
        with pytest.raises(Denied, match=Reason.NODE_NAME_TAKEN):
            check_node_name(make_request(), member, around, NOTHING)


def test_a_short_name_stands_for_one_fully_qualified_name_only() -> None:
    mine = make_member(name="another", addresses=(("Hostname", "node-0.a.example"),))
    other = liar(addresses=(("Hostname", "node-0.b.example"),))
    around = NameContext(claimants=[mine], holders=(), short_names=True)
    check_node_name(make_request(), mine, around, NOTHING)
    for context in (replace(around, short_names=False), replace(around, claimants=[mine, other])):
        with pytest.raises(Denied):
            check_node_name(make_request(), mine, context, NOTHING)
    with pytest.raises(Denied):
        check_node_name(make_request(node="node-0.b.example"), MEMBER, around, NOTHING)


# Rule 3: the name in Nodes and ledgers


@pytest.mark.parametrize(
    ("mine", "holders"),
    [(MEMBER, [bound(OTHER)]), (OF_POOL, [bound(OF_POOL), bound(liar())])],
    ids=["of a Machine", "of a pool's instance"],
)
def test_a_name_bound_to_another_machine_is_denied(mine: MachineView, holders: list[Attestation]) -> None:
    with pytest.raises(Denied, match=Reason.NODE_NAME_TAKEN):
        check_no_hijack(mine, replace(NOBODY, holders=holders), None)


@pytest.mark.parametrize(
    ("node", "member", "taken"),
    [
        (REGISTERED, {}, False),
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
    with pytest.raises(Denied, match=Reason.NODE_NAME_TAKEN):
        check_no_hijack(make_member(**member), NOBODY, node)


def test_the_ledger_of_a_machine_that_is_gone_is_waited_out() -> None:
    gone = NameContext(claimants=(), holders=[bound(OTHER)], is_alive=lambda _: False)
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        check_no_hijack(MEMBER, gone, None)
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        check_fingerprints(MEMBER, gone, [bound(OTHER)])


def test_one_tpm_or_secret_serves_one_machine() -> None:
    with pytest.raises(Denied, match=Reason.MACHINE_AMBIGUOUS):
        check_fingerprints(MEMBER, NOBODY, [bound(OTHER)])
    check_fingerprints(MEMBER, NOBODY, [bound(MEMBER)])


# Rules 3 and 4: bound machines

RESET: Mapping[str, Any] = {"was_reset": True}


@pytest.mark.parametrize(
    ("member", "ledger", "options"),
    [
        (WITH_NODE, replace(bound(WITH_NODE), issued=(), **RESET), {"secure": True}),
        (WITH_NODE, replace(bound(WITH_NODE), issued=(), **RESET), {"secure": False}),
        (WITH_NODE, bound(WITH_NODE), {"secure": True}),
        (MEMBER, bound(MEMBER, make_request().csr.spki_sha256), {"secure": True}),
    ],
    ids=["reset", "insecure and reset", "a lost key", "a first key"],
)
def test_a_machine_may_be_bound(member: MachineView, ledger: Attestation, options: dict[str, bool]) -> None:
    check_binding(make_request(), member, ledger, **options)


def test_the_same_key_may_ask_again_and_a_node_without_a_ledger_may_renew() -> None:
    request = make_request()
    check_binding(request, MEMBER, bound(MEMBER, request.csr.spki_sha256), secure=False)
    check_binding(AS_NODE, WITH_NODE, new_attestation(WITH_NODE), secure=True)


def test_a_machine_with_a_node_but_no_ledger_takes_no_first_join() -> None:
    with pytest.raises(Denied, match=Reason.MACHINE_ALREADY_BOUND) as refused:
        check_binding(make_request(), WITH_NODE, new_attestation(WITH_NODE), secure=True)
    assert "kubelet-authenticator adopt" in refused.value.remedy
    assert "nodeattest machines adopt --open" in refused.value.remedy


@pytest.mark.parametrize(
    "ledger", [bound(MEMBER), replace(bound(WITH_NODE), **RESET)], ids=["bound", "reset and bound"]
)
def test_an_insecure_machine_is_not_bound_to_a_second_key(ledger: Attestation) -> None:
    with pytest.raises(Denied, match=Reason.MACHINE_ALREADY_BOUND):
        check_binding(make_request(), MEMBER, ledger, secure=False)


def test_a_pools_instance_that_became_a_machine_keeps_its_ledger_and_a_predecessors_is_waited_out() -> None:
    joined = replace(new_attestation(make_member(kind="MachinePool", name="pool", uid="p-0")), resource_version="1")
    check_binding(AS_NODE, MEMBER, joined, secure=True, is_owned=True)
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        check_binding(AS_NODE, MEMBER, joined, secure=True, is_owned=False)


# Adoption

RECORD = make_member(kind="MachineRecord", given_name=NODE)


@pytest.mark.parametrize(
    ("member", "node"),
    [
        (make_member(node_ref_name=NODE, node_ref_uid="n-0"), REGISTERED),
        (OF_POOL, REGISTERED),
        (RECORD, REGISTERED),  # nobody writes its nodeRef
    ],
)
def test_a_node_that_joined_before_is_adopted_as_the_machines_own(member: MachineView, node: JsonObject) -> None:
    check_adoption(AS_NODE, member, new_attestation(member), node)


@pytest.mark.parametrize(
    ("member", "node"),
    [
        (MEMBER, REGISTERED),
        (WITH_NODE, None),
        (OF_POOL, None),
        (RECORD, None),
        (RECORD, {**REGISTERED, "spec": {}}),
        (RECORD, OTHERS_NODE),
    ],
)
def test_a_node_that_its_machine_does_not_know_waits_for_adoption(member: MachineView, node: JsonObject | None) -> None:
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        check_adoption(AS_NODE, member, new_attestation(member), node)


def test_no_token_takes_over_a_node_that_stands_and_never_joined_attested() -> None:
    with pytest.raises(Denied, match=Reason.MACHINE_ALREADY_BOUND) as refused:
        check_takeover(make_request(), new_attestation(RECORD), REGISTERED)
    assert "nodeattest machines adopt --open" in refused.value.remedy
    assert "delete the Node" in refused.value.remedy


def test_who_joined_attested_or_was_reset_or_has_a_token_is_neither_adopted_nor_a_takeover() -> None:
    new, reset = new_attestation(MEMBER), replace(new_attestation(MEMBER), **RESET)
    for request, ledger in ((make_request(), new), (AS_NODE, reset), (AS_NODE, bound(MEMBER))):
        check_adoption(request, MEMBER, ledger, None)
    for request, ledger in ((make_request(), bound(MEMBER)), (make_request(), reset), (AS_NODE, new)):
        check_takeover(request, ledger, REGISTERED)
    check_takeover(make_request(), new, None)


# Rule 7: what evidence says of the machine


def test_evidence_that_names_this_machine_or_none_passes() -> None:
    check_machine_name(MEMBER, None)
    check_machine_name(MEMBER, MachineName("node-0"))


@pytest.mark.parametrize(
    ("member", "proven"), [(MEMBER, "node-1"), (MEMBER, "node-0 "), (MEMBER, ""), (OF_POOL, "node-0")]
)
def test_evidence_that_names_another_machine_is_denied(member: MachineView, proven: str) -> None:
    with pytest.raises(Denied, match=Reason.EVIDENCE_FOR_OTHER_MACHINE):
        check_machine_name(member, MachineName(proven))
