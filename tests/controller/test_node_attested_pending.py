"""Whose word on a machine is listened to, and what of it is written down."""

from __future__ import annotations

from datetime import timedelta

import pytest
from node_attested_kit import KEY, NOW, grant, ledger, machine, refusal

from nodeattest_controller.controllers.node_attested.conditions import (
    RefusedClaim,
    condition_of_machine,
    condition_of_pool,
)
from nodeattest_controller.controllers.node_attested.pending import (
    CLAIM_BURST,
    CLAIMS_BURST,
    PendingOutcomes,
)
from nodeattest_controller.controllers.node_attested.refusal_recorder import (
    RefusalRecorder,
)
from nodeattest_controller.model.attestation import Attestation, render_attestation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.refusals import (
    MAX_MESSAGE,
    MAX_REASONS,
    RecordedRefusal,
    Requester,
    latest_refusals,
    parse_refusals,
    render_refusals,
)
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity
from nodeattest_controller.runtime.indexes import Inventory
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID

BAD, LESS = Reason.PCR_VALUE_NOT_ALLOWED, Reason.ATTESTOR_NOT_AUTHORIZED
ME, OTHER, NEW = machine(0), machine(1), machine(2, node=False)
STRANGER = {"by_node": False, "username": "system:bootstrap:abcdef"}


class Rig:
    """What is pending in a cluster with two machines that joined and one that did not."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.inventory = Inventory()
        for member in (ME, OTHER, NEW):
            self.inventory.put_machine(f"fleet/{member.name}", document(member))
        for member in (ME, OTHER):
            self.put(member, ledger(member))
        self.decisions = PendingOutcomes(KEY, self.inventory, lambda: self.seconds)

    def put(self, member: MachineView, known: Attestation) -> None:
        self.inventory.put_attestation(f"fleet/{known.name}", render_attestation(known, member, "signer"))


def document(member: MachineView) -> JsonObject:
    return {
        "apiVersion": member.api_version,
        "kind": "Machine",
        "metadata": {"name": member.name, "namespace": "fleet", "uid": member.uid},
        "spec": {"clusterName": "c", "providerID": member.provider_id},
        "status": {"nodeRef": {"name": member.node_ref_name}} if member.node_ref_name else {},
    }


def test_a_stolen_token_says_nothing_of_a_machine_that_has_joined() -> None:
    rig = Rig()
    for reason in Reason:
        assert not rig.decisions.refused(refusal(reason, **STRANGER))
    assert rig.decisions.verdict(ME.provider_id, ledger(ME)) is None
    assert rig.decisions.claim(ME.provider_id) is None


def test_a_node_says_nothing_of_another_nodes_machine() -> None:
    rig = Rig()
    for reason in Reason:
        spoken = refusal(reason, node_name=NodeName("node-1"), username="system:node:node-1")
        assert not rig.decisions.refused(spoken)
    assert rig.decisions.verdict(ME.provider_id, ledger(ME)) is None


def test_a_provider_id_that_no_machine_or_two_machines_have_says_nothing() -> None:
    rig = Rig()
    assert not rig.decisions.refused(refusal(BAD, provider_id=ProviderID("sandbox://nobody")))
    twin: JsonObject = {**document(ME), "metadata": {"name": "twin", "namespace": "fleet", "uid": "m-9"}}
    rig.inventory.put_machine("fleet/twin", twin)
    assert not rig.decisions.refused(refusal(BAD))


def test_another_tokens_flood_keeps_no_claim_from_being_shown() -> None:
    rig = Rig()
    own = {**STRANGER, "username": "system:bootstrap:ghijkl"}

    def flood(provider_id: ProviderID) -> None:
        for _ in range(2 * CLAIM_BURST):
            rig.decisions.refused(refusal(BAD, provider_id=provider_id, **STRANGER))

    flood(NEW.provider_id)
    assert rig.decisions.refused(refusal(LESS, provider_id=NEW.provider_id, **own))
    assert rig.decisions.claim(NEW.provider_id) == RefusedClaim(NOW, LESS)


def test_a_flood_of_claims_on_many_machines_is_rationed_for_the_cluster() -> None:
    rig = Rig()
    fleet = [machine(number, node=False) for number in range(10, 10 + 2 * CLAIMS_BURST)]
    for member in fleet:
        rig.inventory.put_machine(f"fleet/{member.name}", document(member))
    reported = [rig.decisions.refused(refusal(BAD, provider_id=one.provider_id, **STRANGER)) for one in fleet]
    assert reported.count(True) == CLAIMS_BURST


def test_a_certificate_that_was_in_the_ledger_already_clears_a_refusal_since() -> None:
    rig = Rig()
    refused = ledger(ME, refused=BAD, since=NOW - timedelta(minutes=1))
    rig.decisions.granted(grant(ME))
    found = rig.decisions.verdict(ME.provider_id, refused)
    assert found is not None
    assert found.verdict == "Approved"
    assert rig.decisions.verdict(ME.provider_id, ledger(ME, refused=BAD, since=NOW + timedelta(minutes=1))) is None


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
    condition = condition_of_machine(JOINED, ledger(JOINED, refused=reason), NOW)
    assert told(condition) == (ConditionStatus.FALSE, reason)
    assert condition is not None
    assert condition.severity is severity
    assert "good until 2026-01-14" in condition.message


def test_a_refused_claim_is_in_the_message_of_a_machine_that_has_not_joined_and_nowhere_else() -> None:
    claim = RefusedClaim(NOW, Reason.ENDORSEMENT_KEY_UNTRUSTED)
    shown = condition_of_machine(UNJOINED, None, NOW, claim)
    assert told(shown) == told(condition_of_machine(UNJOINED, None, NOW))
    assert "a request that claims this machine was refused at 2026-01-02T03:04:05Z" in shown.message
    assert "EndorsementKeyUntrusted" in shown.message
    for member, known in ((JOINED, ledger(JOINED)), (JOINED, None)):
        assert condition_of_machine(member, known, NOW, claim) == condition_of_machine(member, known, NOW)


def test_a_pool_counts_its_instances() -> None:
    good, ended = ledger(JOINED), ledger(JOINED, ends=NOW)
    failed = ledger(JOINED, refused=Reason.PCR_VALUE_NOT_ALLOWED)
    assert told(condition_of_pool([], NOW)) == (ConditionStatus.UNKNOWN, "NoInstances")
    assert told(condition_of_pool([good, good], NOW)) == (ConditionStatus.TRUE, "Attested")
    some = condition_of_pool([good, None, ended, failed], NOW)
    assert told(some) == (ConditionStatus.FALSE, "InstancesNotAttested")
    assert some.message == "1 of 4 instances attested"
    assert told(condition_of_pool([good, None], NOW)) == (ConditionStatus.UNKNOWN, "InstancesNotAttested")


# Refused requests on their way to a machine's record: who asked, and how often they are written


TOKEN = {"by_node": False, "username": "system:bootstrap:abcdef"}
OTHER_NODE = {"node_name": NodeName("node-1"), "username": "system:node:node-1"}
ADMIN = {"by_node": False, "username": "kubernetes-admin"}


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Requester.NODE),
        (TOKEN, Requester.BOOTSTRAP),
        (OTHER_NODE, Requester.OTHER),
        (ADMIN, Requester.OTHER),
        ({"by_node": False, "username": "system:node:node-0"}, Requester.OTHER),  # a node without the nodes' group
    ],
)
def test_who_asked_is_what_the_server_authenticated(changes: dict[str, object], expected: Requester) -> None:
    unwritten = RefusalRecorder(Clock())
    assert unwritten.note(refusal(BAD, message=f"{BAD}: expected a, got b", **changes), ledger(ME))
    [found] = unwritten.due(ME.provider_id)
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
