"""Whose word on a machine is listened to, and what of it is written down."""

from __future__ import annotations

from datetime import timedelta

import pytest
from node_attested_kit import ISSUED, KEY, NOW, grant, ledger, machine, refusal

from nodeattest_controller.controllers.node_attested.pending import (
    CLAIM_BURST,
    CLAIM_RATE,
    CLAIMS_BURST,
    CLAIMS_RATE,
    VERDICT_BURST,
    PendingOutcomes,
)
from nodeattest_controller.controllers.node_attested.refused_claim import RefusedClaim
from nodeattest_controller.model.attestation import Attestation, render_attestation
from nodeattest_controller.model.last_decision import DENIED, LastDecision
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.indexes import Inventory
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import NodeName, ProviderID

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


def test_a_refusal_of_the_nodes_own_request_is_written_down() -> None:
    rig = Rig()
    assert rig.decisions.refused(refusal(BAD))
    assert rig.decisions.verdict(ME.provider_id, ledger(ME)) == LastDecision(DENIED, BAD, NOW)


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


def test_refused_claims_on_a_machine_that_has_not_joined_are_shown_rarely() -> None:
    rig = Rig()
    claim = refusal(BAD, provider_id=NEW.provider_id, node_name=NodeName("node-2"), **STRANGER)
    assert [rig.decisions.refused(claim) for _ in range(100)].count(True) == CLAIM_BURST
    assert rig.decisions.claim(NEW.provider_id) == RefusedClaim(NOW, BAD)
    rig.seconds += 1 / CLAIM_RATE
    assert rig.decisions.refused(refusal(LESS, provider_id=NEW.provider_id, **STRANGER))
    assert rig.decisions.claim(NEW.provider_id) == RefusedClaim(NOW, LESS)


def test_a_claim_above_the_rate_is_shown_later() -> None:
    rig = Rig()
    for _ in range(CLAIM_BURST):
        rig.decisions.refused(refusal(BAD, provider_id=NEW.provider_id, **STRANGER))
    assert not rig.decisions.refused(refusal(LESS, provider_id=NEW.provider_id, **STRANGER))
    rig.decisions.review_claims()
    assert rig.decisions.claim(NEW.provider_id) == RefusedClaim(NOW, BAD)
    rig.seconds += 1 / CLAIM_RATE
    rig.decisions.review_claims()
    assert rig.decisions.claim(NEW.provider_id) == RefusedClaim(NOW, LESS)


def test_another_tokens_flood_keeps_no_claim_from_being_shown() -> None:
    rig = Rig()
    own = {**STRANGER, "username": "system:bootstrap:ghijkl"}

    def flood(provider_id: ProviderID) -> None:
        for _ in range(2 * CLAIM_BURST):
            rig.decisions.refused(refusal(BAD, provider_id=provider_id, **STRANGER))

    flood(NEW.provider_id)
    assert rig.decisions.refused(refusal(LESS, provider_id=NEW.provider_id, **own))
    assert rig.decisions.claim(NEW.provider_id) == RefusedClaim(NOW, LESS)
    for number in range(10, 10 + CLAIMS_BURST):  # the cluster's rate is used up, too
        member = machine(number, node=False)
        rig.inventory.put_machine(f"fleet/{member.name}", document(member))
        flood(member.provider_id)
    flood(NEW.provider_id)
    other = Reason.ENDORSEMENT_KEY_UNTRUSTED
    rig.decisions.refused(refusal(other, provider_id=NEW.provider_id, **own))
    flood(NEW.provider_id)
    for _ in range(2):  # first, what is held of the others
        rig.seconds += CLAIMS_BURST / CLAIMS_RATE
        rig.decisions.review_claims()
    assert rig.decisions.claim(NEW.provider_id) == RefusedClaim(NOW, other)


def test_what_the_condition_has_stays_until_there_is_a_newer_claim() -> None:
    rig, written = Rig(), RefusedClaim(NOW - timedelta(hours=1), LESS)
    assert rig.decisions.claim(NEW.provider_id, written) == written
    rig.decisions.refused(refusal(BAD, provider_id=NEW.provider_id, **STRANGER))
    assert rig.decisions.claim(NEW.provider_id, written) == RefusedClaim(NOW, BAD)


def test_a_token_says_nothing_that_is_recorded_of_a_machine_that_has_not_joined() -> None:
    rig = Rig()
    for reason in Reason:
        rig.decisions.refused(refusal(reason, provider_id=NEW.provider_id, **STRANGER))
        rig.decisions.refused(refusal(reason, provider_id=NEW.provider_id))  # a node of another name
    assert rig.decisions.pending() == set()


def test_a_flood_of_claims_on_many_machines_is_rationed_for_the_cluster() -> None:
    rig = Rig()
    fleet = [machine(number, node=False) for number in range(10, 10 + 2 * CLAIMS_BURST)]
    for member in fleet:
        rig.inventory.put_machine(f"fleet/{member.name}", document(member))
    reported = [rig.decisions.refused(refusal(BAD, provider_id=one.provider_id, **STRANGER)) for one in fleet]
    assert reported.count(True) == CLAIMS_BURST


@pytest.mark.parametrize("reason", [Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED])
def test_how_first_requests_end_is_no_refused_claim(reason: Reason) -> None:
    rig = Rig()
    assert not rig.decisions.refused(refusal(reason, provider_id=NEW.provider_id, **STRANGER))


def test_a_refusal_before_the_newest_certificate_is_history() -> None:
    rig = Rig()
    rig.decisions.refused(refusal(BAD, at=ISSUED - timedelta(seconds=5)))
    assert rig.decisions.verdict(ME.provider_id, ledger(ME)) is None


def test_the_same_again_is_no_news_and_less_hides_nothing() -> None:
    rig = Rig()
    known = ledger(ME, refused=BAD)
    for reason in (BAD, LESS):
        rig.decisions.refused(refusal(reason))
        assert rig.decisions.verdict(ME.provider_id, known) is None
        rig.decisions.remembered(ME.provider_id)
    rig.decisions.refused(refusal(BAD))
    news = rig.decisions.verdict(ME.provider_id, ledger(ME, refused=LESS))
    assert news == LastDecision(DENIED, BAD, NOW)


def test_of_two_refusals_the_one_that_says_more_is_kept() -> None:
    rig = Rig()
    rig.decisions.refused(refusal(BAD))
    rig.decisions.refused(refusal(LESS))
    assert rig.decisions.verdict(ME.provider_id, ledger(ME)) == LastDecision(DENIED, BAD, NOW)


def test_a_node_that_is_refused_for_ever_other_reasons_writes_a_few_times() -> None:
    rig, written = Rig(), 0
    for number in range(100):
        rig.decisions.refused(refusal((BAD, Reason.ENDORSEMENT_KEY_CHANGED)[number % 2]))
        known = ledger(ME, refused=(Reason.ENDORSEMENT_KEY_CHANGED, BAD)[number % 2])
        written += rig.decisions.verdict(ME.provider_id, known) is not None
        rig.decisions.remembered(ME.provider_id)
    assert written == VERDICT_BURST


def test_a_certificate_ends_what_was_refused_before() -> None:
    rig = Rig()
    rig.decisions.refused(refusal(BAD))
    rig.decisions.granted(grant(ME))
    assert rig.decisions.verdict(ME.provider_id, ledger(ME)) is None


def test_a_certificate_that_was_in_the_ledger_already_clears_a_refusal_since() -> None:
    rig = Rig()
    refused = ledger(ME, refused=BAD, since=NOW - timedelta(minutes=1))
    rig.decisions.granted(grant(ME))
    found = rig.decisions.verdict(ME.provider_id, refused)
    assert found is not None
    assert found.verdict == "Approved"
    assert rig.decisions.verdict(ME.provider_id, ledger(ME, refused=BAD, since=NOW + timedelta(minutes=1))) is None
