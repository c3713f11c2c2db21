"""Automatic approval, by tables: who passes by RBAC, what is removed and what is said, which Nodes are attested."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest
from cel_rules import admits
from node_attested_world import KEY, NOW, document, ledger, machine, record

from nodeattest_controller.controllers.auto_approval.approval_block import CHECK_NAME, EXPRESSION, IN_TREE_SIGNER
from nodeattest_controller.controllers.auto_approval.certificates import BESIDES, with_certificates
from nodeattest_controller.controllers.auto_approval.decide import (
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    WAITING_FOR_CLUSTER_INFO,
    AllowedPairs,
    ApprovalReason,
    AuditFacts,
    Finding,
    NodeCoverage,
    Permission,
    RoleGrant,
    SubjectKind,
    cannot_verify,
    decide,
    grant_of,
    is_attested,
    permissions_of_role,
)
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_controller.runtime.indexes import Inventory
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import NodeName, ProviderID, Purpose

TOKENS, NODES = SubjectKind.BOOTSTRAPPERS, SubjectKind.NODES
NODE, SELF = Permission.NODE_CLIENT, Permission.SELF_NODE_CLIENT
BOTH = frozenset(Permission)
NOTHING: frozenset[Permission] = frozenset()
NOBODY: frozenset[SubjectKind] = frozenset()

# RBAC, as kube-apiserver evaluates it

CSRS = "certificatesigningrequests"
ROLE = f"system:certificates.k8s.io:{CSRS}:nodeclient"
SELF_ROLE = f"system:certificates.k8s.io:{CSRS}:selfnodeclient"
TOKEN_GROUP = ("Group", "system:bootstrappers:kubeadm:default-node-token")
ALL_TOKENS = ("Group", "system:bootstrappers")
NODE_GROUP = ("Group", "system:nodes")


def rule(verbs: str = "create", groups: str = "certificates.k8s.io", resources: str = "") -> JsonObject:
    resources = resources or f"{CSRS}/nodeclient"
    return {"verbs": [*verbs.split()], "apiGroups": [*groups.split()], "resources": [*resources.split()]}


def binding(name: str, role: str, *subjects: tuple[str, str]) -> JsonObject:
    return {
        "metadata": {"name": name, "uid": "u-1", "resourceVersion": "7"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": subject, "name": named} for subject, named in subjects],
    }


@pytest.mark.parametrize(
    ("given", "permissions"),
    [
        (rule(), {NODE}),
        (rule(resources=f"pods {CSRS}/nodeclient {CSRS}/selfnodeclient"), BOTH),
        (rule(verbs="*"), {NODE}),
        (rule(verbs="get list update"), NOTHING),
        (rule(groups="apps"), NOTHING),
        (rule(resources="*/nodeclient"), {NODE}),
        (rule(resources=f"{CSRS}/*"), NOTHING),
        (rule(resources=CSRS), NOTHING),
        ({**rule(), "resourceNames": ["one", ""]}, {NODE}),
        ({**rule(), "resourceNames": ["one"]}, NOTHING),
        ({"verbs": "create", "apiGroups": None, "resources": 3}, NOTHING),
    ],
)
def test_a_rule_lets_pass_what_the_api_server_says(given: JsonObject, permissions: AbstractSet[Permission]) -> None:
    assert permissions_of_role({"rules": [given]}) == permissions


@pytest.mark.parametrize(
    ("kind", "name", "to"),
    [
        (*TOKEN_GROUP, {TOKENS}),
        ("User", "system:bootstrap:abcdef", {TOKENS}),
        (*NODE_GROUP, {NODES}),
        ("User", "system:node:one", {NODES}),
        ("Group", "system:authenticated", set(SubjectKind)),
        ("User", "system:anonymous", set(SubjectKind)),
        ("Group", "system:masters", NOBODY),
        ("User", "system:bootstrappers", NOBODY),
        ("ServiceAccount", "system:nodes", NOBODY),
    ],
)
def test_a_subject_is_a_token_a_node_both_or_none_of_our_business(
    kind: str, name: str, to: AbstractSet[SubjectKind]
) -> None:
    found = grant_of(binding("b", "r", (kind, name)), {"r": frozenset({NODE})})
    assert (found.to if found else set()) == to


@pytest.mark.parametrize(
    ("made", "is_kubeadms"),
    [
        (binding(KUBEADM_BOOTSTRAP, ROLE, TOKEN_GROUP), True),
        (binding(KUBEADM_BOOTSTRAP, ROLE, ALL_TOKENS), True),
        (binding(KUBEADM_ROTATION, SELF_ROLE, NODE_GROUP), True),
        (binding("kubeadm:other", ROLE, ALL_TOKENS), False),
        (binding(KUBEADM_BOOTSTRAP, "mine", ALL_TOKENS), False),
        (binding(KUBEADM_BOOTSTRAP, SELF_ROLE, ALL_TOKENS), False),
        (binding(KUBEADM_BOOTSTRAP, ROLE, NODE_GROUP), False),
        (binding(KUBEADM_ROTATION, SELF_ROLE, NODE_GROUP, ("User", "boss")), False),
        (binding(KUBEADM_ROTATION, SELF_ROLE, ("Group", "system:authenticated")), False),
        (binding(KUBEADM_ROTATION, ROLE, NODE_GROUP), False),
    ],
)
def test_only_what_kubeadm_makes_under_its_name_is_kubeadms(made: JsonObject, is_kubeadms: bool) -> None:
    found = grant_of(made, {ROLE: frozenset({NODE}), SELF_ROLE: frozenset({SELF}), "mine": BOTH})
    assert found is not None
    assert found.is_kubeadm_default is is_kubeadms


# What is removed, and what the condition says


def grant(name: str, subject: SubjectKind, permission: Permission, *, is_kubeadms: bool = True) -> RoleGrant:
    return RoleGrant(
        created="2026-01-01T00:00:00Z",
        name=name,
        uid="u",
        resource_version="1",
        role="r",
        permissions=frozenset({permission}),
        to=frozenset({subject}),
        is_kubeadm_default=is_kubeadms,
    )


BOOTSTRAP = grant(KUBEADM_BOOTSTRAP, TOKENS, NODE)
ROTATION = grant(KUBEADM_ROTATION, NODES, SELF)
FOREIGN = grant("foreign", TOKENS, NODE, is_kubeadms=False)
FOREIGN_ROTATION = grant("kubespray:system:nodes", NODES, SELF, is_kubeadms=False)
ALL = NodeCoverage(nodes=3)
LATE = NodeCoverage(nodes=3, unattested=("old-1",))


def facts(
    *grants: RoleGrant, allowed: AllowedPairs | None = None, coverage: NodeCoverage = ALL, enforce: bool = True
) -> AuditFacts:
    seen = frozenset((who, permission) for one in grants for who in one.to for permission in one.permissions)
    return AuditFacts(grants=grants, allowed=seen if allowed is None else allowed, coverage=coverage, enforce=enforce)


NOT_BY_RBAC = frozenset({(TOKENS, NODE)})
Because = ApprovalReason


@pytest.mark.parametrize(
    ("given", "removes", "reason"),
    [
        (facts(), None, Because.CLOSED),
        (facts(coverage=LATE), None, Because.CLOSED),
        (facts(BOOTSTRAP, ROTATION), BOOTSTRAP, Because.OPEN),
        (facts(BOOTSTRAP, coverage=LATE), BOOTSTRAP, Because.OPEN),
        (facts(ROTATION), ROTATION, Because.CLOSED_FOR_BOOTSTRAP),
        (facts(ROTATION, coverage=LATE), None, Because.CLOSED_FOR_BOOTSTRAP),
        (facts(ROTATION, coverage=NodeCoverage()), None, Because.CLOSED_FOR_BOOTSTRAP),
        (facts(FOREIGN), None, Because.FOREIGN_BINDING),
        (facts(FOREIGN, BOOTSTRAP), BOOTSTRAP, Because.FOREIGN_BINDING),
        (facts(FOREIGN, ROTATION), None, Because.FOREIGN_BINDING),
        (facts(FOREIGN, allowed=frozenset()), None, Because.FOREIGN_BINDING),
        (facts(FOREIGN_ROTATION, ROTATION), ROTATION, Because.FOREIGN_BINDING),
        (facts(allowed=NOT_BY_RBAC), None, Because.FOREIGN_AUTHORIZER),
        (facts(ROTATION, allowed=NOT_BY_RBAC | {(NODES, SELF)}), None, Because.FOREIGN_AUTHORIZER),
        (facts(enforce=False), None, Because.CLOSED),
        (facts(BOOTSTRAP, enforce=False), None, Because.AUDIT),
        (facts(ROTATION, enforce=False), None, Because.AUDIT),
        (facts(FOREIGN, enforce=False), None, Because.AUDIT),
        (facts(allowed=NOT_BY_RBAC, enforce=False), None, Because.AUDIT),
    ],
)
def test_each_finding_has_its_act_and_its_words(
    given: AuditFacts, removes: RoleGrant | None, reason: ApprovalReason
) -> None:
    binding, finding = decide(given)
    assert (binding, finding.reason) == (removes, reason)
    assert (finding.status is ConditionStatus.TRUE) is (reason is Because.CLOSED)
    assert finding.message


@pytest.mark.parametrize("doubt", [WAITING_FOR_CLUSTER_INFO, cannot_verify("?")])
@pytest.mark.parametrize("given", [facts(), facts(ROTATION, coverage=LATE), facts(coverage=LATE)])
def test_nothing_is_called_closed_while_there_is_doubt(given: AuditFacts, doubt: Finding) -> None:
    assert decide(replace(given, doubt=doubt))[1] == doubt
    assert doubt.status is ConditionStatus.UNKNOWN


@pytest.mark.parametrize("given", [facts(), facts(BOOTSTRAP), facts(FOREIGN)])
def test_an_issued_certificate_decides_the_reason_and_the_message_keeps_the_rest(given: AuditFacts) -> None:
    _binding, finding = decide(given)
    assert with_certificates(finding, "") == finding
    found = with_certificates(finding, "two certificates")
    assert (found.status, found.reason) == (ConditionStatus.FALSE, Because.CERTIFICATES_ISSUED)
    assert found.message == f"two certificates{BESIDES}{finding.message}"


def test_the_message_names_bindings_nodes_and_the_remedy() -> None:
    said = decide(facts(FOREIGN, FOREIGN_ROTATION, coverage=LATE))[1].message
    assert "kubectl delete clusterrolebinding foreign kubespray:system:nodes" in said
    assert "1 of 3 Nodes are not in the ledger: old-1" in said
    assert "nodeattest machines adopt" in said
    audit = decide(facts(BOOTSTRAP, coverage=LATE, enforce=False))[1].message
    assert f"would delete ClusterRoleBinding {KUBEADM_BOOTSTRAP}" in audit


# Which Nodes count as attested: the ledger's own machine under the Node's own name, with an unexpired certificate

ME = machine()
KNOWN = ledger(ME)


def recorded(known: Attestation = KNOWN, *, owner: str = ME.uid) -> JsonObject:
    return record(replace(ME, uid=owner), known)


def serving(known: Attestation) -> Attestation:
    return replace(known, issued=tuple(replace(entry, purpose=Purpose.SERVING) for entry in known.issued))


def counts(node: JsonObject, machines: list[JsonObject], records: list[JsonObject]) -> bool:
    inventory = Inventory()
    for number, made in enumerate(machines):
        inventory.put_machine(f"m{number}", made)
    for number, made in enumerate(records):
        inventory.put_attestation(f"l{number}", made)
    return is_attested({"metadata": {"name": ME.name, "uid": "n"}, "spec": {}, **node}, KEY, inventory, NOW)


def test_a_node_without_provider_id_is_attested_where_the_machine_refers_to_it() -> None:
    def referring(**reference: str) -> list[JsonObject]:
        return [{**document(ME), "status": {"nodeRef": {**reference}}}]

    assert counts({}, referring(name=ME.name, uid="n"), [recorded()])
    assert not counts({}, referring(name=ME.name, uid="other"), [recorded()])
    assert not counts({}, [{**document(ME), "status": {}}], [recorded()])
    assert not counts({"metadata": {"name": ME.name}}, referring(name=ME.name), [recorded()])


@pytest.mark.parametrize(
    ("machines", "records", "is_counted"),
    [
        ([document(ME)], [recorded()], True),
        ([], [recorded()], False),
        ([document(ME)], [], False),
        ([document(ME)], [recorded(ledger(ME, ends=NOW))], False),
        ([document(ME)], [recorded(serving(KNOWN))], False),
        ([document(ME)], [recorded(replace(KNOWN, node_name=NodeName("two")))], False),
        ([document(ME)], [recorded(owner="m-before")], False),
        ([document(ME)], [recorded(), recorded(replace(KNOWN, provider_id=ProviderID("sandbox://two")))], False),
        ([document(ME), document(replace(ME, uid="m-copy"))], [recorded()], False),
        ([document(replace(ME, uid=""))], [recorded(owner="")], False),
    ],
)
def test_a_node_is_attested_by_one_machine_and_its_one_unexpired_record(
    machines: list[JsonObject], records: list[JsonObject], is_counted: bool
) -> None:
    said: JsonObject = {"type": "virtual-kubelet", "nodeattest/exempt": "true"}  # which a node may write
    metadata: JsonObject = {"name": ME.name, "uid": "n", "labels": said, "annotations": said}
    assert counts({"metadata": metadata, "spec": {"providerID": ME.provider_id}}, machines, records) is is_counted


# Whose requests the ValidatingAdmissionPolicy refuses

REQUESTERS: Mapping[str, tuple[str, ...] | None] = {
    "system:bootstrap:abcdef": ("system:bootstrappers", TOKEN_GROUP[1], "system:authenticated"),
    "system:bootstrap:fedcba": ("system:bootstrappers",),
    "a person in the group": ("system:masters", "system:bootstrappers"),
    "system:node:n": ("system:nodes", "system:authenticated"),
    "system:serviceaccount:kube-system:c": ("system:serviceaccounts", "system:authenticated"),
    "admin": ("system:masters", "system:authenticated"),
    "system:anonymous": ("system:unauthenticated",),
    "of a name alike": (TOKEN_GROUP[1], "system:bootstrapper", "System:Bootstrappers", " system:bootstrappers"),
    "without groups": (),
    "without the field": None,
}
"""Every kind of user of an API server, and the groups with which it comes; the first three are refused."""
OTHER_SIGNERS = ("kubernetes.io/kubelet-serving", "kubernetes.io/legacy-unknown", f"{IN_TREE_SIGNER}-tpm")


@pytest.mark.parametrize("metadata", [{"name": "csr-1"}, {"generateName": "csr-"}, {"name": CHECK_NAME}])
@pytest.mark.parametrize("dry_run", [None, False, True])
@pytest.mark.parametrize("user", REQUESTERS)
def test_the_expression_refuses_bootstrap_tokens_the_in_tree_signer_and_nobody_anything_else_but_the_check(
    user: str, dry_run: bool | None, metadata: JsonObject
) -> None:
    def is_admitted(signer: str) -> bool:
        filed: JsonObject = {"metadata": metadata, "spec": {"signerName": signer, "usages": ["client auth"]}}
        return admits(EXPRESSION, filed, request)

    groups = REQUESTERS[user]
    info: JsonObject = {"username": user, **({} if groups is None else {"groups": [*groups]})}
    request: JsonObject = {"userInfo": info, **({} if dry_run is None else {"dryRun": dry_run})}
    refused = "system:bootstrappers" in (groups or ()) or (dry_run is True and metadata == {"name": CHECK_NAME})
    assert is_admitted(IN_TREE_SIGNER) is not refused
    assert all(map(is_admitted, OTHER_SIGNERS))
