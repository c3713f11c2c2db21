"""Automatic approval in the demo's workload cluster: open as kubeadm leaves it, closed by the controller ``hardening``.

Promises: whether it is open is what the API server itself answers (SubjectAccessReview), before and after.
"""

from __future__ import annotations

import time
from typing import Final

from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_controller.controllers.auto_approval.decide import CLOSED_REASONS, CONDITION
from nodeattest_controller.controllers.auto_approval.permissions import (
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    NODE_CLIENT_ROLE,
    Permission,
)
from nodeattest_controller.model.objects import condition, flag, items
from nodeattest_discovery.secret import DEFAULT_GROUP
from nodeattest_kube import paths
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.client import ApiRefusal, Client

__all__ = ["await_closed", "is_open", "leave_open"]

_RBAC: Final = "rbac.authorization.k8s.io"
_SELF_NODE_CLIENT_ROLE: Final = NODE_CLIENT_ROLE.removesuffix(Permission.NODE_CLIENT) + Permission.SELF_NODE_CLIENT
_LIMIT: Final = 60.0
_POLL: Final = 0.1
"""Seconds."""


def leave_open(workload: Client) -> None:
    """Create what kubeadm creates: two bindings that make the in-tree signer approve, and then cluster-info."""
    for name, role, group in (
        (KUBEADM_BOOTSTRAP, NODE_CLIENT_ROLE, DEFAULT_GROUP),
        (KUBEADM_ROTATION, _SELF_NODE_CLIENT_ROLE, "system:nodes"),
    ):
        binding: JsonObject = {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group}],
        }
        workload.create(paths.collection_path(_RBAC, "v1", "clusterrolebindings"), binding)
    info: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": {}}
    try:
        workload.create(paths.core_path("configmaps", namespace="kube-public"), info)
    except ApiRefusal as refusal:
        if refusal.reason != "AlreadyExists":  # with discovery by token it was published before
            raise


def is_open(workload: Client) -> bool:
    """Ask the API server whether the in-tree signer would approve what a bootstrap token asks for."""
    review: JsonObject = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": "system:bootstrap:abcdef",
            "groups": ["system:bootstrappers", DEFAULT_GROUP],
            "resourceAttributes": {
                "group": "certificates.k8s.io",
                "resource": "certificatesigningrequests",
                "subresource": "nodeclient",
                "verb": "create",
            },
        },
    }
    path = paths.collection_path("authorization.k8s.io", "v1", "subjectaccessreviews")
    return flag(workload.create(path, review), "status", "allowed")


def await_closed(management: Client, workload: Client, cluster: str) -> str:
    """Wait until the controller reports that it is closed, and return its reason; raises ``DemoFailure``.

    ``cluster`` is the path of the Cluster.
    """
    end = time.monotonic() + _LIMIT
    while True:
        found = condition(items(management.get(cluster), "status", "conditions"), CONDITION) or {}
        reason = str(found.get("reason", "nothing is reported"))
        if reason in CLOSED_REASONS and not is_open(workload):
            return reason
        if time.monotonic() > end:
            raise DemoFailure(f"automatic approval was not closed: {reason}: {found.get('message')}")
        time.sleep(_POLL)
