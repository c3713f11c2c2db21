"""What a fresh cluster holds: namespaces, and the cluster roles and bindings that matter here.

Promises: the same rules under the same names as kube-apiserver makes at its first start, so nothing binds
system:node-bootstrapper to the bootstrappers and nothing approves by itself: kubeadm does that, not the API server.
Source: plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from nodeattest_sandbox.apiserver.admission import NODE_RULES
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue

__all__ = ["NAMESPACES", "default_objects"]

NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_RBAC: Final = "rbac.authorization.k8s.io"
_CSR: Final = "certificates.k8s.io"
_HEALTH: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_DISCOVERY: Final = ("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz",
                     "/version", "/version/")  # fmt: skip
_MONITORING: Final = ("/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/readyz", "/readyz/*")


def default_objects(new_metadata: Callable[[], JsonMap]) -> list[tuple[str, JsonMap]]:
    """Return (collection, object) pairs; ``new_metadata`` gives uid and creationTimestamp."""
    objects: list[tuple[str, JsonMap]] = [("/namespaces", _namespace(name)) for name in NAMESPACES]
    objects += [(f"{_RBAC}/clusterroles", role) for role in _cluster_roles()]
    objects += [(f"{_RBAC}/clusterrolebindings", binding) for binding in _cluster_bindings()]
    for _, value in objects:
        metadata = value["metadata"]
        if isinstance(metadata, dict):
            metadata.update(new_metadata())
    return objects


def _namespace(name: str) -> JsonMap:
    labels: JsonMap = {"kubernetes.io/metadata.name": name}
    return {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name, "labels": labels},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}  # fmt: skip


def _metadata(name: str) -> JsonMap:
    return {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}}  # fmt: skip


def _role(name: str, *rules: JsonMap) -> JsonMap:
    return {"kind": "ClusterRole", "apiVersion": f"{_RBAC}/v1", "metadata": _metadata(name), "rules": list(rules)}


def _rule(verbs: Sequence[str], group: str, resources: Sequence[str], names: Sequence[str] = ()) -> JsonMap:
    rule: JsonMap = {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}
    return {**rule, "resourceNames": list(names)} if names else rule


def _paths(*paths: str) -> JsonMap:
    return {"verbs": ["get"], "nonResourceURLs": list(paths)}


def _node_rules() -> list[JsonMap]:
    return [
        {"verbs": [*sorted(rule.verbs)], "apiGroups": [*sorted(rule.groups)], "resources": [*sorted(rule.resources)]}
        for rule in NODE_RULES
    ]


def _approver(short: str) -> JsonMap:
    return _role(f"system:{_CSR}:{short}-approver", _rule(["approve"], _CSR, ["signers"], [f"kubernetes.io/{short}"]))


def _cluster_roles() -> list[JsonMap]:
    requests = "certificatesigningrequests"
    everything: JsonMap = {"verbs": ["*"], "nonResourceURLs": ["*"]}
    return [
        _role("cluster-admin", _rule(["*"], "*", ["*"]), everything),
        _role("system:node-bootstrapper", _rule(["create", "get", "list", "watch"], _CSR, [requests])),
        _role("system:node", *_node_rules()),
        _role("system:basic-user",
              _rule(["create"], "authorization.k8s.io", ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
              _rule(["create"], "authentication.k8s.io", ["selfsubjectreviews"])),
        _role("system:discovery", _paths(*_DISCOVERY)),
        _role("system:public-info-viewer", _paths(*_HEALTH)),
        _role("system:monitoring", _paths(*_MONITORING)),
        _role("system:auth-delegator",
              _rule(["create"], "authentication.k8s.io", ["tokenreviews"]),
              _rule(["create"], "authorization.k8s.io", ["subjectaccessreviews"])),
        _role(f"system:{_CSR}:{requests}:nodeclient", _rule(["create"], _CSR, [f"{requests}/nodeclient"])),
        _role(f"system:{_CSR}:{requests}:selfnodeclient", _rule(["create"], _CSR, [f"{requests}/selfnodeclient"])),
        _approver("kube-apiserver-client"),
        _approver("kube-apiserver-client-kubelet"),
        _approver("kubelet-serving"),
    ]  # fmt: skip


def _binding(name: str, *groups: str) -> JsonMap:
    subjects: list[JsonValue] = [{"apiGroup": _RBAC, "kind": "Group", "name": group} for group in groups]
    reference: JsonMap = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name}
    binding: JsonMap = {"kind": "ClusterRoleBinding", "apiVersion": f"{_RBAC}/v1", "metadata": _metadata(name)}
    return {**binding, **({"subjects": subjects} if subjects else {}), "roleRef": reference}


def _cluster_bindings() -> list[JsonMap]:
    return [
        _binding("cluster-admin", "system:masters"),
        _binding("system:basic-user", "system:authenticated"),
        _binding("system:discovery", "system:authenticated"),
        _binding("system:public-info-viewer", "system:authenticated", "system:unauthenticated"),
        _binding("system:monitoring", "system:monitoring"),
        _binding("system:node"),
    ]
