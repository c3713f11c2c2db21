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
    check_no_hijack,
    check_node_name,
    check_takeover,
    find_machine,
)
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.node_names import NameSources
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID

NOBODY = NameContext(claimants=(), holders=())
NODE = NodeName("node-0")
NOTHING = NameSources()
MEMBER, WITH_NODE, OF_POOL = make_member(), make_member(node_ref_name=NODE), make_member(kind="MachinePool")
OTHER = make_member(uid="m-1", provider_id=ProviderID("sandbox://other"))
AS_NODE = make_request(username="system:node:node-0")
REGISTERED: JsonObject = {"metadata": {"name": "node-0", "uid": "n-0"}, "spec": {"providerID": "sandbox://node-0"}}


# The rest of rules 1 and 3 is in the attacks (D4)


def test_a_request_without_a_provider_id_finds_no_machine() -> None:
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_FOUND):
        find_machine(make_request(provider_id=""), [MEMBER])


# Rule 2: the node's name


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


# Rule 3: the name in Nodes and ledgers


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
    ("member", "node"), [(MEMBER, REGISTERED), (WITH_NODE, None), (RECORD, {**REGISTERED, "spec": {}})]
)
def test_a_node_that_its_machine_does_not_know_waits_for_adoption(member: MachineView, node: JsonObject | None) -> None:
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        check_adoption(AS_NODE, member, new_attestation(member), node)


def test_no_token_takes_over_a_node_that_stands_and_never_joined_attested() -> None:
    with pytest.raises(Denied, match=Reason.MACHINE_ALREADY_BOUND):
        check_takeover(make_request(), new_attestation(RECORD), REGISTERED)


def test_who_joined_attested_or_was_reset_or_has_a_token_is_neither_adopted_nor_a_takeover() -> None:
    new, reset = new_attestation(MEMBER), replace(new_attestation(MEMBER), **RESET)
    for request, ledger in ((make_request(), new), (AS_NODE, reset), (AS_NODE, bound(MEMBER))):
        check_adoption(request, MEMBER, ledger, None)
    for request, ledger in ((make_request(), bound(MEMBER)), (make_request(), reset), (AS_NODE, new)):
        check_takeover(request, ledger, REGISTERED)
    check_takeover(make_request(), new, None)
