"""The look at a cluster: RBAC as the API server resolves it, and the API server's own word where RBAC says nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from auto_approval_world import AutoApprovalWorld
from fake_api import FakeApi
from polling import until

from nodeattest_controller.controllers.auto_approval.decide import ApprovalReason, AuditFacts, decide
from nodeattest_controller.controllers.auto_approval.permissions import (
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    Permission,
    SubjectKind,
)
from nodeattest_controller.controllers.auto_approval.rbac_audit import LIST_PERIOD, RBACAudit
from nodeattest_controller.controllers.auto_approval.rbac_watch import trouble_of
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_controller.runtime.list_limit import ListLimit
from nodeattest_kube.client import ApiClient, ApiError, Forbidden, TooLarge, Unreachable, WatchHung
from nodeattest_kube.reflector import Reflector
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane, start_real

API = "rbac.authorization.k8s.io"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
GROUP = "system:bootstrappers:tests"
NOT_LISTED = "the first list is not complete yet"


async def look(plane: ControlPlane, kubeconfig: Path | None = None) -> AuditFacts:
    async with ApiClient.from_kubeconfig_file(kubeconfig or plane.admin_kubeconfig) as client:
        survey = RBACAudit(
            cluster_key("fleet", "c"), client, Inventory(), now=lambda: datetime.now(UTC), clock=lambda: 0.0
        )
        return await survey.look(enforce=True)


def bind(plane: ControlPlane, name: str, role: str, *groups: str) -> str:
    subjects: list[JsonValue] = [{"apiGroup": API, "kind": "Group", "name": group} for group in groups]
    body: JsonMap = {
        "apiVersion": f"{API}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": API, "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    }
    plane.client().create(f"{RBAC}/clusterrolebindings", body)
    return f"{RBAC}/clusterrolebindings/{name}"


@pytest.fixture
def made(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Paths of what a test makes, which goes at its end."""
    paths: list[str] = []
    yield paths
    for path in paths:
        with suppress(ApiRefusal):
            control_plane.client().send("DELETE", path)


async def test_a_group_that_only_a_binding_names_is_asked_for(control_plane: ControlPlane, made: list[str]) -> None:
    role = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
    made.append(bind(control_plane, "tests:door", role, GROUP))
    facts = await look(control_plane)
    [grant] = [one for one in facts.grants if one.name == "tests:door"]
    assert (grant.permissions, grant.to) == ({Permission.NODE_CLIENT}, {SubjectKind.BOOTSTRAPPERS})
    assert (SubjectKind.BOOTSTRAPPERS, Permission.NODE_CLIENT) in facts.allowed
    assert (SubjectKind.NODES, Permission.NODE_CLIENT) not in facts.allowed


async def test_a_list_that_does_not_end_is_an_error_and_not_the_controllers_end(control_plane: ControlPlane) -> None:
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        key, clock = cluster_key("fleet", "c"), lambda: 0.0
        survey = RBACAudit(key, client, Inventory(), now=lambda: datetime.now(UTC), clock=clock, most=1)
        with pytest.raises(TooLarge, match="ClusterRoles does not end"):
            await survey.look(enforce=True)


@pytest.mark.parametrize(("things", "length"), [(3, 1), (1, 1000)])
def test_what_is_kept_of_a_list_is_bounded_in_number_and_in_length(things: int, length: int) -> None:
    kept = ListLimit("x", 2)
    for _ in range(things - 1):
        kept.take("n" * length)
    with pytest.raises(TooLarge):
        kept.take("n" * length)


async def test_what_may_not_read_tokens_does_without(control_plane: ControlPlane, made: list[str]) -> None:
    user = "tests-hardening-reader"
    rules: list[JsonValue] = [
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["clusterroles", "clusterrolebindings"],
            "verbs": ["list"],
        },
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    ]
    role: JsonMap = {"apiVersion": f"{API}/v1", "kind": "ClusterRole", "rules": rules}
    control_plane.client().create(f"{RBAC}/clusterroles", {**role, "metadata": {"name": user}})
    made.append(f"{RBAC}/clusterroles/{user}")
    made.append(bind(control_plane, user, user, f"{user}s"))
    token: JsonMap = {key: base64.b64encode(value.encode()).decode() for key, value in TOKEN.items()}
    secret: JsonMap = {
        "metadata": {"name": "bootstrap-token-tstsrv"},
        "type": "bootstrap.kubernetes.io/token",
        "data": token,
    }
    control_plane.client().create(SECRETS, secret)
    made.append(f"{SECRETS}/bootstrap-token-tstsrv")
    poor = await look(control_plane, control_plane.client_kubeconfig(user, [f"{user}s"]))
    rich = await look(control_plane)
    assert poor.allowed == rich.allowed
    refused = [one for one in control_plane.requests() if one.user == user and one.code == 403]
    assert [one.resource for one in refused] == ["secrets"]


TOKEN = {
    "token-id": "tstsrv",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-authentication": "true",
    "auth-extra-groups": GROUP,
}


@pytest.mark.conformance
async def test_another_authorizer_than_rbac_is_found_by_asking(assets: Path, tmp_path: Path) -> None:
    rule = {
        "group": "system:bootstrappers",
        "apiGroup": "certificates.k8s.io",
        "resource": "certificatesigningrequests",
    }
    policy = tmp_path / "abac.jsonl"
    policy.write_text(
        json.dumps({"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": rule}) + "\n"
    )
    flags = ["--authorization-mode=ABAC", f"--authorization-policy-file={policy}"]  # after the modes that are there
    with start_real(tmp_path / "open", assets, name="open", flags=flags) as plane:
        facts = await look(plane)
    assert not facts.grants
    assert facts.allowed == {(SubjectKind.BOOTSTRAPPERS, permission) for permission in Permission}
    decision = decide(facts)
    assert not decision.remove
    assert decision.finding.reason is ApprovalReason.FOREIGN_AUTHORIZER
    assert "--authorization-mode" in decision.finding.message


class QuietWatch:
    """An audit of a cluster whose watches show nothing and whose tokens may not be read, in virtual time."""

    def __init__(self) -> None:
        self.world = AutoApprovalWorld()
        self.api = self.world.workload
        self.api.on_call = self._refuse_tokens
        self.seconds = 0.0
        self.audit = RBACAudit(
            cluster_key("fleet", "blue"),
            self.api,
            Inventory(),
            now=lambda: datetime.now(UTC),
            clock=lambda: self.seconds,
            revision=lambda: 1,
        )

    async def grants(self) -> list[str]:
        return [grant.name for grant in (await self.audit.look(enforce=True)).grants]

    async def _refuse_tokens(self, method: str, path: str) -> None:
        if method == "LIST" and path == SECRETS:
            raise Forbidden(403, "Forbidden", "no")


async def test_rbac_is_listed_again_after_a_while_though_no_watch_showed_a_change() -> None:
    """Seen: a binding for a group of tokens left the cluster "Closed" over many audits."""
    quiet = QuietWatch()
    assert await quiet.grants() == []
    quiet.world.bind("ours", "nodeclient", GROUP)
    quiet.seconds = LIST_PERIOD - 1
    assert await quiet.grants() == []
    assert quiet.api.count("LIST", "/clusterroles") == 1
    quiet.seconds = LIST_PERIOD
    assert await quiet.grants() == ["ours"]


async def test_what_the_api_server_allows_and_the_last_list_does_not_explain_is_looked_for_in_rbac() -> None:
    """Seen: kubeadm's own bindings counted as another authorizer's, and were never deleted."""
    quiet = QuietWatch()
    assert await quiet.grants() == []
    quiet.world.bind_as_kubeadm()
    facts = await quiet.audit.look(enforce=True)
    assert {grant.name for grant in facts.grants} == {KUBEADM_BOOTSTRAP, KUBEADM_ROTATION}
    assert [grant.name for grant in decide(facts).remove] == [KUBEADM_BOOTSTRAP]
    assert quiet.api.count("LIST", "/clusterroles") == 2


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
