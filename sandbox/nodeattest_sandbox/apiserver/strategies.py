"""What is particular to a kind when it is written: defaults, what is restored, what is refused.

Promises: ``prepare_create`` and ``prepare_update`` change the given value only; both return the causes of a refusal.
Source: pkg/registry/<group>/<kind>/strategy.go; a kind without entry here follows the general rules.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from nodeattest_sandbox.apiserver import admission_policies, crd, csr
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, child, map_at, maps_at, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.status_errors import Cause, bad_request, invalid_field
from nodeattest_sandbox.apiserver.users import User

__all__ = ["prepare_create", "prepare_update"]

_CSR: Final = "certificates.k8s.io/certificatesigningrequests"
_BINDINGS: Final = ("rbac.authorization.k8s.io/rolebindings", "rbac.authorization.k8s.io/clusterrolebindings")
_IMMUTABLE: Final = "field is immutable"
_DATA_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_DATA_KEY_RULE: Final = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"


def prepare_create(kind: Kind, value: JsonMap, user: User, now: str) -> list[Cause]:
    """Bring a new object into its first state and return what is wrong with it."""
    causes: list[Cause] = []
    match kind.collection:
        case "certificates.k8s.io/certificatesigningrequests":
            csr.prepare_create(value, user)
            causes = csr.validate(value)
        case crd.COLLECTION:
            causes = crd.validate(value)
            crd.establish(value, now)
        case admission_policies.POLICIES:
            causes = admission_policies.validate_policy(value)
        case "/namespaces":
            child(value, "spec")["finalizers"] = ["kubernetes"]
            value["status"] = {"phase": "Active"}
            child(child(value, "metadata"), "labels")["kubernetes.io/metadata.name"] = text_at(
                value, "metadata", "name"
            )
        case "/secrets":
            value.setdefault("type", "Opaque")
            causes = _prepare_secret(value)
        case "/configmaps":
            causes = _data_causes(value)
        case collection if collection in _BINDINGS:
            _default_references(value)
        case _ if kind.custom and kind.status_subresource:
            value.pop("status", None)
        case _:
            pass
    return causes


def prepare_update(kind: Kind, value: JsonMap, before: JsonMap, subresource: str, now: str) -> list[Cause]:
    """Restore what the written door does not open, and return what is wrong with the change."""
    if kind.collection == _CSR:
        csr.prepare_update(value, before, subresource, now)
        return csr.validate_update(value, before, subresource)
    if subresource:
        _only_status(kind, value, before)
        return []
    if kind.status_subresource:
        _restore(value, before, "status")
    causes: list[Cause] = []
    match kind.collection:
        case crd.COLLECTION:
            causes = crd.validate(value)
            crd.establish(value, now)
        case admission_policies.POLICIES:
            causes = admission_policies.validate_policy(value)
        case "/configmaps":
            causes = _data_causes(value)
        case "/secrets":
            value.setdefault("type", "Opaque")
            causes = [*_prepare_secret(value), *_unchanged(value, before, "type")]
        case collection if collection in _BINDINGS:
            _default_references(value)
            causes = _unchanged(value, before, "roleRef")
        case _:
            pass
    return causes


def _only_status(kind: Kind, value: JsonMap, before: JsonMap) -> None:
    # Of a custom resource, /status takes status and nothing else; of a built-in kind metadata may change as well.
    keep = ("status", "metadata") if not kind.custom else ("status",)
    taken = {key: value[key] for key in keep if key in value}
    value.clear()
    value.update(
        {**before, **taken} if "status" in taken else {k: v for k, v in {**before, **taken}.items() if k != "status"}
    )
    if kind.custom:
        value["metadata"] = {**map_at(before, "metadata")}


def _restore(value: JsonMap, before: JsonMap, key: str) -> None:
    if key in before:
        value[key] = before[key]
    else:
        value.pop(key, None)


def _prepare_secret(value: JsonMap) -> list[Cause]:
    texts = value.pop("stringData", None)
    if isinstance(texts, dict):
        data = child(value, "data")
        for key, text in texts.items():
            data[key] = base64.b64encode(str(text).encode()).decode()
    for key, item in map_at(value, "data").items():
        if not _is_base64(item):
            raise bad_request(f"Secret in version v1 cannot be handled: data[{key}]: illegal base64 data")
    return _data_causes(value)


def _data_causes(value: JsonMap) -> list[Cause]:
    keys = [*map_at(value, "data"), *map_at(value, "binaryData")]
    return [
        invalid_field(f"data[{key}]", f'"{key}"', _DATA_KEY_RULE) for key in keys if not _DATA_KEY.fullmatch(key)
    ]  # fmt: skip


def _is_base64(item: JsonValue) -> bool:
    try:
        base64.b64decode(item if isinstance(item, str) else "", validate=True)
    except binascii.Error:
        return False
    return True


def _default_references(value: JsonMap) -> None:
    group = "rbac.authorization.k8s.io"
    child(value, "roleRef").setdefault("apiGroup", group)
    for subject in maps_at(value, "subjects"):
        if text_at(subject, "kind") in {"User", "Group"}:
            subject.setdefault("apiGroup", group)


def _unchanged(value: JsonMap, before: JsonMap, key: str) -> list[Cause]:
    if value.get(key) == before.get(key):
        return []
    shown = text_at(value, key) or "<object>"
    return [invalid_field(key, f'"{shown}"', "cannot change roleRef" if key == "roleRef" else _IMMUTABLE)]
