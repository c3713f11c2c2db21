"""Large objects of one tenant: what they cost the controller of all grows with their size, and no faster.

Each is as large as an API server stores (1.5 MiB), or takes (a workload cluster's may send 50,000 values). What nobody
reads of an object costs nothing.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import cast

import pytest
from counted_calls import calls
from fake_api import FakeApi

from nodeattest_controller.controllers.auto_approval.node_coverage import is_attested
from nodeattest_controller.controllers.auto_approval.permissions import (
    Permission,
    SubjectKind,
    binds_joiners_or_nodes,
    bootstrap_groups_of,
    grant_of,
    nominal_permissions,
    permissions_of_role,
)
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.options import RenderingRefused, RenderOptions
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import render
from nodeattest_controller.model.csr_request import parse_request
from nodeattest_controller.model.machine_view import bounded, pool_view, view_of_machine
from nodeattest_controller.model.policy import selects
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, set_condition, with_condition
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.informers import without_managed_fields
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied
from nodeattest_providers.names import ProviderName

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BLUE = ClusterKey("fleet/blue")
LARGE = 1_400_000
"""Bytes; with the rest of the object, what etcd stores."""
SENT = 50_000
"""Values that the API server of a workload cluster may send in one object (paging.TENANT)."""


def named(count: int) -> dict[str, JsonValue]:
    return {f"k{number}": "" for number in range(count)}


def times(count: int, value: JsonValue) -> list[JsonValue]:
    return [value] * count


def machine(*, status: JsonObject | None = None, **meta: JsonValue) -> JsonObject:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Machine",
        "metadata": {"name": "m", "namespace": "fleet", "uid": "u", "resourceVersion": "1", **meta},
        "spec": {"clusterName": "blue", "providerID": "x://1"},
        "status": {"bootstrapReady": True, **(status or {})},
    }


OWNER: JsonObject = {"apiVersion": "x/v1", "kind": "K", "name": "o", "uid": "u"}
CONDITION: JsonObject = {"type": "Other", "status": "True"}
ADDRESS: JsonObject = {"type": "InternalIP", "address": "10.0.0.1"}
LARGE_MACHINES = {
    "labels": machine(labels=named(LARGE // 12)),
    "annotations": machine(annotations=named(256_000 // 12)),
    "one annotation": machine(annotations={"a": "x" * 256_000}),
    "managed fields": machine(managedFields=times(LARGE // 20, {"manager": "m"})),
    "finalizers": machine(finalizers=times(LARGE // 12, "example.com/f")),
    "owners": machine(ownerReferences=times(LARGE // 60, OWNER)),
    "conditions": machine(status={"conditions": times(LARGE // 36, CONDITION)}),
    "addresses": machine(status={"addresses": times(30_000, ADDRESS)}),
    "a text": machine(status={"failureMessage": "x" * LARGE}),
}
CALLS_A_MEMBER = 4


def members(value: JsonValue) -> int:
    """Count the members of all lists and objects in it."""
    if isinstance(value, dict):
        return len(value) + sum(map(members, value.values()))
    return len(value) + sum(map(members, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize("name", LARGE_MACHINES)
def test_a_large_machine_costs_a_few_calls_a_member(name: str) -> None:
    large = LARGE_MACHINES[name]
    assert len(json.dumps(large)) < 3 << 20
    for read in (view_of_machine, bounded, without_managed_fields, pool_view):
        assert calls(partial(read, large)) <= 200 + CALLS_A_MEMBER * members(large), read


@pytest.mark.parametrize("name", ["labels", "finalizers", "managed fields", "a text", "one annotation"])
def test_what_nobody_reads_of_a_machine_costs_nothing(name: str) -> None:
    assert calls(lambda: view_of_machine(LARGE_MACHINES[name])) <= calls(lambda: view_of_machine(machine())) + 10


@pytest.mark.parametrize("name", ["labels", "owners", "addresses", "conditions"])
async def test_our_condition_is_replaced_in_a_large_machine_by_a_patch_of_that_condition(name: str) -> None:
    before = Condition("NodeAttested", ConditionStatus.TRUE, "Attested", "by tpm")
    after = Condition("NodeAttested", ConditionStatus.FALSE, "EvidenceInvalid", "the quote is stale")
    large = LARGE_MACHINES[name]
    first = with_condition(large, before, NOW)
    assert first is not None
    status = {**cast("JsonObject", large["status"]), **cast("JsonObject", first["status"])}
    api = WrittenBytes()
    api.put("/m", {**large, "status": status})
    assert await set_condition(api, "/m", {**large, "status": status}, after, lambda: NOW)
    assert 0 < api.written < 4_096


class WrittenBytes(FakeApi):
    """Counts the bytes of what is written."""

    written = 0

    async def json_patch(self, path: str, operations: list[JsonObject]) -> JsonObject:
        """Count, and write."""
        self.written += len(json.dumps(operations))
        return await super().json_patch(path, operations)

    async def merge_patch(self, path: str, body: JsonObject) -> JsonObject:
        """Count, and write."""
        self.written += len(json.dumps(body))
        return await super().merge_patch(path, body)


def role(*rules: JsonObject) -> JsonObject:
    return {"metadata": {"name": "r"}, "rules": [*rules]}


GRANTS: JsonObject = {"verbs": ["create"], "apiGroups": ["*"], "resources": ["*"]}


@pytest.mark.parametrize(
    "rule", [{}, {"verbs": []}, {"verbs": ["get", "list"], "apiGroups": ["apps"]}, {"verbs": ["*"], "apiGroups": ["x"]}]
)
def test_rules_that_grant_nothing_cost_a_few_calls_each_and_hide_none_that_does(rule: JsonObject) -> None:
    count = SENT // (1 + members(rule))
    large = role(*[rule] * count, GRANTS)
    assert permissions_of_role(large) == frozenset(Permission)
    assert calls(lambda: permissions_of_role(role(*[rule] * count))) <= 50 + 9 * count
    assert calls(lambda: nominal_permissions(role(*[rule] * count))) <= 50 + 9 * count


def test_a_rule_of_very_many_verbs_and_resources_costs_as_much_as_one_of_few() -> None:
    wide = role({"verbs": times(SENT // 2, "get"), "apiGroups": ["*"], "resources": times(SENT // 2, "pods")})
    assert permissions_of_role(wide) == frozenset()
    assert calls(lambda: permissions_of_role(wide)) < 50


def test_a_binding_of_very_many_subjects_costs_a_few_calls_each() -> None:
    subject: JsonObject = {"kind": "User", "name": "system:bootstrap:abcdef"}
    count = SENT // 3
    binding: JsonObject = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [*times(count - 1, {"kind": "User", "name": "x"}), subject],
    }
    granted: dict[str, frozenset[Permission]] = {"r": frozenset(Permission)}
    found = grant_of(binding, granted)
    assert found is not None
    assert found.to == {SubjectKind.BOOTSTRAPPERS}
    assert calls(lambda: grant_of(binding, granted)) <= 100 + 16 * count
    assert calls(lambda: binds_joiners_or_nodes(binding)) <= 100 + 16 * count
    assert calls(lambda: bootstrap_groups_of(binding)) <= 100 + 16 * count


def test_labels_of_a_cluster_cost_a_policy_that_selects_it_nothing() -> None:
    policy: JsonObject = {
        "spec": {
            "clusterSelector": {
                "matchLabels": {"a": "b"},
                "matchExpressions": [{"key": "k", "operator": "DoesNotExist"}],
            }
        }
    }
    small: JsonObject = {"metadata": {"labels": {"a": "b"}}}
    large: JsonObject = {"metadata": {"labels": {**named(LARGE // 12), "a": "b"}}}
    assert selects(policy, small)
    assert selects(policy, large)
    assert calls(lambda: selects(policy, large)) == calls(lambda: selects(policy, small))


def test_a_node_of_any_size_costs_the_audit_the_same() -> None:
    inventory = Inventory()
    node: JsonObject = {"metadata": {"name": "n", "uid": "u"}, "spec": {"providerID": "x://1"}}
    status: JsonObject = {
        "images": times(SENT // 6, {"names": ["i"], "sizeBytes": 1}),
        "addresses": times(SENT // 6, ADDRESS),
        "conditions": times(SENT // 6, CONDITION),
    }
    large: JsonObject = {**node, "metadata": {**cast("JsonObject", node["metadata"]), **named(5)}, "status": status}
    small_calls = calls(lambda: is_attested(node, BLUE, inventory, NOW))
    assert calls(lambda: is_attested(large, BLUE, inventory, NOW)) == small_calls


def kubeadm_config(files: int, commands: int = 0) -> JsonObject:
    return {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1",
        "kind": "KubeadmConfig",
        "metadata": {"name": "c", "namespace": "fleet"},
        "spec": {
            "files": [{"path": f"/etc/f{number}", "content": "x"} for number in range(files)],
            "preKubeadmCommands": [f"echo {number}" for number in range(commands)],
            "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": {"provider-id": "x://1"}}},
        },
    }


@pytest.mark.parametrize(("files", "commands"), [(4_000, 0), (0, 8_000), (2_000, 4_000)])
def test_a_configuration_of_thousands_of_files_and_commands_is_refused_at_a_cost_that_grows_with_them(
    files: int, commands: int
) -> None:
    def refused(part: int) -> None:
        with pytest.raises(RenderingRefused, match="with room for ours within"):
            render(kubeadm_config(files // part, commands // part), RenderOptions(provider=ProviderName("tpm")))

    assert calls(lambda: refused(1)) <= 2.1 * calls(lambda: refused(2))


def test_a_configuration_at_the_bounds_is_rendered_at_a_cost_that_grows_with_it() -> None:
    def rendered(part: int) -> int:
        config = kubeadm_config(180 // part, 900 // part)
        return calls(lambda: render(config, RenderOptions(provider=ProviderName("tpm"))))

    assert rendered(1) <= 2.1 * rendered(2)


def test_a_request_with_more_groups_and_extras_than_any_user_has_costs_a_few_calls_a_member() -> None:
    request: JsonObject = {
        "metadata": {"name": "csr-1", "uid": "u", "annotations": named(5_000)},
        "spec": {
            "signerName": "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm",
            "username": "system:bootstrap:abcdef",
            "groups": times(SENT // 2, "g"),
            "extra": {f"k{number}": ["v"] for number in range(SENT // 6)},
            "usages": times(1_000, "client auth"),
        },
    }

    def read() -> None:
        with pytest.raises(Denied):
            parse_request(request)

    assert calls(read) <= 500 + CALLS_A_MEMBER * members(request)
