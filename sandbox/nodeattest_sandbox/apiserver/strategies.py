"""What is particular to a kind when it is written: defaults, what is restored, what is refused.

Promises: ``prepare_create`` and ``prepare_update`` change the given value only; both return the causes of a refusal.
Source: pkg/registry/<group>/<kind>/strategy.go; a kind without entry here follows the general rules.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from nodeattest_sandbox.apiserver import crd, csr
from nodeattest_sandbox.apiserver.admission import POLICIES, validate_policy
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, child, map_at, maps_at, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.status_errors import Cause, bad_request, invalid_field
from nodeattest_sandbox.apiserver.users import User

__all__ = ["prepare_create", "prepare_update"]

_CSR: Final = "certificates.k8s.io/certificatesigningrequests"
_RBAC: Final = "rbac.authorization.k8s.io"
_BINDINGS: Final = (f"{_RBAC}/rolebindings", f"{_RBAC}/clusterrolebindings")


def prepare_create(kind: Kind, value: JsonMap, user: User, now: str) -> list[Cause]:
    """Bring a new object into its first state and return what is wrong with it."""
    if kind.collection == _CSR:
        csr.prepare_create(value, user)
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
        return csr.prepare_update(value, before, subresource, now)
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
            _encode_texts(value)
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


def _encode_texts(value: JsonMap) -> None:
    texts = value.pop("stringData", None)
    if isinstance(texts, dict):
        data = child(value, "data")
        data.update({key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()})
    for key, item in map_at(value, "data").items():
        if not _is_base64(item):
            raise bad_request(f"Secret in version v1 cannot be handled: data[{key}]: illegal base64 data")


def _is_base64(item: JsonValue) -> bool:
    try:
        base64.b64decode(item if isinstance(item, str) else "", validate=True)
    except binascii.Error:
        return False
    return True
