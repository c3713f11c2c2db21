"""Refused bootstrap configurations: who is told, and how often."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from bootstrap_config_kit import config, control_plane, review, subject, versioned
from fake_api import FakeApi
from management_kit import add_cluster

from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionOutcome, Verdict, parse
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import ConfigReviewer, FactReader
from nodeattest_controller.controllers.bootstrap_config.decide import Subject
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import (
    BURST,
    EVENT,
    MAX_REFUSED,
    NAMESPACES,
    PERIOD,
    RefusalReporter,
)
from nodeattest_kube.errors import Forbidden
from nodeattest_kube.events import EventRecorder
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason

CORE = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default"
POLICY = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/default/nodeattestationpolicies/tpm"
REFUSAL = Denied(Reason.POLICY_INVALID, expected="no /conflict", got="/conflict", remedy="remove it")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class World:
    """A management cluster with a MachineDeployment's MachineSet and a policy."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.api = FakeApi()
        self.api.put(
            POLICY, {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeAttestationPolicy", "spec": {}}
        )
        deployment: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "name": "md-0",
                                  "uid": "d-0"}  # fmt: skip
        self.put("machinesets", "MachineSet", "md-0-x", ownerReferences=[deployment, {**deployment, "name": "md-1"}])
        self.reporter = RefusalReporter(
            self.api,
            events=EventRecorder(self.api, component="t", instance="t", now=self.now, clock=lambda: self.seconds),
            now=self.now,
            clock=lambda: self.seconds,
        )

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def put(self, resource: str, kind: str, name: str, **meta: JsonValue) -> None:
        body: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind}
        self.api.put(f"{CORE}/{resource}/{name}", {**body, "metadata": {"name": name, "uid": f"u-{name}", **meta}})

    async def report(self, about: Subject, client: str = "10.0.0.1") -> None:
        self.reporter.report(about, REFUSAL, cluster="prod", policy="tpm", client=client)
        for _turn in range(100):
            await asyncio.sleep(0)

    def entries(self) -> list[JsonObject]:
        return items(self.api.objects[POLICY], "status", "refusedConfigurations")

    def told(self) -> list[tuple[str, str]]:
        events = [obj for path, obj in self.api.objects.items() if "/events/" in path]
        assert {text(one, "reason") for one in events} <= {EVENT}
        return [(text(one, "involvedObject", "kind"), text(one, "involvedObject", "name")) for one in events]


def owned(kind: str = "MachineSet", name: str = "md-0-x", uid: str = "", **changes: str) -> Subject:
    """A configuration that names who it is for."""
    whole = config(labels={})
    owner: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": kind,
        "name": name,
        "uid": uid or f"u-{name}",
    }
    return subject({**whole, "metadata": {**mapping(whole, "metadata"), "ownerReferences": [{**owner, **changes}]}})


def in_namespace(namespace: str, about: Subject) -> Subject:
    return subject({**about.whole, "metadata": {**mapping(about.whole, "metadata"), "namespace": namespace}})


async def test_a_machine_set_and_its_deployment_are_told_and_the_policy_names_them() -> None:
    world = World()
    await world.report(owned())
    assert world.told() == [("MachineSet", "md-0-x"), ("MachineDeployment", "md-0")]
    [entry] = world.entries()
    assert entry == {
        "cluster": "prod", "kind": "MachineSet", "name": "md-0-x", "reason": "PolicyInvalid",
        "message": entry["message"], "time": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    assert "KubeadmConfig for MachineSet md-0-x is refused" in str(entry["message"])
    assert "remove it" in str(entry["message"])


@pytest.mark.parametrize(
    "about",
    [
        subject(config()),
        owned(name="gone"),
        owned(uid="another"),
        owned(kind="ReplicaSet"),
        owned(apiVersion="cluster.x-k8s.io/../v1"),
    ],
)
async def test_an_owner_that_is_not_there_is_not_written_about(
    about: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    await world.report(about)
    assert caplog.records == []
    assert (world.told(), world.entries()) == ([], [])
    assert world.api.writes() == []


async def test_the_same_refusal_is_reported_again_after_ten_minutes() -> None:
    world = World()
    for _attempt in range(5):
        await world.report(owned())
    assert len(world.told()) == 2
    assert world.api.writes("nodeattestationpolicies") == ["PATCH"]
    world.seconds = PERIOD
    await world.report(owned())
    assert len(world.told()) == 4
    assert [text(one, "time") for one in world.entries()] == ["2026-01-02T03:14:05Z"]


async def test_a_status_names_the_last_owners_and_a_flood_is_left_out() -> None:
    world = World()
    for number in range(BURST + 20):
        world.put("machinepools", "MachinePool", f"p-{number}")
        await world.report(owned("MachinePool", f"p-{number}"))
    assert len(world.entries()) == MAX_REFUSED
    assert text(world.entries()[-1], "name") == f"p-{BURST - 1}"
    assert world.api.count("GET", "machinepools") == BURST


async def test_reviews_that_a_stranger_makes_up_silence_no_api_server() -> None:
    world = World()
    for number in range(NAMESPACES * BURST):
        await world.report(owned(name=f"gone-{number}"), client="10.9.9.9")
        await world.report(in_namespace(f"n-{number}", owned(name="gone")), client="10.9.9.9")
    assert world.api.count("GET") == NAMESPACES * BURST
    await world.report(owned())
    assert world.told() == [("MachineSet", "md-0-x"), ("MachineDeployment", "md-0")]


async def test_a_report_that_fails_is_logged_once_in_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for number in range(5):
        world.api.fail("GET", "/machinesets/", Forbidden(403, "Forbidden", "no"))
        await world.report(owned(uid=str(number)))
    assert [record.getMessage() for record in caplog.records] == ["cannot report a refused configuration"]


async def test_few_reports_are_under_way_and_one_caller_has_half_of_them() -> None:
    world, under_way = World(), list[int]()

    async def hang(_method: str, _path: str) -> None:
        await asyncio.Event().wait()

    world.api.on_call = hang
    for caller in ("10.9.9.1", "10.9.9.2", "10.9.9.3"):
        for _report in range(BURST):
            await world.report(owned(), client=caller)
        under_way.append(world.api.count("GET", "machinesets"))
    assert under_way == [8, 16, 16]
    await world.reporter.drain(0.0)


# What is read of the management cluster for a decision, and what a dry run leaves


class Reviewed(World):
    """The same, with a Cluster that the policy selects; it reviews as the webhook does."""

    def __init__(self, **spec: JsonValue) -> None:
        super().__init__()
        self.api.documents["/apis/cluster.x-k8s.io"] = {"preferredVersion": {"version": "v1beta2"}}
        add_cluster(self.api, "prod", namespace="default")
        selected: JsonObject = {"clusterSelector": {}, "authorizedAttestors": ["tpm"], **spec}
        self.api.put(POLICY, {**self.api.objects[POLICY], "spec": selected})

    async def review(self, whole: JsonObject, before: JsonObject | None = None, **request: JsonValue) -> Verdict:
        question = parse(json.dumps(review(whole, before, **request)).encode())
        reader = FactReader(self.api, namespace=None, now=self.now)
        reviewer = ConfigReviewer(reader, versioned, self.reporter)
        verdict = await reviewer.review_with_facts(question, "10.0.0.1")
        await self.reporter.drain()
        return verdict


OF_CLUSTER: dict[str, JsonValue] = {"cluster.x-k8s.io/cluster-name": "prod"}


def of_cluster(about: Subject, **spec: JsonValue) -> JsonObject:
    whole: JsonObject = {**about.whole, "spec": {**about.spec, **spec}}
    return {**whole, "metadata": {**mapping(whole, "metadata"), "labels": OF_CLUSTER}}


async def test_a_dry_run_is_refused_and_told_to_nobody() -> None:
    world, refused = Reviewed(), of_cluster(owned(), files=[{"path": "/conflict"}])
    for dry_run, told in ((True, False), (False, True)):
        assert not (await world.review(refused, dryRun=dry_run)).passes
        assert bool(world.entries()) is told
        assert bool(world.told()) is told


@pytest.mark.parametrize(
    ("cluster", "namespace"), [("a/b", "default"), ("..", "default"), ("prod", "a/b"), ("prod", "")]
)
async def test_a_name_that_is_no_path_segment_names_no_cluster(cluster: str, namespace: str) -> None:
    named = config(labels={"cluster.x-k8s.io/cluster-name": cluster})
    assert (await Reviewed().review(named, namespace=namespace)).outcome is AdmissionOutcome.UNCONCERNED


async def test_a_control_plane_is_left_as_it_is_once_it_has_a_machine() -> None:
    world, mine = Reviewed(), control_plane(labels=OF_CLUSTER)
    assert (await world.review(mine, mine)).outcome is AdmissionOutcome.RENDERED
    world.put("machines", "Machine", "cp-0", labels={**OF_CLUSTER, "cluster.x-k8s.io/control-plane": ""})
    assert (await world.review(mine, mine)).outcome is AdmissionOutcome.LEFT
