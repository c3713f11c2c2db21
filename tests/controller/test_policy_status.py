"""A policy's status: what it says, that it is written when it changes, and never otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import cast

import pytest
from fake_api import FakeApi
from management_kit import add_cluster, add_policy, cached, management_api
from policy_kit import NAMESPACE, condition_of, create_cluster, create_policy, working
from polling import until

from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.payload import MARK
from nodeattest_controller.controllers.policy_status.decide import (
    CALLED,
    MAX_CONFLICTS,
    REFUSAL_ENDS,
    PolicyFinding,
    PolicyReason,
    Rendering,
    evaluate,
    not_labelled,
    refusals_end,
    rendering_of,
    status_patch,
)
from nodeattest_controller.controllers.policy_status.reconciler import PolicyStatusReconciler
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model import webhook_configuration as webhook_label
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_controller.model.webhook_configuration import WebhookCalls, webhook_calls
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.supervisor import ChangeBus
from nodeattest_controller.verification.policy_validation import first_flaw
from nodeattest_kube.events import EventRecorder
from nodeattest_parsing.objects import dig, mapping, rfc3339
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def policy(name: str = "p", *, labels: dict[str, str] | None = None, **spec: JsonValue) -> JsonObject:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "generation": 2, "resourceVersion": "9"},
        "spec": {"authorizedAttestors": ["tpm"], "clusterSelector": {"matchLabels": dict(labels or {})}, **spec},
    }


def cluster(name: str, **labels: str) -> JsonObject:
    return {"metadata": {"name": name, "namespace": NAMESPACE, "labels": dict(labels)}}


def flaw_of(obj: JsonObject) -> Denied | None:
    try:
        return first_flaw(parse_attestation_policy(obj))
    except Denied as denied:
        return denied


def finding(
    *policies: JsonObject,
    clusters: tuple[JsonObject, ...] = (),
    of: str = "p",
    joined: dict[str, int] | None = None,
    rendering: Rendering = CALLED,
    unrendered: dict[str, str] | None = None,
) -> PolicyFinding:
    """``joined``: machines of each cluster, by the policy that they joined under."""

    def machines_under(_cluster: JsonObject, name: str) -> int:
        return (joined or {}).get(name, 0)

    return asyncio.run(
        evaluate(policies, clusters, flaw_of, machines_under, rendering=rendering, unrendered=unrendered)
    )[of]


def test_where_the_namespace_has_no_label_a_policy_that_enforces_is_not_ready_and_says_what_to_do() -> None:
    found = finding(policy(), clusters=(cluster("a"),), rendering=not_labelled(NAMESPACE))
    assert (found.why, found.condition.status) == (PolicyReason.NAMESPACE_NOT_LABELLED, "False")
    assert found.message.endswith(
        f"kubectl label namespace {NAMESPACE} attestation.cluster.x-k8s.io/bootstrap-config=enabled"
    )
    assert finding(policy(), rendering=not_labelled(NAMESPACE)).why is PolicyReason.NAMESPACE_NOT_LABELLED
    audit = finding(policy(enforcement="Audit"), clusters=(cluster("a"),), rendering=not_labelled(NAMESPACE))
    assert audit.why is PolicyReason.VALID
    assert finding(policy(serving="x"), rendering=not_labelled(NAMESPACE)).why is PolicyReason.INVALID
    assert (
        finding(policy(), policy("q"), clusters=(cluster("a"),), rendering=not_labelled(NAMESPACE)).why
        is PolicyReason.CONFLICT
    )


def test_a_refused_configuration_that_nobody_repeats_is_over_after_a_while() -> None:
    entries: list[JsonValue] = [
        {"cluster": "a", "kind": "MachineSet", "name": name, "reason": "R", "message": "m", "time": rfc3339(NOW - age)}
        for name, age in (("old", REFUSAL_ENDS), ("young", REFUSAL_ENDS / 2))
    ]
    known: JsonObject = {**policy(), "status": {"refusedConfigurations": entries}}
    patch = status_patch(known, finding(policy()), NOW)
    assert mapping(patch or {}, "status")["refusedConfigurations"] == entries[1:]
    assert refusals_end(known, NOW) == 0
    left: JsonObject = {**policy(), "status": {"refusedConfigurations": entries[1:]}}
    assert refusals_end(left, NOW) == REFUSAL_ENDS.total_seconds() / 2
    assert refusals_end(policy(), NOW) is None
    assert "refusedConfigurations" not in mapping(status_patch(left, finding(policy()), NOW) or {}, "status")


def test_of_two_policies_the_one_that_machines_joined_under_goes_on_and_both_say_conflict() -> None:
    pair, joined = (policy("p"), policy("q")), {"p": 1, "q": 3}
    for name in ("p", "q"):
        found = finding(*pair, clusters=(cluster("b"),), of=name, joined=joined)
        assert found.why is PolicyReason.CONFLICT
        assert "q goes on" in found.message
        patch = status_patch(policy(name), found, NOW)
        assert patch is not None
        [conflict] = maps_at(map_at(patch, "status"), "conflicts")
        assert conflict["ruling"] == "q"


def test_where_the_policy_that_would_go_on_is_invalid_both_say_that_no_node_joins() -> None:
    pair, joined = (policy("p"), policy("q", tpm={"endorsementCAs": "no PEM"})), {"p": 1, "q": 3}
    rival = finding(*pair, clusters=(cluster("b"),), joined=joined)
    assert rival.why is PolicyReason.CONFLICT
    assert "no node joins, because its machines joined under q, which is Invalid" in rival.message
    assert "goes on" not in rival.message
    for name, found in (("p", rival), ("q", finding(*pair, clusters=(cluster("b"),), of="q", joined=joined))):
        patch = status_patch(policy(name), found, NOW)
        assert patch is not None
        [conflict] = maps_at(map_at(patch, "status"), "conflicts")
        assert "ruling" not in conflict


def test_a_thousand_conflicts_are_a_status_of_bounded_size() -> None:
    there = tuple(cluster(f"c{number:04}") for number in range(1000))
    rivals = [policy(f"p{number}") for number in range(20)]
    found = finding(*rivals, clusters=there, of="p0")
    patch = status_patch(policy("p0"), found, NOW)
    assert patch is not None
    assert len(list(maps_at(map_at(patch, "status"), "conflicts"))) == MAX_CONFLICTS
    assert len(found.message) < 1000


# On an API server


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with start_sandbox(tmp_path_factory.mktemp("status"), name="management") as running:
        install_cluster_api(running.client())
        install_definitions(running.client(), manifests.crds())
        yield running


def ready(plane: ControlPlane, path: str) -> JsonMap:
    return condition_of(plane.client().get(path), "Ready")


def says(plane: ControlPlane, path: str, reason: str) -> Callable[[], bool]:
    return lambda: text_at(ready(plane, path), "reason") == reason


async def test_a_policys_life_is_told_in_its_status(plane: ControlPlane) -> None:
    client = plane.client()
    path = create_policy(client, "life")
    async with working(plane) as office:
        await until(says(plane, path, "SelectsNothing"))
        create_cluster(client, "blue")
        await until(says(plane, path, "Valid"))
        assert map_at(client.get(path), "status")["clusters"] == 1
        rival = create_policy(client, "rival")
        await until(says(plane, path, "Conflict"))
        await until(says(plane, rival, "Conflict"))
        client.delete(rival)
        await until(says(plane, path, "Valid"))
        client.patch(path, {"spec": {"certificateLifetme": "1h"}})
        await until(says(plane, path, "Invalid"))
        stored = client.get(path)
        generation = map_at(stored, "metadata")["generation"]
        assert map_at(stored, "status")["observedGeneration"] == generation
        assert ready(plane, path)["observedGeneration"] == generation
        assert office.metrics.registry.get_sample_value("nodeattest_policies", {"reason": "Invalid"}) == 1
        assert office.metrics.registry.get_sample_value("nodeattest_policies", {"reason": "Conflict"}) == 0
        events = f"/api/v1/namespaces/{NAMESPACE}/events"
        wanted = {"PolicyInvalid", "PolicyConflict"}
        await until(lambda: wanted <= {text_at(event, "reason") for event in client.list(events)})


def configuration() -> JsonMap:
    """Return the configuration of this release."""
    [found] = [one for one in manifests.objects("webhook") if one["kind"] == "MutatingWebhookConfiguration"]
    return cast("JsonMap", deepcopy(found))


async def test_a_policy_says_when_no_api_server_calls_the_webhook_for_its_namespace(plane: ControlPlane) -> None:
    client, namespace = plane.client(), f"/api/v1/namespaces/{NAMESPACE}"
    create_cluster(client, "uncalled")
    path = create_policy(client, "uncalled")
    client.patch(namespace, {"metadata": {"labels": {webhook_label.LABEL: "enabled"}}})
    try:
        async with working(plane, has_webhook=True, recount=0.05, label_resync=0.05) as office:
            await until(says(plane, path, "WebhookNotCalled"))
            assert "MutatingWebhookConfiguration is absent" in text_at(ready(plane, path), "message")
            assert ready(plane, path)["status"] == "False"
            assert office.metrics.registry.get_sample_value("nodeattest_policies", {"reason": "WebhookNotCalled"}) == 1
            client.create(CONFIGURATIONS, configuration())
            await until(says(plane, path, "Valid"))
            [webhook] = maps_at(configuration(), "webhooks")
            narrowed: JsonMap = {**webhook, "objectSelector": {"matchLabels": {"no": "such"}}}
            client.patch(f"{CONFIGURATIONS}/nodeattest-bootstrap-config", {"webhooks": [narrowed]})
            await until(says(plane, path, "WebhookNotRead"))
            client.delete(f"{CONFIGURATIONS}/nodeattest-bootstrap-config")
            await until(says(plane, path, "WebhookNotCalled"))
    finally:
        client.patch(namespace, {"metadata": {"labels": {webhook_label.LABEL: None}}})
    told = {text_at(event, "reason"): text_at(event, "message") for event in client.list(f"{namespace}/events")}
    assert "PolicyWebhookNotCalled" in told
    assert "nodeattest policy check -f -" in told["PolicyLeftUnrendered"]
    asked = [one for one in plane.requests() if one.resource == "mutatingwebhookconfigurations"]
    assert not [one for one in asked if one.verb in {"list", "watch"}]


LABELLED: JsonObject = {"metadata": {"labels": {webhook_label.LABEL: "enabled", "team": "a"}}}
TEAM_A: JsonObject = {"key": "team", "operator": "In", "values": ["a"]}
TEAM_B: JsonObject = {"key": "team", "operator": "In", "values": ["b"]}


EVERYTHING: JsonObject = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}


def changed_calls(**change: JsonValue) -> WebhookCalls:
    """Look at the shipped configuration with a change."""
    [webhook] = maps_at(configuration(), "webhooks")
    changed: JsonObject = {**webhook, **change}
    return webhook_calls({"webhooks": [changed]}, LABELLED)


def test_the_shipped_configuration_calls_for_a_namespace_with_the_label_and_no_other() -> None:
    assert webhook_calls(configuration(), LABELLED) == WebhookCalls()
    assert changed_calls(matchPolicy="Exact") == WebhookCalls()
    assert changed_calls(matchConditions=[]) == WebhookCalls()
    assert "leaves this namespace out" in webhook_calls(configuration(), {"metadata": {}}).why_not
    assert "absent" in webhook_calls(None, LABELLED).why_not
    assert "has no webhook" in webhook_calls({"webhooks": []}, LABELLED).why_not


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"namespaceSelector": {"matchExpressions": [TEAM_A]}}, ""),
        ({"namespaceSelector": {"matchExpressions": [TEAM_B]}}, "leaves this namespace out"),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, "leaves this namespace out"),
        ({"rules": []}, "no rule for CREATE of kubeadmconfigs, UPDATE of kubeadmconfigs, CREATE of kubeadmcontrol"),
        ({"rules": [EVERYTHING]}, ""),
        ({"rules": [{**EVERYTHING, "scope": "Cluster"}]}, "no rule for"),
        ({"rules": [{**EVERYTHING, "operations": ["UPDATE"]}]}, "no rule for CREATE of kubeadmconfigs, CREATE of"),
        ({"rules": [{**EVERYTHING, "apiVersions": ["v1beta2"]}]}, ""),
        ({"rules": [{**EVERYTHING, "apiVersions": ["v1alpha9"]}], "matchPolicy": "Exact"}, "no rule for CREATE"),
    ],
)
def test_a_configuration_that_was_changed_is_read_as_api_servers_do(change: JsonObject, said: str) -> None:
    found = changed_calls(**change)
    assert said in found.why_not
    assert bool(said) == bool(found.why_not)
    assert (found.why_unknown, found.weakness) == ("", "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objectSelector": {"matchLabels": {"no": "such"}}}, "has objectSelector; make it that of manifests/webhook"),
        ({"matchConditions": [{"name": "never", "expression": "false"}]}, "has matchConditions; make it that of"),
        ({"rules": [{**EVERYTHING, "apiVersions": ["v1beta1"]}], "matchPolicy": "Exact"}, "has matchPolicy Exact"),
    ],
)
def test_of_a_webhook_that_is_called_for_some_objects_it_is_said_that_this_is_not_known(
    change: JsonObject, said: str
) -> None:
    found = changed_calls(**change)
    assert said in found.why_unknown
    assert (found.why_not, found.weakness) == ("", "")
    rendering = rendering_of(found)
    assert rendering.reason is PolicyReason.WEBHOOK_NOT_READ
    assert found.why_unknown in rendering.message
    assert rendering_of(changed_calls(**{**change, "rules": []})).reason is PolicyReason.WEBHOOK_NOT_CALLED


def test_of_a_webhook_whose_failures_are_ignored_a_policy_says_so() -> None:
    rendering = rendering_of(changed_calls(failurePolicy="Ignore"))
    found = asyncio.run(evaluate([policy()], [cluster("a")], flaw_of, lambda _c, _p: 0, rendering=rendering))["p"]
    assert found.why is PolicyReason.VALID
    assert "its failurePolicy is not Fail: while it does not answer, new machines join without" in found.message
    assert rendering_of(changed_calls()) == CALLED


async def test_a_control_plane_is_read_by_its_clusters_reference_and_one_that_is_too_large_hides_no_other(
    plane: ControlPlane,
) -> None:
    client, group = plane.client(), "controlplane.cluster.x-k8s.io"
    names: JsonMap = {"plural": "kubeadmcontrolplanes", "kind": "KubeadmControlPlane"}
    schema: JsonMap = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served: JsonMap = {"name": "v1beta2", "served": True, "storage": True, "schema": schema}
    definition: JsonMap = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"kubeadmcontrolplanes.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }
    install_definitions(client, [definition])
    planes = f"/apis/{group}/v1beta2/namespaces/{NAMESPACE}/kubeadmcontrolplanes"
    labels = {"control-planes": "read"}
    kind: JsonMap = {"apiVersion": f"{group}/v1beta2", "kind": "KubeadmControlPlane"}
    marked: JsonMap = {"preKubeadmCommands": [f"kubelet-authenticator {MARK}"]}
    zeros: list[JsonValue] = [0] * 160_000
    many: JsonMap = {"files": [zeros]}
    for name, spec in (("rendered", marked), ("left", {}), ("absent", None), ("large", many)):
        at = create_cluster(client, name, labels=labels)
        client.patch(at, {"spec": {"controlPlaneRef": {"apiGroup": group, "kind": kind["kind"], "name": name}}})
        if spec is not None:
            client.create(planes, {**kind, "metadata": {"name": name}, "spec": {"kubeadmConfigSpec": spec}})
    path, namespace = create_policy(client, "planes", labels=labels), f"/api/v1/namespaces/{NAMESPACE}"
    client.patch(namespace, {"metadata": {"labels": {webhook_label.LABEL: "enabled"}}})
    client.create(CONFIGURATIONS, configuration())
    try:
        async with working(plane, has_webhook=True, label_resync=0.05):
            await until(lambda: map_at(client.get(path), "status").get("unrenderedControlPlanes") == 2)
            said = text_at(ready(plane, path), "message")
            assert "the KubeadmControlPlane of left is not rendered (1 in all)" in said
            assert "the KubeadmControlPlane of large cannot be read (TooLarge; 1 in all)" in said
            client.patch(f"{planes}/left", {"spec": {"kubeadmConfigSpec": marked}})
            await until(lambda: map_at(client.get(path), "status").get("unrenderedControlPlanes") == 1)
            client.patch(f"{planes}/large", {"spec": {"kubeadmConfigSpec": {**marked, "files": None}}})
            await until(lambda: map_at(client.get(path), "status").get("unrenderedControlPlanes") == 0)
    finally:
        client.delete(f"{CONFIGURATIONS}/nodeattest-bootstrap-config")
        client.patch(namespace, {"metadata": {"labels": {webhook_label.LABEL: None}}})
    asked = [one for one in plane.requests() if one.resource == "kubeadmcontrolplanes" and one.namespace == NAMESPACE]
    assert not [one for one in asked if one.verb in {"list", "watch"}]


async def test_a_namespace_that_cannot_be_read_is_read_again_and_meanwhile_not_called_valid(
    plane: ControlPlane,
) -> None:
    client, namespace = plane.client(), f"/api/v1/namespaces/{NAMESPACE}"
    create_cluster(client, "unread")
    path, roles = create_policy(client, "unread"), "/apis/rbac.authorization.k8s.io/v1/"
    groups: list[JsonValue] = [f"{each}cluster.x-k8s.io" for each in ("", "attestation.", "infrastructure.")]
    rules: list[JsonValue] = [
        {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["secrets", "events"], "verbs": ["*"]},
    ]
    role: JsonMap = {"metadata": {"name": "reads-no-namespace"}, "rules": rules}
    client.create(f"{roles}clusterroles", role)
    named: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reads-no-namespace"}
    user: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reads-no-namespace"}
    binding: JsonMap = {"metadata": {"name": "reads-no-namespace"}, "roleRef": named, "subjects": [user]}
    client.create(f"{roles}clusterrolebindings", binding)
    limited = plane.client_kubeconfig("reads-no-namespace")

    async with working(plane, has_webhook=True, kubeconfig=limited):
        await until(says(plane, path, "NamespaceNotRead"))
        assert ready(plane, path)["status"] == "Unknown"
        more: list[JsonValue] = [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}]
        client.patch(f"{roles}clusterroles/reads-no-namespace", {"rules": [*rules, *more]})
        await until(says(plane, path, "NamespaceNotLabelled"))
        client.patch(f"{roles}clusterroles/reads-no-namespace", {"rules": rules})
    async with working(plane, has_webhook=True, kubeconfig=limited, label_resync=0.05):
        await until(says(plane, path, "NamespaceNotRead"))
        client.patch(namespace, {"metadata": {"labels": {webhook_label.LABEL: "enabled"}}})
        client.patch(f"{roles}clusterroles/reads-no-namespace", {"rules": [*rules, *more]})
        await until(says(plane, path, "WebhookNotRead"))  # without the right to read the configuration
        assert ready(plane, path)["status"] == "True"
        named_only: JsonMap = {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["mutatingwebhookconfigurations"],
            "resourceNames": ["nodeattest-bootstrap-config"],
            "verbs": ["get"],
        }
        client.patch(f"{roles}clusterroles/reads-no-namespace", {"rules": [*rules, *more, named_only]})
        await until(says(plane, path, "WebhookNotCalled"))
        client.create(CONFIGURATIONS, configuration())
        await until(says(plane, path, "Valid"))
    client.delete(f"{CONFIGURATIONS}/nodeattest-bootstrap-config")
    client.patch(namespace, {"metadata": {"labels": {webhook_label.LABEL: None}}})


# A policy's spec wakes the clusters beside it, its status does not


def now() -> datetime:
    return datetime(2026, 1, 2, tzinfo=UTC)


def status_of(api: FakeApi, path: str) -> object:
    return dig(api.objects[path], "status", "clusters")


async def test_a_status_wakes_no_cluster_and_a_spec_wakes_all_beside_it() -> None:
    api, changes = management_api(), ChangeBus()
    woken: list[str] = []
    namespaces: list[str] = []
    add_cluster(api, "blue")
    add_cluster(api, "green")
    path = add_policy(api)
    async with cached(api, changes):
        changes.subscribe_clusters(lambda cluster, _keys: woken.append(cluster))
        changes.subscribe_policies(namespaces.append)
        await api.merge_patch(f"{path}/status", {"status": {"clusters": 2}})
        await until(lambda: namespaces == ["fleet"])
        assert not woken
        add_policy(api, enforcement="Audit")
        await until(lambda: len(namespaces) == 2)
        assert sorted(woken) == ["fleet/blue", "fleet/green"]
        woken.clear()
        api.remove(path)
        await until(lambda: len(namespaces) == 3)
        assert sorted(woken) == ["fleet/blue", "fleet/green"]


async def test_a_write_that_another_was_faster_with_is_made_again_from_what_they_wrote() -> None:
    api, changes, metrics = management_api(), ChangeBus(), Metrics()
    add_cluster(api)
    path = add_policy(api)
    raced = asyncio.Event()

    async def faster(method: str, called: str) -> None:
        if method == "PATCH" and called == f"{path}/status" and not raced.is_set():
            raced.set()
            api.put(path, {**api.objects[path], "status": cast("JsonObject", {"clusters": 7})})

    async with cached(api, changes) as management:
        api.on_call = faster
        events = EventRecorder(api, component="test", instance="one", now=now)
        reconciler = PolicyStatusReconciler(
            management, guard=ClusterGuard(management, lambda: True), events=events, metrics=metrics, now=now
        )
        changes.subscribe_policies(reconciler.changed)
        task = asyncio.create_task(reconciler.run())
        changes.policies_changed("fleet")
        await until(lambda: status_of(api, path) == 1)
        assert raced.is_set()
        assert api.count("PATCH", "/status") == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
