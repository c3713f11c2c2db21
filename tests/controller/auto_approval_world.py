"""The controller of automatic approval in process: a management and a workload cluster in memory, clocks that run fast.

The workload cluster answers reviews by its stored ClusterRoleBindings, and refuses the dry run while the policy that
blocks is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from fake_api import FakeApi
from management_kit import add_policy, cached, cluster_path, management_api, tasks
from polling import until

from nodeattest_controller.controllers.auto_approval.approval_block import POLICY_NAME
from nodeattest_controller.controllers.auto_approval.controller import AutoApprovalController, AutoApprovalRunner
from nodeattest_controller.controllers.auto_approval.permissions import (
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    KUBEADM_TOKEN_GROUP,
    NODE_CLIENT_ROLE,
)
from nodeattest_controller.controllers.auto_approval.reconciler import AutoApprovalReconciler
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.supervisor import ChangeBus
from nodeattest_kube.errors import Forbidden
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.objects import condition as find
from nodeattest_parsing.objects import items, mapping, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue

KEY: Final = ClusterKey("fleet/blue")
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
POLICY: Final = f"{ADMISSION}/validatingadmissionpolicies/{POLICY_NAME}"
BINDINGS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
ROLE: Final = f"{ROLES}/{NODE_CLIENT_ROLE}"
CSRS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLUSTER_INFO: Final = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_SELF_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_FAST: Final = ResyncConfig(spread=0, period=0.05, min_interval=0, urgent=0, retry=0.001, max_retry=0.002, share=0)


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
        self.workload.answers[_REVIEWS] = self._review
        self.workload.answers[_SELF_REVIEWS] = lambda body: {**body, "status": {"allowed": True}}
        self.workload.answers[f"{CSRS}?dryRun=All"] = self._dry_run

    def put_cluster(self, *, initialized: bool = True, **parts: JsonObject) -> None:
        """Write the Cluster; ``parts`` are its metadata, spec and status."""
        started: JsonObject = {"initialization": {"controlPlaneInitialized": initialized}}
        body: JsonObject = {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"labels": {"env": "prod"}, **parts.get("metadata", {})},
            "spec": parts.get("spec", {}),
            "status": {**started, **parts.get("status", {})},
        }
        self.api.put(cluster_path(), body)

    def bind(self, name: str, permission: str, group: str) -> None:
        """Bind a ClusterRole of kubeadm's to a group."""
        reference: JsonObject = {"kind": "ClusterRole", "name": NODE_CLIENT_ROLE.replace("nodeclient", permission)}
        subjects: list[JsonValue] = [{"kind": "Group", "name": group}]
        self.workload.put(f"{BINDINGS}/{name}", {"roleRef": reference, "subjects": subjects})

    def bind_as_kubeadm(self) -> None:
        """Make the two bindings that kubeadm makes."""
        self.bind(KUBEADM_BOOTSTRAP, "nodeclient", KUBEADM_TOKEN_GROUP)
        self.bind(KUBEADM_ROTATION, "selfnodeclient", "system:nodes")

    def bindings(self) -> set[str]:
        """Name the bindings that are left."""
        return {path.rpartition("/")[2] for path in self.workload.objects if path.startswith(BINDINGS)}

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[AutoApprovalRunner]:
        """Run the controller in the cluster."""
        changes = ChangeBus()
        async with cached(self.api, changes) as self.management:
            management = self.management
            events = EventRecorder(self.api, component="test", instance="test-1", now=_now)
            self.controller = AutoApprovalController(
                management,
                guard=ClusterGuard(management, lambda: self.owned),
                events=events,
                metrics=self.metrics,
                now=_now,
                resync=_FAST,
                random=lambda: 0.5,
                sleep=_briefly,
            )
            runner = self.controller.for_cluster(KEY, self.workload)
            async with tasks(runner.run()):
                yield runner
            await events.drain()

    @asynccontextmanager
    async def reconciler(self) -> AsyncGenerator[AutoApprovalReconciler]:
        """Make the reconciler alone: its watches do not run, and a test calls it."""
        async with cached(self.api, ChangeBus()) as self.management:
            management = self.management
            events = EventRecorder(self.api, component="test", instance="test-1", now=_now)
            cluster_events = ClusterEvents(KEY, management, events, log=logging.getLogger("test"), clock=time.monotonic)
            yield AutoApprovalReconciler(
                self.workload,
                management,
                events=cluster_events,
                metrics=self.metrics,
                guard=ClusterGuard(management, lambda: self.owned),
                now=_now,
                sleep=_briefly,
            )
            await events.drain()

    def condition(self) -> JsonObject:
        """Return the Cluster's condition as it is stored."""
        found = items(self.api.objects[cluster_path()], "status", "conditions")
        return dict(find(found, "SideDoorsClosed") or {})

    async def reports(self, reason: str, status: str | None = None) -> str:
        """Wait for a reason of the condition; returns its message."""
        await until(lambda: self.condition().get("reason") == reason)
        if status is not None:
            assert self.condition()["status"] == status
        return text(self.condition(), "message")

    async def audited_again(self) -> None:
        """Wait until an audit began and ended after this call."""
        calls = self.reviews() + 16
        await until(lambda: self.reviews() >= calls)

    def policy_is_gone(self) -> bool:
        """Tell whether the cache knows that no policy selects the Cluster."""
        return not self.management.policies("fleet")

    def reviews(self) -> int:
        """Count the questions who may do what; an audit asks four."""
        return self.workload.count("POST", _REVIEWS)

    def events(self) -> list[str]:
        """List the reasons of the Events."""
        return [text(obj, "reason") for path, obj in self.api.objects.items() if "/events/" in path]

    def _review(self, body: JsonObject) -> JsonObject:
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


async def _briefly(_seconds: float) -> None:
    await asyncio.sleep(0.001)


def _role(permission: str) -> JsonObject:
    resources: list[JsonValue] = [f"certificatesigningrequests/{permission}"]
    rule: JsonObject = {"apiGroups": ["certificates.k8s.io"], "resources": resources, "verbs": ["create"]}
    return {"rules": [rule]}


def _now() -> datetime:
    return datetime.now(UTC)
