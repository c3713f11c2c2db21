"""The block of in-tree approvals: in force against bootstrap tokens alone, verified, and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
from cel_rules import admits
from polling import until

from nodeattest_controller.controllers.auto_approval.approval_block import (
    CHECK_NAME,
    EXPRESSION,
    IN_TREE_SIGNER,
    POLICY_NAME,
    ApprovalBlock,
)
from nodeattest_controller.controllers.auto_approval.decide import (
    NODE_CLIENT_ROLE,
    permissions_of_role,
)
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at
from nodeattest_sandbox.control_plane import ControlPlane

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICY = f"{ADMISSION}/validatingadmissionpolicies/{POLICY_NAME}"
BINDING = f"{ADMISSION}/validatingadmissionpolicybindings/{POLICY_NAME}"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{NODE_CLIENT_ROLE}"


OTHER_RULE: JsonMap = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
    "scope": "*",
}
BOOTSTRAPPERS = ("system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token")


@pytest.fixture
async def block(control_plane: ControlPlane) -> AsyncIterator[ApprovalBlock]:
    """Make a block, which is removed at the end."""
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        made = ApprovalBlock(client)
        yield made
        await made.remove()


async def await_force(block: ApprovalBlock, *, expected: bool = True) -> None:
    """Wait until a change takes effect: a real API server compiles its policies once a second."""

    async def done() -> bool:
        return await block.in_force() is expected

    await until(done, f"in force: {expected}")


async def test_it_is_in_force_once_installed_and_gone_once_removed(
    control_plane: ControlPlane, block: ApprovalBlock
) -> None:
    await await_force(block, expected=False)
    await block.install()
    await await_force(block)
    await block.install()
    assert await block.in_force()
    await block.remove()
    await await_force(block, expected=False)
    await block.remove()
    assert permissions_of_role(control_plane.client().get(ROLE))


@pytest.mark.parametrize(
    ("path", "patch"),
    [
        (BINDING, {"spec": {"validationActions": ["Audit"]}}),
        (POLICY, {"spec": {"failurePolicy": "Ignore"}}),
        (POLICY, {"spec": {"matchConstraints": {"resourceRules": [OTHER_RULE]}}}),
    ],
)
async def test_what_somebody_changed_is_put_right(
    control_plane: ControlPlane, block: ApprovalBlock, path: str, patch: Mapping[str, object]
) -> None:
    await block.install()
    before = map_at(control_plane.client().get(path), "spec")
    control_plane.client().patch(path, dict(patch))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - JSON
    await block.install()
    assert map_at(control_plane.client().get(path), "spec") == before
    await await_force(block)


REQUESTERS: Mapping[str, tuple[str, ...] | None] = {
    "system:bootstrap:abcdef": (*BOOTSTRAPPERS, "system:authenticated"),
    "system:bootstrap:fedcba": (BOOTSTRAPPERS[0],),
    "a person in the group": ("system:masters", BOOTSTRAPPERS[0]),
    "system:node:n": ("system:nodes", "system:authenticated"),
    "system:serviceaccount:kube-system:c": ("system:serviceaccounts", "system:authenticated"),
    "admin": ("system:masters", "system:authenticated"),
    "system:anonymous": ("system:unauthenticated",),
    "of a name alike": (BOOTSTRAPPERS[1], "system:bootstrapper", "System:Bootstrappers", " system:bootstrappers"),
    "without groups": (),
    "without the field": None,
}
"""Every kind of user of an API server, and the groups with which it comes; the first three are refused."""
SIGNERS = (
    "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm",
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client",
    "kubernetes.io/legacy-unknown",
    f"{IN_TREE_SIGNER}-tpm",
)


def admission(user: str, *, dry_run: bool | None) -> JsonObject:
    """Make ``request`` as an API server does: what is empty is left out."""
    groups = REQUESTERS[user]
    info: JsonObject = {"username": user, "uid": "", **({} if groups is None else {"groups": [*groups]})}
    return {"operation": "CREATE", "userInfo": info, **({} if dry_run is None else {"dryRun": dry_run})}


def filed(signer: str, metadata: JsonObject) -> JsonObject:
    return {"metadata": metadata, "spec": {"signerName": signer, "usages": ["client auth"], "request": ""}}


@pytest.mark.parametrize("metadata", [{"name": "csr-1"}, {"generateName": "csr-"}, {"name": CHECK_NAME}])
@pytest.mark.parametrize("dry_run", [None, False, True])
@pytest.mark.parametrize("user", REQUESTERS)
def test_the_expression_refuses_bootstrap_tokens_the_in_tree_signer_and_nobody_anything_else_but_the_check(
    user: str, dry_run: bool | None, metadata: JsonObject
) -> None:
    request = admission(user, dry_run=dry_run)
    refused = BOOTSTRAPPERS[0] in (REQUESTERS[user] or ()) or (dry_run is True and metadata == {"name": CHECK_NAME})
    assert admits(EXPRESSION, filed(IN_TREE_SIGNER, metadata), request) is not refused
    assert all(admits(EXPRESSION, filed(signer, metadata), request) for signer in SIGNERS)
