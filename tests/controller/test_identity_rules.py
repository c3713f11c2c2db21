"""The identity rules: a table of what each refuses, and what passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import bound, decide, make_member, make_request

from nodeattest_controller.controllers.csr.checks import adoption, no_takeover
from nodeattest_controller.controllers.csr.machine_checks import not_bound_otherwise
from nodeattest_controller.model.attestation import Attestation, new_attestation
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.node_names import NameContext, NameSources, check_node_name
from nodeattest_controller.model.resolver import find_machine
from nodeattest_controller.verification.checks import no_other_node
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID
from nodeattest_providers.insecure.verifier import InsecureSigner
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import ClusterAPISigner

NOBODY = NameContext(claimants=(), holders=())
NODE = NodeName("node-0")
NOTHING = NameSources()
MEMBER, WITH_NODE, OF_POOL = make_member(), make_member(node_ref_name=NODE), make_member(kind="MachinePool")
OTHER = make_member(uid="m-1", provider_id=ProviderID("sandbox://other"))
AS_NODE = make_request(username="system:node:node-0")
REGISTERED: JsonObject = {"metadata": {"name": "node-0", "uid": "n-0"}, "spec": {"providerID": "sandbox://node-0"}}


# Rule 2: the node's name; the rest of rules 1 and 3 is in the attacks (D4)


def liar(**changes: object) -> MachineView:
    """Return another Machine, whose guest reports the name."""
    given = {"name": "liar", "uid": "m-1", "provider_id": ProviderID("sandbox://liar")}
    return make_member(**{**given, "addresses": (("Hostname", "node-0"),), **changes})


def check(machine: MachineView, *claimants: MachineView, sources: NameSources = NOTHING) -> None:
    around = NameContext(claimants=[machine, *claimants], holders=())
    check_node_name(NODE, machine, around, sources)


def test_a_machine_with_a_node_has_had_its_bootstrap_data() -> None:
    machine = make_member(bootstrap_ready=False, node_ref_name=NODE)
    assert find_machine(make_request(), [machine]) is machine


@pytest.mark.parametrize(
    ("mine", "other"),
    [
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


def test_a_node_of_that_name_must_be_the_machines_own() -> None:
    machine, others = make_member(node_ref_uid="n"), {"spec": {"providerID": "sandbox://node-1"}}
    for node in (REGISTERED, {"spec": {}, "metadata": {"uid": "n"}}, None):
        decide(no_other_node, machine=machine, name_context=NOBODY, node=node)
    with pytest.raises(Denied, match=Reason.NODE_NAME_TAKEN):
        decide(no_other_node, machine=machine, name_context=NOBODY, node={**others, "metadata": {"uid": "n"}})


# Rules 3 and 4: bound machines

RESET: Mapping[str, Any] = {"was_reset": True}


@pytest.mark.parametrize(
    ("member", "ledger", "verifier"),
    [
        (WITH_NODE, replace(bound(WITH_NODE), issued=(), **RESET), TpmSigner()),
        (WITH_NODE, replace(bound(WITH_NODE), issued=(), **RESET), InsecureSigner()),
        (WITH_NODE, bound(WITH_NODE), TpmSigner()),
        (MEMBER, bound(MEMBER, make_request().csr.spki_sha256), TpmSigner()),
    ],
    ids=["reset", "insecure and reset", "a lost key", "a first key"],
)
def test_a_machine_may_be_bound(member: MachineView, ledger: Attestation, verifier: ClusterAPISigner) -> None:
    decide(not_bound_otherwise, machine=member, attestation=ledger, verifier=verifier)


def test_a_pools_instance_that_became_a_machine_keeps_its_ledger_and_a_predecessors_is_waited_out() -> None:
    joined = replace(new_attestation(make_member(kind="MachinePool", name="pool", uid="p-0")), resource_version="1")
    facts = {"machine": MEMBER, "attestation": joined, "verifier": TpmSigner()}
    decide(not_bound_otherwise, AS_NODE, **facts, owns_record=True)
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        decide(not_bound_otherwise, AS_NODE, **facts, owns_record=False)


# Adoption

RECORD = make_member(kind="MachineRecord", given_name=NODE)


@pytest.mark.parametrize(
    ("member", "node"),
    [
        (make_member(node_ref_name=NODE, node_ref_uid="n-0"), REGISTERED),
        (OF_POOL, REGISTERED),
        (RECORD, REGISTERED),  # nobody writes its nodeRef
        (replace(RECORD, node_ref_name=NODE), {"metadata": {"uid": "n-0"}, "spec": {}}),  # unless an operator does
    ],
)
def test_a_node_that_joined_before_is_adopted_as_the_machines_own(member: MachineView, node: JsonObject) -> None:
    decide(adoption, AS_NODE, machine=member, attestation=new_attestation(member), node=node)


@pytest.mark.parametrize(
    ("member", "node"), [(MEMBER, REGISTERED), (WITH_NODE, None), (RECORD, {**REGISTERED, "spec": {}})]
)
def test_a_node_that_its_machine_does_not_know_waits_for_adoption(member: MachineView, node: JsonObject | None) -> None:
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        decide(adoption, AS_NODE, machine=member, attestation=new_attestation(member), node=node)


def test_who_joined_attested_or_was_reset_or_has_a_token_is_neither_adopted_nor_a_takeover() -> None:
    new, reset = new_attestation(MEMBER), replace(new_attestation(MEMBER), **RESET)
    for request, ledger in ((make_request(), new), (AS_NODE, reset), (AS_NODE, bound(MEMBER))):
        decide(adoption, request, machine=MEMBER, attestation=ledger, node=None)
    for request, ledger in ((make_request(), bound(MEMBER)), (make_request(), reset), (AS_NODE, new)):
        decide(no_takeover, request, attestation=ledger, node=REGISTERED)
    decide(no_takeover, attestation=new, node=None)
