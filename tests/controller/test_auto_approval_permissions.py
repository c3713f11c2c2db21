"""Who passes the in-tree approver by RBAC: a table of rules and subjects, each as kube-apiserver evaluates it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pytest

from nodeattest_controller.controllers.auto_approval.permissions import (
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    Permission,
    SubjectKind,
    bootstrap_groups_of,
    grant_of,
    permissions_of_role,
)
from nodeattest_kube.jsontypes import JsonObject

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
        (rule(resources=f"{CSRS}/selfnodeclient"), {SELF}),
        (rule(resources=f"pods {CSRS}/nodeclient {CSRS}/selfnodeclient"), BOTH),
        (rule(verbs="*"), {NODE}),
        (rule(verbs="get list update"), NO_DOORS),
        (rule(groups="*"), {NODE}),
        (rule(groups="apps"), NO_DOORS),
        (rule(resources="*"), BOTH),
        (rule(resources="*/nodeclient"), {NODE}),
        (rule(resources=f"{CSRS}/*"), NO_DOORS),
        (rule(resources="*/*"), NO_DOORS),
        (rule(resources=CSRS), NO_DOORS),
        (rule(names="one"), NO_DOORS),
        ({**rule(), "resourceNames": ["one", ""]}, {NODE}),
        ({"nonResourceURLs": ["*"], "verbs": ["*"]}, NO_DOORS),
        ({"verbs": "create", "apiGroups": None, "resources": 3}, NO_DOORS),
    ],
)
def test_a_rule_lets_pass_what_the_api_server_says(given: JsonObject, permissions: AbstractSet[Permission]) -> None:
    assert permissions_of_role({"rules": [given]}) == permissions


def test_a_role_lets_pass_what_any_of_its_rules_does() -> None:
    assert permissions_of_role({"rules": [rule(), rule(resources="*/selfnodeclient")]}) == BOTH
    assert permissions_of_role({}) == frozenset()
    assert permissions_of_role({"rules": "none"}) == frozenset()


@pytest.mark.parametrize(
    ("kind", "name", "to"),
    [
        ("Group", "system:bootstrappers", {SubjectKind.BOOTSTRAPPERS}),
        ("Group", "system:bootstrappers:kubeadm:default-node-token", {SubjectKind.BOOTSTRAPPERS}),
        ("Group", "system:bootstrappers:mine", {SubjectKind.BOOTSTRAPPERS}),
        ("User", "system:bootstrap:abcdef", {SubjectKind.BOOTSTRAPPERS}),
        ("Group", "system:nodes", {SubjectKind.NODES}),
        ("User", "system:node:one", {SubjectKind.NODES}),
        ("Group", "system:authenticated", set(SubjectKind)),
        ("Group", "system:unauthenticated", set(SubjectKind)),
        ("User", "system:anonymous", set(SubjectKind)),
        ("Group", "system:masters", NO_ONE),
        ("Group", "system:bootstrap:abcdef", NO_ONE),
        ("User", "system:bootstrappers", NO_ONE),
        ("User", "system:nodes", NO_ONE),
        ("ServiceAccount", "system:nodes", NO_ONE),
        ("Group", "system:bootstrappersX", NO_ONE),
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


@pytest.mark.parametrize(
    "made",
    [
        binding("b", "gone", ("Group", "system:nodes")),
        binding("b", "r"),
        binding("b", "r", ("Group", "system:nodes"), kind="Role"),
        {},
        {"subjects": "x", "roleRef": []},
    ],
)
def test_what_grants_nothing_is_no_grant(made: JsonObject) -> None:
    assert grant_of(made, {"r": BOTH}) is None


def test_groups_of_tokens_are_taken_from_bindings_of_any_role() -> None:
    subjects = [("Group", "system:bootstrappers:a"), ("User", "system:bootstrappers:b"), ("Group", "system:nodes")]
    assert bootstrap_groups_of(binding("b", "r", *subjects)) == {"system:bootstrappers:a"}
