"""Automatic approval, reconciled in process: every reason of the condition, what is deleted, and how a run ends.

The workload cluster answers reviews by its stored ClusterRoleBindings, and refuses the dry run while the policy that
blocks is stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import unquote

import pytest
from fake_api import FakeApi
from management_kit import add_policy, cached, cluster_path, deps_of, management_api, tasks
from polling import until

from nodeattest_controller.controllers.auto_approval.approval_block import IN_TREE_SIGNER, POLICY_NAME, ApprovalBlock
from nodeattest_controller.controllers.auto_approval.decide import (
    CONDITION,
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    KUBEADM_TOKEN_GROUP,
    NODE_CLIENT_ROLE,
    REVIEWED,
)
from nodeattest_controller.controllers.auto_approval.reconciler import (
    ISSUED,
    MANAGEMENT_REMEDY,
    REMEDY,
    AutoApprovalReconciler,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.informers import MOST, ListLimit
from nodeattest_kube.errors import ApiError, Forbidden, TooLarge, TooManyRequests, Unreachable
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.objects import condition as find
from nodeattest_parsing.objects import flag, items, mapping, rfc3339, strings, text, text_map
from nodeattest_parsing.values import JsonObject, JsonValue

KEY: Final = ClusterKey("fleet/blue")
BOUND_AT: Final = "2026-01-01T00:00:00Z"
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
POLICY: Final = f"{ADMISSION}/validatingadmissionpolicies/{POLICY_NAME}"
BOUND: Final = f"{ADMISSION}/validatingadmissionpolicybindings/{POLICY_NAME}"
BINDINGS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
ROLE: Final = f"{ROLES}/{NODE_CLIENT_ROLE}"
CSRS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLUSTER_INFO: Final = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_SELF_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_FAST: Final = ResyncConfig(spread=0, period=0.05, min_interval=0, retry=0.001, max_retry=0.002, share=0)


class AutoApprovalWorld:
    """One Cluster that a policy selects; its API server has kubeadm's roles, and says that it can be joined."""

    def __init__(self, *, initialized: bool = True, **cluster: JsonObject) -> None:
        self.api = management_api()
        self.workload = FakeApi("https://workload.example")
        self.metrics = Metrics()
        self.owned = True
        self.enforced = True
        """Whether the API server evaluates the policy that blocks."""
        self.policy = add_policy(self.api)
        self.put_cluster(initialized=initialized, **cluster)
        for permission in ("nodeclient", "selfnodeclient"):
            self.workload.put(f"{ROLES}/{NODE_CLIENT_ROLE.replace('nodeclient', permission)}", _role(permission))
        self.workload.put(CLUSTER_INFO, {})
        self.workload.answers[_REVIEWS] = self.review
        self.workload.answers[_SELF_REVIEWS] = lambda body: {**body, "status": {"allowed": True}}
        self.workload.answers[f"{CSRS}?dryRun=All"] = self._dry_run

    def put_cluster(self, *, initialized: bool = True, **parts: JsonObject) -> None:
        started: JsonObject = {"initialization": {"controlPlaneInitialized": initialized}}
        body: JsonObject = {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"labels": {"env": "prod"}, **parts.get("metadata", {})},
            "spec": parts.get("spec", {}),
            "status": {**started, **parts.get("status", {})},
        }
        self.api.put(cluster_path(), body)

    def bind_as_kubeadm(self) -> None:
        for name, permission, group in (
            (KUBEADM_BOOTSTRAP, "nodeclient", KUBEADM_TOKEN_GROUP),
            (KUBEADM_ROTATION, "selfnodeclient", "system:nodes"),
        ):
            reference: JsonObject = {"kind": "ClusterRole", "name": NODE_CLIENT_ROLE.replace("nodeclient", permission)}
            subjects: list[JsonValue] = [{"kind": "Group", "name": group}]
            meta: JsonObject = {"creationTimestamp": BOUND_AT}
            self.workload.put(f"{BINDINGS}/{name}", {"metadata": meta, "roleRef": reference, "subjects": subjects})

    def issue(self, created: datetime | None = None) -> None:
        """Have a certificate issued to a bootstrap token."""
        approved: JsonObject = {"conditions": [{"type": "Approved"}], "certificate": "bm8gY2VydGlmaWNhdGU="}
        spec: JsonObject = {"signerName": IN_TREE_SIGNER, "username": "system:bootstrap:abcdef"}
        meta: JsonObject = {"creationTimestamp": rfc3339(created)} if created is not None else {}
        self.workload.put(f"{CSRS}/node-csr-1", {"metadata": meta, "spec": spec, "status": approved})

    def bindings(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self.workload.objects if path.startswith(BINDINGS)}

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[AutoApprovalReconciler]:
        async with self._made() as reconciler, tasks(reconciler.run()):
            yield reconciler

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[AutoApprovalReconciler]:
        """Run the watch of requests, and let the test reconcile."""
        async with self._made() as reconciler, tasks(reconciler.certificates.run()):
            await until(lambda: "first list" not in reconciler.certificates.trouble())
            yield reconciler

    @asynccontextmanager
    async def _made(self) -> AsyncGenerator[AutoApprovalReconciler]:
        async with cached(self.api) as self.management:
            deps = deps_of(self.management, leads=lambda: self.owned, metrics=self.metrics)
            yield AutoApprovalReconciler(deps, KEY, self.workload, _FAST)
            await deps.events.drain()

    async def finds(self, reconciler: AutoApprovalReconciler, reason: str, status: str) -> str:
        """Reconcile until nothing is left to delete; expects a reason and status, and returns the message."""
        for _run in range(4):
            await reconciler.reconcile()
        assert (self.condition().get("reason"), self.condition().get("status")) == (reason, status)
        return text(self.condition(), "message")

    def condition(self) -> JsonObject:
        found = items(self.api.objects[cluster_path()], "status", "conditions")
        return dict(find(found, CONDITION) or {})

    async def reports(self, reason: str, status: str | None = None) -> str:
        await until(lambda: self.condition().get("reason") == reason)
        if status is not None:
            assert self.condition()["status"] == status
        return text(self.condition(), "message")

    def review(self, body: JsonObject) -> JsonObject:
        """Say who may do what, as an API server by RBAC."""
        spec = mapping(body, "spec")
        permission, groups = text(spec, "resourceAttributes", "subresource"), strings(spec, "groups")
        granted = any(
            text(obj, "roleRef", "name").endswith(f":{permission}")
            and any(text(subject, "name") in groups for subject in items(obj, "subjects"))
            for path, obj in self.workload.objects.items()
            if path.startswith(BINDINGS)
        )
        suspended = permission == "nodeclient" and not items(self.workload.objects.get(ROLE, {}), "rules")
        return {**body, "status": {"allowed": granted and not suspended}}

    def _dry_run(self, body: JsonObject) -> JsonObject:
        if self.enforced and POLICY in self.workload.objects:
            raise Forbidden(403, "Forbidden", f"ValidatingAdmissionPolicy '{POLICY_NAME}' denied request")
        return body


def _role(permission: str) -> JsonObject:
    resources: list[JsonValue] = [f"certificatesigningrequests/{permission}"]
    rule: JsonObject = {"apiGroups": ["certificates.k8s.io"], "resources": resources, "verbs": ["create"]}
    return {"rules": [rule]}


NO_RIGHT = Forbidden(403, "Forbidden", "may not")
SLOW_DOWN = TooManyRequests(429, "TooManyRequests", "later")


def fail(world: AutoApprovalWorld, error: ApiError, *calls: tuple[str, str]) -> None:
    """Let calls of the workload cluster fail: methods, and what their path starts with."""

    async def on_call(method: str, path: str) -> None:
        if any(method == wanted and path.startswith(prefix) for wanted, prefix in calls):
            raise error

    world.workload.on_call = on_call


# What the condition says


async def test_an_audit_deletes_nothing_and_blocks_nothing() -> None:
    world = AutoApprovalWorld()
    world.bind_as_kubeadm()
    add_policy(world.api, enforcement="Audit")
    async with world.watching() as reconciler:
        assert KUBEADM_BOOTSTRAP in await world.finds(reconciler, "Audit", "False")
    assert world.bindings() == {KUBEADM_BOOTSTRAP, KUBEADM_ROTATION}
    assert POLICY not in world.workload.objects


async def test_before_the_control_plane_is_up_the_block_is_installed_and_nothing_deleted() -> None:
    world = AutoApprovalWorld(initialized=False)
    world.bind_as_kubeadm()
    async with world.running():
        await world.reports("NotInitialized", "Unknown")
        await until(lambda: POLICY in world.workload.objects)
        assert KUBEADM_BOOTSTRAP in world.bindings()
        world.put_cluster()
        await world.reports("ClosedForBootstrap")


@pytest.mark.parametrize(
    ("path", "spec"),
    [(BOUND, {"validationActions": ["Audit"]}), (POLICY, {"failurePolicy": "Ignore"})],
)
async def test_a_block_that_somebody_changed_is_put_right(path: str, spec: JsonObject) -> None:
    world = AutoApprovalWorld()
    async with world.watching() as reconciler:
        await world.finds(reconciler, "Closed", "True")
        before = world.workload.objects[path]["spec"]
        world.workload.put(path, {**world.workload.objects[path], "spec": spec})
        await reconciler.reconcile()
        assert world.workload.objects[path]["spec"] == before


async def test_a_block_is_in_force_if_the_role_grants_nothing_and_our_policy_refuses_and_leaves_others_roles() -> None:
    world = AutoApprovalWorld()
    block = ApprovalBlock(world.workload)
    await block.install()
    assert await block.in_force()
    world.workload.put(ROLE, {**world.workload.objects[ROLE], **_role("nodeclient")})
    assert not await block.in_force()
    await block.install()
    assert await block.in_force()

    def refuse(_body: JsonObject) -> JsonObject:
        raise NO_RIGHT

    world.workload.answers[f"{CSRS}?dryRun=All"] = refuse
    with pytest.raises(Forbidden):
        await block.in_force()
    world.workload.put(ROLE, {"rules": []})  # by somebody else
    await block.remove()
    assert world.workload.objects[ROLE]["rules"] == []


async def test_bindings_that_kubeadm_restores_are_deleted_again_and_grant_nothing_until_then() -> None:
    world = AutoApprovalWorld()
    async with world.watching() as reconciler:
        await world.finds(reconciler, "Closed", "True")
        world.bind_as_kubeadm()
        tokens: JsonObject = {"groups": [KUBEADM_TOKEN_GROUP], "resourceAttributes": {"subresource": "nodeclient"}}
        assert not flag(world.review({"spec": tokens}), "status", "allowed")
        assert await reconciler.reconcile() == 1.0  # the next run audits what is left
        assert world.bindings() == {KUBEADM_ROTATION}
        assert world.condition()["reason"] == "Open"
        await world.finds(reconciler, "ClosedForBootstrap", "False")
    # what was issued meanwhile is known for an hour only
    assert any(f"{KUBEADM_BOOTSTRAP} " in told and BOUND_AT in told for told in world.api.events("message"))


@pytest.mark.parametrize("lost", ["lead", "enforcement"])
async def test_who_loses_the_lead_or_the_enforcement_during_an_audit_deletes_no_more(lost: str) -> None:
    world = AutoApprovalWorld()
    world.bind_as_kubeadm()
    async with world.watching() as reconciler:

        async def lose(_method: str, path: str) -> None:
            if path == _REVIEWS and lost == "lead":
                world.owned = False
            elif path == _REVIEWS:
                add_policy(world.api, enforcement="Audit")
                [cluster] = world.management.clusters_in("fleet")
                await until(lambda: not world.management.policy_of(cluster).enforce)

        world.workload.on_call = lose
        await reconciler.reconcile()
        assert world.bindings() == {KUBEADM_BOOTSTRAP, KUBEADM_ROTATION}


@pytest.mark.parametrize("enforcement", ["Enforce", "Audit"])
async def test_without_cluster_info_kubeadm_may_still_create_its_bindings(enforcement: str) -> None:
    world = AutoApprovalWorld()
    add_policy(world.api, enforcement=enforcement)
    world.workload.remove(CLUSTER_INFO)
    async with world.watching() as reconciler:
        await world.finds(reconciler, "WaitingForClusterInfo", "Unknown")
        world.workload.put(CLUSTER_INFO, {})
        await world.finds(reconciler, "Closed", "True")


async def test_a_cluster_whose_certificates_are_issued_elsewhere_is_never_reported_as_closed() -> None:
    kind = "KThreesControlPlane"
    reference: JsonObject = {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": kind, "name": "blue"}
    world = AutoApprovalWorld(spec={"controlPlaneRef": reference})
    async with world.watching() as reconciler:  # cluster-info is there: somebody published it
        message = await world.finds(reconciler, "OtherBootstrapProvider", "Unknown")
    assert "docs/bootstrap-config.md#other-bootstrap-providers" in message


async def test_a_block_that_the_server_does_not_evaluate_is_not_verified() -> None:
    world = AutoApprovalWorld()
    world.enforced = False
    async with world.watching() as reconciler:
        await world.finds(reconciler, "BlockNotVerified", "Unknown")


async def test_an_authorizer_that_only_one_audit_shows_is_not_reported() -> None:
    world = AutoApprovalWorld()
    async with world.watching() as reconciler:
        await world.finds(reconciler, "Closed", "True")
        world.workload.answers[_REVIEWS] = lambda body: {**body, "status": {"allowed": True}}
        assert await reconciler.reconcile() == 1.0  # an API server's cache may lag
        assert world.condition()["reason"] == "Closed"
        await world.finds(reconciler, "ForeignAuthorizer", "False")


CLOSED: JsonObject = {"type": CONDITION, "status": "True", "reason": "Closed", "message": "", "severity": ""}


async def test_a_binding_that_was_changed_since_the_audit_is_not_deleted() -> None:
    world = AutoApprovalWorld()
    world.bind_as_kubeadm()

    async def change(method: str, path: str) -> None:
        path = unquote(path)
        if method == "DELETE" and path.endswith(KUBEADM_BOOTSTRAP):
            binding = world.workload.objects[path]
            subjects: list[JsonValue] = [*items(binding, "subjects"), {"kind": "User", "name": "b"}]
            world.workload.put(path, {**binding, "subjects": subjects})

    world.workload.on_call = change
    async with world.watching() as reconciler:
        await world.finds(reconciler, "ForeignBinding", "False")
    assert KUBEADM_BOOTSTRAP in world.bindings()


async def test_a_binding_that_cannot_be_deleted_leaves_no_condition_true() -> None:
    world = AutoApprovalWorld(status={"conditions": [CLOSED]})
    world.bind_as_kubeadm()
    fail(world, Unreachable("no route"), ("DELETE", BINDINGS))
    async with world.watching() as reconciler:
        with pytest.raises(Unreachable):
            await reconciler.reconcile()
    assert (world.condition()["status"], world.condition()["reason"]) == ("False", "Open")


async def test_what_the_in_tree_signer_issued_without_attestation_takes_precedence_and_is_told_once() -> None:
    world = AutoApprovalWorld()
    async with world.running():
        await world.reports("Closed")
        world.issue()
        assert "node-csr-1" in await world.reports("CertificatesIssued", "False")
        calls = world.workload.count("POST", _REVIEWS)
        await until(lambda: world.workload.count("POST", _REVIEWS) > calls + 8)
        world.workload.remove(f"{CSRS}/node-csr-1")
        await until(lambda: world.workload.count("POST", _REVIEWS) > calls + 16)
        assert world.condition()["reason"] == "CertificatesIssued"  # the certificate outlives its request
    assert world.api.events().count(ISSUED) == 1
    assert world.metrics.registry.get_sample_value("nodeattest_in_tree_certificates_total", {"cluster": KEY}) == 1


REPORTED: JsonObject = {
    "type": CONDITION,
    "status": "False",
    "reason": "CertificatesIssued",
    "message": "the in-tree signer's approval was given 2 times, last at 2026-01-03T00:00:00Z, for x; besides: y",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
"""``lastTransitionTime`` is older: the status was False before."""


def reviewed(time: str) -> JsonObject:
    return {"annotations": {REVIEWED: time}}


@pytest.mark.parametrize("time", ["2026-01-02T00:00:00Z", "2999-01-01T00:00:00Z"], ids=["earlier", "in the future"])
async def test_what_an_earlier_process_reported_stays_until_an_operator_reviews_it(time: str) -> None:
    """The requests that showed it are deleted after an hour."""
    world = AutoApprovalWorld(metadata=reviewed(time), status={"conditions": [REPORTED]})
    async with world.watching() as reconciler:
        message = await world.finds(reconciler, "CertificatesIssued", "False")
        assert message.startswith("the in-tree signer's approval was given 2 times")
        world.put_cluster(metadata=reviewed("2026-01-03T00:00:01Z"), status={"conditions": [REPORTED]})
        await until(lambda: "2026-01-03T00:00:01Z" in str(world.management.cluster(KEY)))
        await world.finds(reconciler, "Closed", "True")


async def test_a_policy_that_cannot_be_used_changes_nothing_and_hides_no_reported_certificate() -> None:
    world = AutoApprovalWorld(status={"conditions": [REPORTED]})
    world.bind_as_kubeadm()
    add_policy(world.api, "second")
    async with world.watching() as reconciler:
        message = await world.finds(reconciler, "CertificatesIssued", "False")
    assert "besides: the policy cannot be used, so nothing is changed" in message
    assert world.bindings() == {KUBEADM_BOOTSTRAP, KUBEADM_ROTATION}


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_is_issued_under_an_audit_is_no_violation(restarts: bool) -> None:
    old: JsonObject = {"creationTimestamp": BOUND_AT}
    world = AutoApprovalWorld(metadata=old, status={"conditions": [REPORTED]})
    world.issue(datetime.now(UTC) - timedelta(seconds=1))
    world.bind_as_kubeadm()
    add_policy(world.api, enforcement="Audit")
    async with world.watching() as reconciler:
        await world.finds(reconciler, "Audit", "False")
        world.workload.remove(f"{BINDINGS}/{KUBEADM_ROTATION}")
        await world.finds(reconciler, "Audit", "False")
        add_policy(world.api)
        [cluster] = world.management.clusters_in("fleet")
        await until(lambda: world.management.policy_of(cluster).enforce)
        if not restarts:
            await world.finds(reconciler, "Closed", "True")
    if restarts:
        async with world.watching() as reconciler:
            await world.finds(reconciler, "Closed", "True")
    assert world.api.events().count("InTreeApprovalAudit") == 1
    assert ISSUED not in world.api.events()


@pytest.mark.parametrize("what", ["Cluster", "policy", "review"])
@pytest.mark.parametrize(("day", "reason"), [(1, "CertificatesIssued"), (3, "Closed")])
async def test_a_violation_is_younger_than_cluster_policy_and_review(what: str, day: int, reason: str) -> None:
    world, time = AutoApprovalWorld(), f"2026-01-0{day}T00:00:00Z"
    created: JsonObject = {"creationTimestamp": time}
    world.issue(datetime(2026, 1, 2, tzinfo=UTC))
    if what == "policy":
        world.api.put(world.policy, {**world.api.objects[world.policy], "metadata": created})
    else:
        world.put_cluster(metadata=created if what == "Cluster" else reviewed(time))
    async with world.watching() as reconciler:
        await world.finds(reconciler, reason, "True" if reason == "Closed" else "False")
    closed = world.metrics.registry.get_sample_value("nodeattest_in_tree_approval_blocked", {"cluster": KEY})
    assert closed == (reason == "Closed")


# What cannot be verified


@pytest.mark.parametrize(
    ("error", "left"), [(NO_RIGHT, {KUBEADM_ROTATION}), (SLOW_DOWN, {KUBEADM_BOOTSTRAP, KUBEADM_ROTATION})]
)
async def test_a_block_that_may_not_be_installed_keeps_no_binding(error: ApiError, left: set[str]) -> None:
    world = AutoApprovalWorld()
    world.bind_as_kubeadm()
    fail(world, error, ("POST", ADMISSION))
    async with world.watching() as reconciler:
        with suppress(TooManyRequests):  # nothing more is asked of a server that wants no more
            await world.finds(reconciler, "CannotVerify", "Unknown")
    assert world.bindings() == left


@pytest.mark.parametrize("group", ["system:bootstrappers:custom", "system:nodes", KUBEADM_TOKEN_GROUP])
async def test_whoever_has_a_permission_that_no_binding_grants_is_found(group: str) -> None:
    world, asked = AutoApprovalWorld(), list[list[str]]()
    subjects: list[JsonValue] = [{"kind": "Group", "name": f"system:bootstrappers:x{each}"} for each in range(300)]
    subjects.append({"kind": "Group", "name": "system:bootstrappers:custom"})
    world.workload.put(f"{BINDINGS}/b", {"roleRef": {"kind": "ClusterRole", "name": "view"}, "subjects": subjects})

    def allow(body: JsonObject) -> JsonObject:
        asked.append([*strings(body, "spec", "groups")])
        return {**body, "status": {"allowed": group in asked[-1]}}

    world.workload.answers[_REVIEWS] = allow
    async with world.watching() as reconciler:
        await world.finds(reconciler, "ForeignAuthorizer", "False")
    assert max(map(len, asked)) == 256


LONG: Final = "x" * (401 * MOST)


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        (f"{ROLES}/long", LONG, {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}),
        (f"{BINDINGS}/long", "b", {"subjects": [{"kind": "Group", "name": f"system:bootstrappers:{LONG}"}]}),
        (
            f"{BINDINGS}/long",
            LONG,
            {
                "roleRef": {"kind": "ClusterRole", "name": NODE_CLIENT_ROLE},
                "subjects": [{"kind": "Group", "name": "system:nodes"}],
            },
        ),
        ("/api/v1/nodes/long", LONG, {}),
    ],
    ids=["roles", "groups", "bindings", "nodes"],
)
async def test_no_list_takes_memory_without_end(path: str, name: str, body: JsonObject) -> None:
    world = AutoApprovalWorld()
    world.bind_as_kubeadm()
    world.workload.put(path, {"metadata": {"name": name}, **body})
    async with world.watching() as reconciler:
        with pytest.raises(TooLarge):
            await reconciler.reconcile()


def test_a_list_that_does_not_end_is_an_error() -> None:
    limit = ListLimit("ClusterRoles", 1)
    with pytest.raises(TooLarge, match="ClusterRoles does not end"):
        [limit.take(name) for name in ("a", "b")]


@pytest.mark.parametrize(
    "call",
    [("LIST", ROLES), ("GET", CLUSTER_INFO), ("GET", ADMISSION), ("WATCH", CSRS)],
    ids=["roles", "cluster-info", "admission", "watched-requests"],
)
async def test_a_missing_right_is_reported_at_once_with_its_remedy(call: tuple[str, str]) -> None:
    world = AutoApprovalWorld()
    fail(world, NO_RIGHT, call)
    async with world.running():
        assert REMEDY in await world.reports("CannotVerify", "Unknown")


async def test_a_short_outage_changes_no_condition_and_a_longer_one_makes_it_unknown() -> None:
    world = AutoApprovalWorld()
    async with world.watching() as reconciler:
        await world.finds(reconciler, "Closed", "True")
        reasons: list[object] = []
        for failures in (1, 2, 3):
            await reconciler.failed(Unreachable("no route"), failures, 1.0)
            reasons.append(world.condition()["reason"])
        assert reasons == ["Closed", "Closed", "CannotVerify"]
        assert "no route" in str(world.condition())
        await world.finds(reconciler, "Closed", "True")


async def test_a_condition_that_cannot_be_written_is_logged_with_its_remedy_and_written_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = AutoApprovalWorld()
    world.api.fail("PATCH", cluster_path(), NO_RIGHT)
    async with world.watching() as reconciler:
        await world.finds(reconciler, "Closed", "True")
    [first, *_] = [record for record in caplog.records if "cannot write the Cluster's condition" in record.message]
    assert MANAGEMENT_REMEDY in str(first.__dict__)


# The end


async def test_a_cluster_that_no_policy_selects_any_more_loses_the_block_by_the_replica_that_serves_it() -> None:
    world = AutoApprovalWorld()
    async with world.running():
        await world.reports("Closed")
    assert POLICY in world.workload.objects  # a replica that ends while the policy stands
    async with world.running():
        await world.reports("Closed")
        world.owned = False  # another replica serves it
        world.api.remove(world.policy)
        await until(lambda: not world.management.policies("fleet"))
    assert POLICY in world.workload.objects
    world.owned, world.policy = True, add_policy(world.api)
    async with world.running():
        assert not items(world.workload.objects[ROLE], "rules")
        world.api.remove(world.policy)
        await until(lambda: not world.management.policies("fleet"))
    assert POLICY not in world.workload.objects
    role = world.workload.objects[ROLE]
    assert items(role, "rules")
    assert text_map(role, "metadata", "annotations") == {"rbac.authorization.kubernetes.io/autoupdate": "true"}


async def test_nothing_is_blocked_at_first_contact_under_an_audit() -> None:
    world = AutoApprovalWorld(initialized=False)
    add_policy(world.api, enforcement="Audit")
    async with world.running():
        await world.reports("NotInitialized")
    assert world.workload.count("POST", ADMISSION) == 0


async def test_a_block_that_cannot_be_removed_is_reported_and_the_end_comes_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = AutoApprovalWorld()
    async with world.running():
        await world.reports("Closed")
        fail(world, Unreachable("no route"), ("DELETE", ADMISSION))
        world.api.remove(world.policy)
        await until(lambda: not world.management.policies("fleet"))
    assert "cannot remove the block" in caplog.text
