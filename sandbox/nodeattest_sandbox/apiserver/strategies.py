"""What a fresh cluster holds, and what is particular to a kind when it is written: defaults, restored fields, refusals.

Promises: the same rules under the same names as kube-apiserver makes at its first start, so nothing binds
system:node-bootstrapper to the bootstrappers and nothing approves by itself: kubeadm does that, not the API server.
``prepare_create`` and ``prepare_update`` change the given value only; both return the causes of a refusal. A kind
without an entry here follows the general rules.
Source: plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go; pkg/registry/<group>/<kind>/strategy.go.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Final

from nodeattest_sandbox.apiserver import crd
from nodeattest_sandbox.apiserver.admission import NODE_RULES, POLICIES, validate_policy
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, child, map_at, maps_at, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.status_errors import Cause, bad_request, forbidden_field, invalid_field
from nodeattest_sandbox.apiserver.users import User

_DECISIONS: Final = frozenset({"Approved", "Denied"})


def _csr_create(value: JsonMap, user: User) -> None:
    """Put the requester in place of what the client wrote about itself, and empty the status."""
    spec = child(value, "spec")
    for key in ("uid", "extra"):
        spec.pop(key, None)
    spec["username"] = user.name
    spec["groups"] = list(user.groups)
    value["status"] = {}


def _csr_update(value: JsonMap, before: JsonMap, subresource: str, now: str) -> list[Cause]:
    """Restore what this door does not open, and return what is wrong with the change."""
    value["spec"] = before["spec"]
    if not subresource:
        value["status"] = before.get("status", {})
        return []
    new, old = list(maps_at(value, "status", "conditions")), list(maps_at(before, "status", "conditions"))
    if subresource == "approval":
        value["status"] = {**map_at(before, "status")}
    else:  # /status keeps decisions as they are
        others = [one for one in new if text_at(one, "type") not in _DECISIONS]
        new = [one for one in old if text_at(one, "type") in _DECISIONS] + others
    conditions: list[JsonValue] = [_timed(one, old, now) for one in new]
    if conditions:
        child(value, "status")["conditions"] = conditions
    kinds = [text_at(one, "type") for one in new]
    causes = [
        forbidden_field("status.conditions", f'updates may not remove a condition of type "{kind}"')
        for kind in (text_at(one, "type") for one in old)
        if kind not in kinds
    ]
    certificate, given = text_at(before, "status", "certificate"), text_at(value, "status", "certificate")
    if certificate not in {"", given}:
        causes.append(forbidden_field("status.certificate", "updates may not modify existing certificate content"))
    return causes


def _timed(condition: JsonMap, before: list[JsonMap], now: str) -> JsonMap:
    """Return a condition with both times; the transition's is kept while the status is the same."""
    known = ((text_at(one, "type"), text_at(one, "status"), text_at(one, "lastTransitionTime")) for one in before)
    same = (text_at(condition, "type"), text_at(condition, "status"))
    since = next((time for *one, time in known if tuple(one) == same and time), now)
    return {"lastUpdateTime": now, "lastTransitionTime": since, **condition}


NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_RBAC: Final = "rbac.authorization.k8s.io"
_CSRS: Final = "certificates.k8s.io"
_HEALTH: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_DISCOVERY: Final = ("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz",
                     "/version", "/version/")  # fmt: skip


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
    return _role(f"system:{_CSRS}:{short}-approver", _rule(["approve"], _CSRS, ["signers"], [f"kubernetes.io/{short}"]))


def _cluster_roles() -> list[JsonMap]:
    requests = "certificatesigningrequests"
    everything: JsonMap = {"verbs": ["*"], "nonResourceURLs": ["*"]}
    return [
        _role("cluster-admin", _rule(["*"], "*", ["*"]), everything),
        _role("system:node-bootstrapper", _rule(["create", "get", "list", "watch"], _CSRS, [requests])),
        _role("system:node", *_node_rules()),
        _role("system:basic-user",
              _rule(["create"], "authorization.k8s.io", ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
              _rule(["create"], "authentication.k8s.io", ["selfsubjectreviews"])),
        _role("system:discovery", _paths(*_DISCOVERY)),
        _role("system:public-info-viewer", _paths(*_HEALTH)),
        _role(f"system:{_CSRS}:{requests}:nodeclient", _rule(["create"], _CSRS, [f"{requests}/nodeclient"])),
        _role(f"system:{_CSRS}:{requests}:selfnodeclient", _rule(["create"], _CSRS, [f"{requests}/selfnodeclient"])),
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
        _binding("system:node"),
    ]


_CSR: Final = "certificates.k8s.io/certificatesigningrequests"
_BINDINGS: Final = (f"{_RBAC}/rolebindings", f"{_RBAC}/clusterrolebindings")


def prepare_create(kind: Kind, value: JsonMap, user: User, now: str) -> list[Cause]:
    """Bring a new object into its first state and return what is wrong with it."""
    if kind.collection == _CSR:
        _csr_create(value, user)
    elif kind.collection == "/namespaces":
        value["status"] = {"phase": "Active"}
        labels = child(child(value, "metadata"), "labels")
        labels["kubernetes.io/metadata.name"] = text_at(value, "metadata", "name")
    elif kind.custom and kind.status_subresource:
        value.pop("status", None)
    return _prepare(kind, value, now)


def prepare_update(kind: Kind, value: JsonMap, before: JsonMap, subresource: str, now: str) -> list[Cause]:
    """Restore what the written door does not open, and return what is wrong with the change."""
    if kind.collection == _CSR:
        return _csr_update(value, before, subresource, now)
    if subresource:
        _only_status(kind, value, before)
        return []
    if kind.status_subresource:
        value.pop("status", None)
        value.update({key: before[key] for key in ("status",) if key in before})
    causes = _prepare(kind, value, now)
    fixed = {"/secrets": "type"} | dict.fromkeys(_BINDINGS, "roleRef")
    field = fixed.get(kind.collection)
    if field is not None and value.get(field) != before.get(field):
        causes.append(invalid_field(field, f'"{text_at(value, field) or "<object>"}"', "field is immutable"))
    return causes


def _prepare(kind: Kind, value: JsonMap, now: str) -> list[Cause]:
    match kind.collection:
        case crd.COLLECTION:
            crd.establish(value, now)
        case collection if collection == POLICIES:
            return validate_policy(value)
        case "/secrets":
            value.setdefault("type", "Opaque")
            _check_base64(value)
        case collection if collection in _BINDINGS:
            child(value, "roleRef").setdefault("apiGroup", _RBAC)
            for subject in maps_at(value, "subjects"):
                if text_at(subject, "kind") in {"User", "Group"}:
                    subject.setdefault("apiGroup", _RBAC)
        case _:
            pass
    return []


def _only_status(kind: Kind, value: JsonMap, before: JsonMap) -> None:
    # Of a custom resource, /status takes status and nothing else; of a built-in kind metadata may change as well.
    metadata = map_at(before if kind.custom else value, "metadata")
    taken = {key: value[key] for key in ("status",) if key in value}
    kept = {key: item for key, item in before.items() if key != "status"}
    value.clear()
    value.update({**kept, "metadata": {**metadata}, **taken})


def _check_base64(value: JsonMap) -> None:
    for key, item in map_at(value, "data").items():
        if not _is_base64(item):
            raise bad_request(f"Secret in version v1 cannot be handled: data[{key}]: illegal base64 data")


def _is_base64(item: JsonValue) -> bool:
    try:
        base64.b64decode(item if isinstance(item, str) else "", validate=True)
    except binascii.Error:
        return False
    return True
