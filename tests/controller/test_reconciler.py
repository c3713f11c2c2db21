"""Every way in which the reconcile of an attested request ends, in process: writes, results, metrics, Events."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import pytest
from builders import ENTRY
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import (
    CAPI,
    CREATED,
    CSRS,
    OWN,
    WAIT_LIMIT,
    OneRound,
    TwoRounds,
    World,
    attested,
    machine,
    request,
)
from fake_api import Killed

from nodeattest_controller.controllers.csr.issuer import clamp_lifetime, is_reusable
from nodeattest_controller.controllers.csr.reconciler import DONE, REQUEUE
from nodeattest_controller.controllers.csr.task import NODE_BURST
from nodeattest_controller.model.attestation_object import reset
from nodeattest_controller.model.csr_request import parse_request
from nodeattest_controller.runtime.cluster_log import REQUESTER_BURST
from nodeattest_controller.runtime.workload_client import CURRENT
from nodeattest_kube.errors import ApiError, Conflict, Forbidden
from nodeattest_kube.events import SOURCE_BURST
from nodeattest_parsing.objects import items, mapping, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope
from nodeattest_providers.challenge_response import CHALLENGE_TTL
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_REASON,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
)
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki


@pytest.fixture
async def world(pki: ClusterPki) -> AsyncGenerator[World]:
    async with World(pki, OneRound()).running() as world:
        yield world


DENIED = Denied(Reason.PROOF_INVALID, expected="e", got="g", remedy="r")
UNAVAILABLE = Unavailable(Reason.PLATFORM_UNAVAILABLE, "d", remedy="r", retry_after=7.0)


# Approve


async def test_a_request_that_passes_is_recorded_approved_and_certified_in_this_order(world: World) -> None:
    world.file()
    assert await world.reconcile() == DONE
    assert world.condition("Approved") == "Attested"
    assert text(world.csr(), "status", "certificate")
    [recorded] = world.attestations()
    assert text(recorded, "spec", "nodeName") == "worker-1"
    assert world.management_api.writes("machineattestations") == ["POST"]
    assert world.workload_api.writes(CSRS) == ["PUT", "PUT"]
    assert [issued.member.name for issued in world.observed.issued] == ["m-1"]


async def test_a_burst_of_joins_in_a_cluster_costs_one_event(world: World) -> None:
    told, key = list[int](), ec.generate_private_key(ec.SECP256R1())
    for number, seconds in enumerate((0, 9, 1)):
        world.now += timedelta(seconds=seconds)
        world.file(f"r-{number}", key=key)
        assert await world.reconcile(f"r-{number}") == DONE
        await world.settle()
        told.append(len(world.management_api.writes("/events")))
    assert told == [1, 1, 2]


@pytest.mark.parametrize("moment", ["dies_before", "dies_after"])
@pytest.mark.parametrize("write", ["machineattestations", "/approval", "/status"])
async def test_a_death_around_any_write_ends_in_the_one_certificate_of_the_key(
    pki: ClusterPki, write: str, moment: str
) -> None:
    async with World(pki, OneRound()).running() as dying:
        dying.file()
        for api in (dying.management_api, dying.workload_api):
            setattr(api, moment, write)
        with pytest.raises(Killed):
            await dying.reconcile()
    async with World(pki, OneRound(), beside=dying).running() as heir:
        assert await heir.reconcile() == DONE
        [record] = heir.attestations()
        [entry] = items(mapping(record, "spec"), "issued")
        assert base64.b64decode(text(heir.csr(), "status", "certificate")).decode() == text(entry, "certificate")
        is_recorded = (write, moment) != ("machineattestations", "dies_before")
        assert heir.management_api.writes("machineattestations") == ["POST"] * (1 if is_recorded else 2)


@pytest.mark.parametrize("trouble", [None, ApiError(500, "InternalError", "cannot read the Lease")])
async def test_what_is_recorded_and_not_confirmed_is_neither_published_nor_denied(
    world: World, trouble: ApiError | None
) -> None:
    async def unconfirmed() -> bool:
        if trouble is not None:
            raise trouble
        return False

    confirmed, world.confirm = world.confirm, unconfirmed
    world.file()
    world.now = CREATED + timedelta(seconds=WAIT_LIMIT + 1)  # not even after the longest wait
    for _ in range(2):
        with pytest.raises(ApiError):
            await world.reconcile()
    assert world.workload_api.writes(CSRS) == []
    assert world.observed.issued == []
    world.confirm = confirmed
    assert await world.reconcile() == DONE
    assert text(world.csr(), "status", "certificate")
    assert world.management_api.writes("machineattestations") == ["POST"]


async def test_a_record_that_was_reset_after_the_evaluation_is_not_published(world: World) -> None:
    world.workload_api.fail("PUT", "/approval", ApiError(500, "InternalError", "crash"))
    world.file()
    with pytest.raises(ApiError):
        await world.reconcile()
    [path] = [path for path in world.management_api.objects if "/machineattestations/" in path]

    async def meddle(request: NodeRequest, facts: Facts) -> AttestedNode:
        world.management_api.put(path, reset(world.attestations()[0], by="o", reason="r", now=world.now))
        await world.settle()
        return await verify(request, facts)

    verify, world.verifier.verify_client_attestation_data = world.verifier.verify_client_attestation_data, meddle
    assert await world.reconcile() == REQUEUE
    assert world.condition("Approved") == ""


async def test_a_controller_whose_clock_is_ahead_signs_for_no_longer_and_closes_nothing_early(world: World) -> None:
    world.clock_ahead = timedelta(hours=2)
    world.now = CREATED + world.clock_ahead
    world.verifier.answer = UNAVAILABLE
    world.file()
    assert (await world.reconcile()).requeue_after
    assert not world.condition("Denied")
    world.verifier.answer = attested()
    assert await world.reconcile() == DONE
    [entry] = items(world.attestations()[0], "spec", "issued")
    assert text(entry, "notAfter") == rfc3339(CREATED + timedelta(days=14))


async def test_a_controller_whose_clock_is_behind_hands_out_nothing_that_is_over(world: World) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    world.file(key=key)
    assert await world.reconcile() == DONE
    later = request("r-2", key=key)
    created: JsonValue = rfc3339(CREATED + timedelta(days=20))
    world.workload_api.put(f"{CSRS}/r-2", {**later, "metadata": {"name": "r-2", "creationTimestamp": created}})
    await world.reconcile("r-2")
    assert text(world.csr("r-2"), "status", "certificate") == ""


async def test_a_certified_key_gets_no_certificate_for_another_of_its_machines_names(world: World) -> None:
    key, long = ec.generate_private_key(ec.SECP256R1()), NodeName("worker-1.lan")
    world.management_api.put(f"{CAPI}/machines/m-1", machine(addresses=[{"type": "Hostname", "address": long}]))
    world.policy(infrastructure={"shortNodeNames": True})
    await world.settle()
    world.file(key=key, node=long)
    world.file("r-2", key=key)
    for name in ("r-1", "r-2"):
        assert await world.reconcile(name) == DONE
    assert (world.condition("Denied"), world.condition("Denied", "r-2")) == ("", Reason.KEY_REUSED)


@pytest.mark.parametrize("wrong", [{"provider_id": "metal://rack-1/2"}, {"provider": "challenge"}])
async def test_evidence_of_another_machine_or_provider_is_denied(pki: ClusterPki, wrong: dict[str, str]) -> None:
    verifier = OneRound()
    verifier.wrong = dict(wrong)
    async with World(pki, verifier).running() as world:
        world.file()
        await world.settle()
        assert await world.reconcile() == DONE
        assert world.condition("Denied") == Reason.EVIDENCE_FOR_OTHER_MACHINE


class ProvesWhoAsks(OneRound):
    """Two machines are both found sound, with one TPM or each with its own."""

    has_one_tpm = True

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        found, asks = await super().verify_client_attestation_data(request, facts), request.csr.provider_id
        return replace(found, fingerprints=found.fingerprints if self.has_one_tpm else {"ek": asks})


@pytest.mark.parametrize(
    ("slow", "quick", "held", "reason"),
    [
        ("late", "first", "/nodes/worker-2", Reason.MACHINE_AMBIGUOUS),
        ("first", "late", "/machineattestations", Reason.MACHINE_AMBIGUOUS),
        ("first", "late", "/machineattestations", Reason.KEY_REUSED),
    ],
)
async def test_of_two_machines_with_one_tpm_or_key_one_is_recorded(
    pki: ClusterPki, slow: str, quick: str, held: str, reason: Reason
) -> None:
    other = ProviderID("metal://rack-1/2")
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    verifier = ProvesWhoAsks()
    verifier.has_one_tpm = reason is Reason.MACHINE_AMBIGUOUS

    async with World(pki, verifier).running() as world:
        addresses: list[JsonValue] = [{"type": "Hostname", "address": "worker-2"}]
        world.management_api.put(f"{CAPI}/machines/m-2", machine("m-2", other, addresses=addresses))
        world.file("first", key=keys[0])
        world.file("late", node=NodeName("worker-2"), provider_id=other, key=keys[verifier.has_one_tpm])
        await world.settle()
        ends = await world.overtake(slow, quick, held)
        assert ends == {"first": DONE, "late": REQUEUE}
        assert len(world.attestations()) == 1
        assert await world.reconcile("late") == DONE
        assert world.condition("Denied", "late") == reason


async def test_who_asks_for_anothers_machine_does_not_keep_it_from_its_turn(world: World) -> None:
    async def verify(request: NodeRequest, facts: Facts) -> AttestedNode:
        if request.username == "system:bootstrap:thief0":
            begun.set()
            await asyncio.Event().wait()
        return await honest(request, facts)

    begun = asyncio.Event()
    honest, world.verifier.verify_client_attestation_data = world.verifier.verify_client_attestation_data, verify
    world.file("flood", username="system:bootstrap:thief0")
    world.file()
    await world.settle()
    flood = asyncio.create_task(world.reconciler.reconcile(world.workload, "flood"))
    await begun.wait()
    assert await world.reconcile() == DONE
    assert text(world.csr(), "status", "certificate")
    flood.cancel()


def file_both(world: World) -> None:
    """File a first request and one that answers it."""
    first = world.file("first")
    ref = FirstRequestRef(name="first", uid=text(first, "metadata", "uid"))
    world.verifier.answer = attested(ref)
    answered = parse_request(first).csr.der
    raw = envelope.encode(answered, Evidence(ProviderName("tpm"), 1, {"name": ref.name, "uid": ref.uid}))
    world.file("second", request=base64.b64encode(raw).decode())


async def test_the_age_of_a_join_counts_from_its_first_request(pki: ClusterPki) -> None:
    async with World(pki, TwoRounds()).running() as world:
        file_both(world)
        created: JsonObject = {"creationTimestamp": rfc3339(CREATED + timedelta(seconds=40))}
        second = world.csr("second")
        world.workload_api.put(f"{CSRS}/second", {**second, "metadata": {**mapping(second, "metadata"), **created}})
        world.now += timedelta(seconds=60)
        await world.settle()
        await world.seen("first")
        assert await world.reconcile("second") == DONE
        assert world.condition("Denied", "first") == Reason.SUPERSEDED
        assert "\nnodeattest_request_age_seconds_sum 60.0\n" in world.metrics.render().decode()


@pytest.mark.parametrize("spoilt", ["deleted", "made anew", "no sign of life"])
async def test_a_first_request_that_the_watch_does_not_show_pending_is_read(pki: ClusterPki, spoilt: str) -> None:
    async with World(pki, TwoRounds()).running() as world:
        file_both(world)
        await world.seen("second")
        if spoilt == "no sign of life":
            world.workload.requests.last_contact -= CURRENT
        else:
            world.workload_api.remove(f"{CSRS}/first")
        if spoilt == "made anew":
            world.file("first")
        await world.settle()
        assert await world.reconcile("second") == DONE
        assert world.workload_api.count("GET", f"{CSRS}/first") == 1


# Wait


async def test_what_cannot_be_verified_now_waits_with_a_reason_and_is_requeued(world: World) -> None:
    world.verifier.answer = UNAVAILABLE
    world.file()
    result = await world.reconcile()
    assert (result.requeue_after, result.waits_for, result.requeue) == (7.0, "metal://rack-1/1", False)
    assert world.annotation(ANNOTATION_REASON).startswith(Reason.PLATFORM_UNAVAILABLE)
    await world.reconcile()
    assert world.workload_api.writes(CSRS) == ["PATCH"]  # the same reason is written once


async def test_a_cluster_waits_while_there_is_no_room_for_a_record_of_its_namespace(pki: ClusterPki) -> None:
    def record(namespace: str, more: str) -> None:
        path = f"{OWN.replace('fleet', namespace)}/machineattestations/m-9"
        spec: JsonObject = {"nodeName": "worker-1", "more": more}
        labels: JsonObject = {"cluster.x-k8s.io/cluster-name": "blue"}
        meta: JsonObject = {"name": "m-9", "namespace": namespace, "labels": labels}
        world.management_api.put(path, {"metadata": meta, "spec": spec})

    memory = 1 << 20
    world = World(pki, OneRound(), memory=memory)
    record("other", "x" * memory)
    record("fleet", "x" * memory)
    async with world.running():
        world.file()
        waiting = await world.reconcile()
        assert waiting.requeue_after is not None
        assert world.annotation(ANNOTATION_REASON).startswith(Reason.API_UNAVAILABLE)
        assert world.verifier.calls == 0


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [(UNAVAILABLE, Reason.PLATFORM_UNAVAILABLE), (KeyError("an internal error"), Reason.INTERNAL_ERROR)],
)
async def test_a_wait_ends_in_a_denial(world: World, trouble: Exception, reason: Reason) -> None:
    world.verifier.answer = trouble
    world.file()
    assert (await world.reconcile()).requeue_after is not None
    assert world.annotation(ANNOTATION_REASON).startswith(reason)
    world.now = CREATED + timedelta(seconds=WAIT_LIMIT + 1)
    assert await world.reconcile() == DONE
    assert world.condition("Denied") == reason
    assert [verdict.evaluated for verdict in world.observed.denied] == [False]


# Challenge


@pytest.fixture
async def challenged(pki: ClusterPki) -> AsyncGenerator[World]:
    async with World(pki, TwoRounds()).running() as world:
        world.verifier.answer = ChallengeRequired('{"nonce": "n"}', {ANNOTATION_REASON: "x"})
        world.file()
        yield world


async def test_a_first_request_gets_its_challenge_once(challenged: World) -> None:
    result = await challenged.reconcile()
    assert result.requeue_after is not None
    assert result.requeue_after > CHALLENGE_TTL.total_seconds()
    assert challenged.annotation(ANNOTATION_CHALLENGE) == '{"nonce": "n"}'
    await challenged.reconcile()
    assert challenged.workload_api.writes(CSRS) == ["PATCH"]


async def test_a_foreign_challenge_is_overwritten(challenged: World) -> None:
    for foreign in ('{"nonce": "other"}', "no JSON"):
        mapping(challenged.csr(), "metadata")["annotations"] = {ANNOTATION_CHALLENGE: foreign}
        challenged.workload_api.put(f"{CSRS}/r-1", challenged.csr())
        await challenged.reconcile()
        assert challenged.annotation(ANNOTATION_CHALLENGE) == '{"nonce": "n"}'


async def test_a_challenge_that_nobody_answers_ends_in_a_denial(challenged: World) -> None:
    await challenged.reconcile()
    challenged.now = CREATED + CHALLENGE_TTL + timedelta(seconds=61)
    assert await challenged.reconcile() == DONE
    assert challenged.condition("Denied") == Reason.CHALLENGE_EXPIRED


# Throttle


async def test_what_is_over_budget_is_requeued_told_and_denied_in_the_end(world: World) -> None:
    world.verifier.answer = UNAVAILABLE
    world.file()
    for _evaluation in range(NODE_BURST):
        await world.reconcile()
    calls = world.verifier.calls
    result = await world.reconcile()
    assert world.verifier.calls == calls
    assert result.requeue_after is not None
    assert result.waits_for is None
    assert world.annotation(ANNOTATION_REASON).startswith(Reason.REQUESTER_OVER_BUDGET)
    world.file("r-2")
    world.now = CREATED + timedelta(seconds=0.5)
    assert (await world.reconcile("r-2")).requeue_after is not None


async def test_one_requesters_flood_leaves_room_in_log_and_events_for_another(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.verifier.answer = DENIED
    flood = [f"flood-{number}" for number in range(2 * SOURCE_BURST)]
    for name in (*flood, "another"):
        world.file(name, username="system:bootstrap:other0" if name == "another" else "system:bootstrap:thief0")
        assert await world.reconcile(name) == DONE
        assert world.condition("Denied", name) == Reason.PROOF_INVALID
    await world.events.drain()
    events = world.management_api.events("message")
    lines = [vars(line)["nodeattest_fields"]["csr"].strip("'") for line in caplog.records if line.message == "refused"]
    assert sum("flood-" in event for event in events) == SOURCE_BURST
    assert any("another" in event for event in events)
    assert lines == [*flood[:REQUESTER_BURST], "another"]


async def test_a_request_of_a_purpose_that_is_switched_off_is_left_alone(pki: ClusterPki) -> None:
    async with World(pki, OneRound(), purposes=frozenset({Purpose.SERVING})).running() as world:
        world.file()
        assert await world.reconcile() == DONE
        assert (world.verifier.calls, world.workload_api.writes(CSRS)) == (0, [])


# What an API server answers


async def test_a_conflict_of_the_record_is_counted_and_read_anew(world: World) -> None:
    world.management_api.fail("POST", "machineattestations", Conflict(409, "AlreadyExists", "another replica"))
    world.file()
    assert await world.reconcile() == REQUEUE
    assert "\nnodeattest_ledger_conflicts_total 1.0\n" in world.metrics.render().decode()
    assert world.condition("Approved") == ""
    assert await world.reconcile() == DONE


async def test_a_record_that_was_deleted_meanwhile_is_made_anew(world: World) -> None:
    world.file()
    await world.reconcile()
    [path] = [path for path in world.management_api.objects if "/machineattestations/" in path]
    world.now = CREATED + timedelta(minutes=11)
    world.file("r-2")
    await world.settle()
    world.management_api.objects.pop(path)  # and the watch lags
    assert await world.reconcile("r-2") == REQUEUE
    assert await world.reconcile("r-2") == DONE
    assert text(world.csr("r-2"), "status", "certificate")


async def test_a_right_that_is_missing_is_raised_and_told(world: World) -> None:
    world.workload_api.fail("PUT", "/approval", Forbidden(403, "Forbidden", "no approve"))
    world.file()
    with pytest.raises(Forbidden):
        await world.reconcile()
    await world.events.drain()
    assert world.warnings() == [Reason.API_UNAVAILABLE]


# How long a certificate lasts, and until when it is handed out again; tests/system holds the rest of issuing


@pytest.mark.parametrize(
    ("longest", "asked", "lasts"),
    [*((3600, None, 3600), (3600, 600, 600), (3600, 1209600, 3600), (120, 600, 120)), (3600, 1, 60), (3600, -5, 60)],
)
def test_a_certificate_lasts_as_asked_but_never_longer_than_the_policy_says(
    longest: int, asked: int | None, lasts: int
) -> None:
    assert clamp_lifetime(longest, asked) == lasts


def test_a_certificate_is_handed_out_again_until_a_minute_before_its_end() -> None:
    entry = replace(ENTRY, issued_at=CREATED, not_after=CREATED + timedelta(hours=1))
    assert is_reusable(entry, CREATED + timedelta(seconds=3539))
    assert not is_reusable(entry, CREATED + timedelta(seconds=3540))
