"""Who passes the in-tree approver by RBAC: a table of rules and subjects, each as kube-apiserver evaluates it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from fake_api import FakeApi
from polling import until

from nodeattest_controller.controllers.auto_approval.permissions import (
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    Permission,
    SubjectKind,
    grant_of,
    permissions_of_role,
)
from nodeattest_controller.controllers.auto_approval.rbac_audit import RBACAudit, trouble_of
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, TooLarge, Unreachable, WatchHung
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane

ROLE = "system:certificates.k8s.io:certificatesigningrequests:"
NODE, SELF = Permission.NODE_CLIENT, Permission.SELF_NODE_CLIENT
BOTH = frozenset(Permission)
NO_DOORS: frozenset[Permission] = frozenset()
NO_ONE: frozenset[SubjectKind] = frozenset()
CSRS = "certificatesigningrequests"


def rule(
    verbs: str = "create", groups: str = "certificates.k8s.io", resources: str = "", names: str = ""
) -> JsonObject:
    made: JsonObject = {
        "verbs": [*verbs.split()],
        "apiGroups": [*groups.split()],
        "resources": [*(resources or f"{CSRS}/nodeclient").split()],
    }
    return {**made, **({"resourceNames": [*names.split()]} if names else {})}


def binding(name: str, role: str, *subjects: tuple[str, str], kind: str = "ClusterRole") -> JsonObject:
    return {
        "metadata": {"name": name, "uid": "u-1", "resourceVersion": "7"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": subject, "name": named} for subject, named in subjects],
    }


@pytest.mark.parametrize(
    ("given", "permissions"),
    [
        (rule(), {NODE}),
        (rule(resources=f"pods {CSRS}/nodeclient {CSRS}/selfnodeclient"), BOTH),
        (rule(verbs="*"), {NODE}),
        (rule(verbs="get list update"), NO_DOORS),
        (rule(groups="apps"), NO_DOORS),
        (rule(resources="*/nodeclient"), {NODE}),
        (rule(resources=f"{CSRS}/*"), NO_DOORS),
        (rule(resources=CSRS), NO_DOORS),
        ({**rule(), "resourceNames": ["one", ""]}, {NODE}),
        ({"verbs": "create", "apiGroups": None, "resources": 3}, NO_DOORS),
    ],
)
def test_a_rule_lets_pass_what_the_api_server_says(given: JsonObject, permissions: AbstractSet[Permission]) -> None:
    assert permissions_of_role({"rules": [given]}) == permissions


@pytest.mark.parametrize(
    ("kind", "name", "to"),
    [
        ("Group", "system:bootstrappers:kubeadm:default-node-token", {SubjectKind.BOOTSTRAPPERS}),
        ("User", "system:bootstrap:abcdef", {SubjectKind.BOOTSTRAPPERS}),
        ("Group", "system:nodes", {SubjectKind.NODES}),
        ("User", "system:node:one", {SubjectKind.NODES}),
        ("Group", "system:authenticated", set(SubjectKind)),
        ("User", "system:anonymous", set(SubjectKind)),
        ("Group", "system:masters", NO_ONE),
        ("User", "system:bootstrappers", NO_ONE),
        ("ServiceAccount", "system:nodes", NO_ONE),
    ],
)
def test_a_subject_is_a_token_a_node_both_or_none_of_our_business(
    kind: str, name: str, to: AbstractSet[SubjectKind]
) -> None:
    found = grant_of(binding("b", "r", (kind, name)), {"r": frozenset({NODE})})
    assert (found.to if found else frozenset()) == to


@pytest.mark.parametrize(
    ("made", "kubeadms"),
    [
        (
            binding(
                KUBEADM_BOOTSTRAP, ROLE + "nodeclient", ("Group", "system:bootstrappers:kubeadm:default-node-token")
            ),
            True,
        ),
        (binding(KUBEADM_BOOTSTRAP, ROLE + "nodeclient", ("Group", "system:bootstrappers")), True),
        (binding(KUBEADM_ROTATION, ROLE + "selfnodeclient", ("Group", "system:nodes")), True),
        (binding("kubeadm:other", ROLE + "nodeclient", ("Group", "system:bootstrappers")), False),
        (binding(KUBEADM_BOOTSTRAP, "mine", ("Group", "system:bootstrappers")), False),
        (binding(KUBEADM_BOOTSTRAP, ROLE + "selfnodeclient", ("Group", "system:bootstrappers")), False),
        (binding(KUBEADM_BOOTSTRAP, ROLE + "nodeclient", ("Group", "system:nodes")), False),
        (binding(KUBEADM_ROTATION, ROLE + "selfnodeclient", ("Group", "system:nodes"), ("User", "boss")), False),
        (binding(KUBEADM_ROTATION, ROLE + "selfnodeclient", ("Group", "system:authenticated")), False),
        (binding(KUBEADM_ROTATION, ROLE + "nodeclient", ("Group", "system:nodes")), False),
    ],
)
def test_only_what_kubeadm_makes_under_its_name_is_kubeadms(made: JsonObject, kubeadms: bool) -> None:
    permissions = {ROLE + "nodeclient": frozenset({NODE}), ROLE + "selfnodeclient": frozenset({SELF}), "mine": BOTH}
    found = grant_of(made, permissions)
    assert found is not None
    assert found.is_kubeadm_default is kubeadms
    assert (found.uid, found.resource_version) == ("u-1", "7")


# The look at a cluster: RBAC as the API server resolves it, and the API server's own word where RBAC says nothing


RBAC = "/apis/rbac.authorization.k8s.io/v1"


NOT_LISTED = "the first list is not complete yet"


@pytest.fixture
def made(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Paths of what a test makes, which goes at its end."""
    paths: list[str] = []
    yield paths
    for path in paths:
        with suppress(ApiRefusal):
            control_plane.client().send("DELETE", path)


async def test_a_list_that_does_not_end_is_an_error_and_not_the_controllers_end(control_plane: ControlPlane) -> None:
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        key, clock = cluster_key("fleet", "c"), lambda: 0.0
        survey = RBACAudit(key, client, Inventory(), now=lambda: datetime.now(UTC), clock=clock, most=1)
        with pytest.raises(TooLarge, match="ClusterRoles does not end"):
            await survey.look(enforce=True)


async def test_rbac_counts_as_not_watched_from_a_hung_watch_until_the_next_complete_list() -> None:
    api, troubles = FakeApi(), list[str]()
    failing: list[ApiError] = [WatchHung("hung"), Unreachable("down")]

    async def fail(_method: str, _path: str) -> None:
        if api.count("WATCH") and failing:
            raise failing.pop(0)
        troubles.append(trouble_of(reflector))

    async def pause(_seconds: float) -> None:
        troubles.append(trouble_of(reflector))

    api.on_call = fail
    reflector = Reflector(api, f"{RBAC}/clusterroles", on_change=lambda _key, _item: None, sleep=pause)
    task = asyncio.create_task(reflector.run())
    await until(lambda: api.count("WATCH") == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert troubles == [NOT_LISTED, "Unreachable: hung", "Unreachable: hung", "Unreachable: hung", ""]
    assert [method for method, _path in api.calls] == ["LIST", "WATCH", "LIST", "LIST", "WATCH"]
