"""A policy's status: what it says, that it is written when it changes, and never otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from copy import deepcopy
from datetime import UTC, datetime

import pytest
from management_kit import add_cluster, add_policy, cached, deps_of, management_api, tasks
from polling import until

from nodeattest_controller import manifests
from nodeattest_controller.controllers import policy_status
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_controller.model.webhook_configuration import LABEL, WebhookCalls, webhook_calls
from nodeattest_controller.verification.verifiers import first_flaw
from nodeattest_kube.errors import ApiError, Conflict, Forbidden
from nodeattest_parsing.objects import condition, dig, items, mapping
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied
from nodeattest_sandbox.apiserver.jsonvalue import map_at, maps_at

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAMESPACE = "fleet"


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
    rendering: policy_status.Rendering = policy_status.CALLED,
) -> policy_status.PolicyFinding:
    """``joined``: machines of each cluster, by the policy that they joined under."""

    def machines_under(_cluster: JsonObject, name: str) -> int:
        return (joined or {}).get(name, 0)

    return asyncio.run(policy_status.evaluate(policies, clusters, flaw_of, machines_under, rendering))[of]


UNLABELLED = policy_status.rendering_of(NAMESPACE, {})


@pytest.mark.parametrize(
    ("policies", "clusters", "reason"),
    [
        ([policy()], ["a"], policy_status.PolicyReason.NAMESPACE_NOT_LABELLED),
        ([policy()], [], policy_status.PolicyReason.NAMESPACE_NOT_LABELLED),
        ([policy(enforcement="Audit")], ["a"], policy_status.PolicyReason.VALID),
        ([policy(serving="x")], [], policy_status.PolicyReason.INVALID),
        ([policy(), policy("q")], ["a"], policy_status.PolicyReason.CONFLICT),
    ],
)
def test_where_the_namespace_has_no_label_a_policy_that_enforces_is_not_ready_and_says_what_to_do(
    policies: list[JsonObject], clusters: list[str], reason: policy_status.PolicyReason
) -> None:
    found = finding(*policies, clusters=tuple(map(cluster, clusters)), rendering=UNLABELLED)
    assert found.why is reason
    assert (found.condition.status == "True") is (reason is policy_status.PolicyReason.VALID)
    if reason is policy_status.PolicyReason.NAMESPACE_NOT_LABELLED:
        assert found.message.endswith(f"kubectl label namespace {NAMESPACE} {LABEL}=enabled")


@pytest.mark.parametrize(
    ("ruling", "said"),
    [
        (policy("q"), "q goes on"),
        (
            policy("q", tpm={"endorsementCAs": "no PEM"}),
            "no node joins, because its machines joined under q, which is Invalid",
        ),
    ],
)
def test_of_two_policies_the_one_that_machines_joined_under_goes_on_if_it_is_valid(
    ruling: JsonObject, said: str
) -> None:
    for name in ("p", "q"):
        found = finding(policy("p"), ruling, clusters=(cluster("b"),), of=name, joined={"p": 1, "q": 3})
        if found.why is policy_status.PolicyReason.CONFLICT:
            assert said in found.message
        [conflict] = maps_at(map_at(policy_status.status_patch(policy(name), found, NOW) or {}, "status"), "conflicts")
        assert conflict.get("ruling") == ("q" if "goes on" in said else None)
    assert finding(policy("p"), ruling, clusters=(cluster("b"),)).why is policy_status.PolicyReason.CONFLICT


def test_a_thousand_conflicts_are_a_status_of_bounded_size() -> None:
    there = tuple(cluster(f"c{number:04}") for number in range(1000))
    rivals = [policy(f"p{number}") for number in range(20)]
    found = finding(*rivals, clusters=there, of="p0")
    patch = policy_status.status_patch(policy("p0"), found, NOW)
    assert patch is not None
    assert len(list(maps_at(map_at(patch, "status"), "conflicts"))) == policy_status.MAX_CONFLICTS
    assert len(found.message) < 1000


# The webhook's configuration


def configuration() -> JsonObject:
    [found] = [one for one in manifests.objects("webhook") if one["kind"] == "MutatingWebhookConfiguration"]
    return deepcopy(found)


LABELLED: JsonObject = {"metadata": {"labels": {LABEL: "enabled", "team": "a"}}}
TEAM_A: JsonObject = {"key": "team", "operator": "In", "values": ["a"]}
TEAM_B: JsonObject = {"key": "team", "operator": "In", "values": ["b"]}


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
    ("change", "why_not", "why_unknown"),
    [
        ({"namespaceSelector": {"matchExpressions": [TEAM_A]}}, "", ""),
        ({"namespaceSelector": {"matchExpressions": [TEAM_B]}}, "leaves this namespace out", ""),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, "leaves this namespace out", ""),
        ({"rules": []}, "has no rules", ""),
        ({"objectSelector": {"matchLabels": {"no": "such"}}}, "", "has objectSelector; make it that of manifests/"),
        ({"matchConditions": [{"name": "never", "expression": "false"}]}, "", "has matchConditions; make it that of"),
        ({"rules": [{"apiGroups": ["*"]}]}, "", "has other rules; make it that of"),
    ],
)
def test_a_configuration_that_was_changed_is_read_as_api_servers_do(
    change: JsonObject, why_not: str, why_unknown: str
) -> None:
    found = changed_calls(**change)
    assert why_not in found.why_not
    assert why_unknown in found.why_unknown
    assert (bool(found.why_not), bool(found.why_unknown)) == (bool(why_not), bool(why_unknown))
    reason = policy_status.rendering_of(NAMESPACE, LABELLED, found).reason
    assert (reason is policy_status.PolicyReason.WEBHOOK_NOT_READ) is bool(why_unknown)
    assert (reason is policy_status.PolicyReason.WEBHOOK_NOT_CALLED) is bool(why_not)


def test_of_a_webhook_whose_failures_are_ignored_a_policy_says_so() -> None:
    rendering = policy_status.rendering_of(NAMESPACE, LABELLED, changed_calls(failurePolicy="Ignore"))
    found = asyncio.run(policy_status.evaluate([policy()], [cluster("a")], flaw_of, lambda _c, _p: 0, rendering))["p"]
    assert found.why is policy_status.PolicyReason.VALID
    assert "its failurePolicy is not Fail: while it does not answer, new machines join without" in found.message
    assert policy_status.rendering_of(NAMESPACE, LABELLED, changed_calls()) == policy_status.CALLED


# In a management cluster

NAMESPACE_PATH = f"/api/v1/namespaces/{NAMESPACE}"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/nodeattest-bootstrap-config"


class Office:
    """A management cluster with a Cluster and a policy, and what writes of the policy."""

    def __init__(self) -> None:
        self.api, self.metrics = management_api(), Metrics()
        self.denied: dict[str, ApiError] = {}
        """By path: what reading it is answered."""
        self.api.on_call = self._call
        self.label(**{LABEL: "enabled"})
        self.path = add_policy(self.api)

    async def _call(self, _method: str, path: str) -> None:
        if path in self.denied:
            raise self.denied[path]

    def label(self, **labels: JsonValue) -> None:
        self.api.put(NAMESPACE_PATH, {"metadata": {"labels": labels}})

    def status(self, path: str = "") -> JsonObject:
        return mapping(self.api.objects[path or self.path], "status")

    def ready(self, path: str = "") -> JsonObject:
        return dict(condition(items(self.status(path), "conditions"), "Ready") or {})

    async def says(self, reason: str, path: str = "") -> None:
        await until(lambda: self.ready(path).get("reason") == reason)

    def counted(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value("nodeattest_policies", {"reason": reason})

    @asynccontextmanager
    async def working(self, *, has_webhook: bool = False, recount: float = 0.05) -> AsyncGenerator[None]:
        async with cached(self.api) as management:
            deps = deps_of(management, now=lambda: NOW, metrics=self.metrics)
            configuration = "nodeattest-bootstrap-config" if has_webhook else None
            keeper = policy_status.PolicyStatusReconciler(deps, configuration, recount=recount, label_resync=0.05)
            management.changes.subscribe_clusters(keeper.cluster_changed)
            management.changes.subscribe_policies(keeper.changed)
            management.changes.policies_changed(NAMESPACE)
            async with tasks(keeper.run()):
                yield
            await deps.events.drain()


async def test_a_policys_life_is_told_in_its_status() -> None:
    office = Office()
    async with office.working(recount=60):
        await office.says("SelectsNothing")
        add_cluster(office.api)
        await office.says("Valid")
        assert office.status()["clusters"] == 1
        rival = add_policy(office.api, "rival")
        await office.says("Conflict")
        await office.says("Conflict", rival)
        office.api.remove(rival)
        await office.says("Valid")
        add_policy(office.api, certificateLifetme="1h")
        await office.says("Invalid")
        generation = dig(office.api.objects[office.path], "metadata", "generation")
        assert office.status()["observedGeneration"] == office.ready()["observedGeneration"] == generation
        assert (office.counted("Invalid"), office.counted("Conflict")) == (1, 0)
    assert {"PolicyInvalid", "PolicyConflict"} <= {*office.api.events()}


async def test_a_policy_says_when_no_api_server_calls_the_webhook_for_its_namespace() -> None:
    office = Office()
    add_cluster(office.api)
    async with office.working(has_webhook=True):
        await office.says("WebhookNotCalled")
        assert "MutatingWebhookConfiguration is absent" in str(office.ready()["message"])
        assert office.ready()["status"] == "False"
        assert office.counted("WebhookNotCalled") == 1
        office.api.put(CONFIGURATION, configuration())
        await office.says("Valid")
        [webhook] = maps_at(configuration(), "webhooks")
        narrowed: JsonObject = {**webhook, "objectSelector": {"matchLabels": {"no": "such"}}}
        office.api.put(CONFIGURATION, {**configuration(), "webhooks": [narrowed]})
        await office.says("WebhookNotRead")
        office.api.remove(CONFIGURATION)
        await office.says("WebhookNotCalled")
    told = dict(zip(office.api.events(), office.api.events("message"), strict=True))
    assert "PolicyWebhookNotCalled" in told
    assert "nodeattest policy check -f -" in told["PolicyLeftUnrendered"]
    assert not office.api.count("LIST", "mutatingwebhook") + office.api.count("WATCH", "mutatingwebhook")


async def test_a_namespace_that_cannot_be_read_is_read_again_and_meanwhile_not_called_valid() -> None:
    office, forbidden = Office(), Forbidden(403, "Forbidden", "no")
    add_cluster(office.api)
    office.denied = {NAMESPACE_PATH: forbidden, CONFIGURATION: forbidden}
    async with office.working(has_webhook=True):
        await office.says("NamespaceNotRead")
        assert office.ready()["status"] == "Unknown"
        office.label()
        del office.denied[NAMESPACE_PATH]
        await office.says("NamespaceNotLabelled")
        office.label(**{LABEL: "enabled"})
        await office.says("WebhookNotRead")  # without the right to read the configuration
        assert office.ready()["status"] == "True"
        office.denied.clear()
        await office.says("WebhookNotCalled")


async def test_a_status_wakes_no_cluster_and_a_spec_wakes_all_beside_it() -> None:
    office, woken = Office(), list[str]()
    add_cluster(office.api, "blue")
    add_cluster(office.api, "green")
    async with cached(office.api) as management:
        management.changes.subscribe_clusters(lambda cluster, _keys: woken.append(cluster))
        await office.api.merge_patch(f"{office.path}/status", {"status": {"clusters": 2}})
        add_policy(office.api, enforcement="Audit")
        await until(lambda: len(woken) == 2)
        office.api.remove(office.path)
        await until(lambda: len(woken) == 4)
    assert sorted(woken[:2]) == sorted(woken[2:]) == ["fleet/blue", "fleet/green"]


async def test_a_write_that_another_was_faster_with_is_made_again_from_what_they_wrote() -> None:
    office = Office()
    add_cluster(office.api)
    office.api.fail("PATCH", f"{office.path}/status", Conflict(409, "Conflict", "another was faster"))
    async with office.working():
        office.api.put(office.path, {**office.api.objects[office.path], "status": {"clusters": 7}})
        await until(lambda: office.status()["clusters"] == 1)
    assert office.api.count("PATCH", "/status") == 2
