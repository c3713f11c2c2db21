"""Label and field selectors.

Promises: the syntax of kubectl's ``-l`` and ``--field-selector``; a field that the resource does not index is a 400.
Source: k8s.io/apimachinery/pkg/labels/selector.go, pkg/fields/selector.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at, value_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.status_errors import bad_request

__all__ = ["Match", "read_selectors"]

Match: TypeAlias = Callable[[JsonMap], bool]

_METADATA: Final = ("metadata.name", "metadata.namespace")
_INVOLVED: Final = tuple(
    f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
)
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "/secrets": ("type",),
    "/nodes": ("spec.unschedulable",),
    "/namespaces": ("status.phase", "name"),
    "/events": (*_INVOLVED, "reason", "reportingComponent", "source", "type"),
    "certificates.k8s.io/certificatesigningrequests": ("spec.signerName",),
}
_SET: Final = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUAL: Final = re.compile(r"^(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)$")
_EXISTS: Final = re.compile(r"^(?P<not>!?)\s*(?P<key>[^\s!=,()]+)$")


def read_selectors(kind: Kind, label_selector: str, field_selector: str) -> Match | None:
    """Return the test for both selectors, or None when there is nothing to test; raises ApiError."""
    tests = [*_label_tests(label_selector), *_field_tests(kind, field_selector)]
    if not tests:
        return None
    return lambda value: all(test(value) for test in tests)


def _split(selector: str) -> Sequence[str]:
    return [term.strip() for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label_tests(selector: str) -> list[Match]:
    return [_label_test(term) for term in _split(selector)]


def _label_test(term: str) -> Match:
    if found := _SET.match(term):
        values = {value.strip() for value in found["values"].split(",")}
        return _membership(found["key"], values, wanted=found["op"] == "in")
    if found := _EQUAL.match(term):
        return _membership(found["key"], {found["value"]}, wanted=found["op"] != "!=")
    if found := _EXISTS.match(term):
        key, absent = found["key"], bool(found["not"])
        return lambda value: (key in map_at(value, "metadata", "labels")) is not absent
    raise bad_request(f"unable to parse requirement: {term!r}")


def _membership(key: str, values: set[str], *, wanted: bool) -> Match:
    def test(value: JsonMap) -> bool:
        labels = map_at(value, "metadata", "labels")
        return (key in labels and labels[key] in values) is wanted

    return test


def _field_tests(kind: Kind, selector: str) -> list[Match]:
    known = (*_METADATA, *_FIELDS.get(kind.collection, ()))
    return [_field_test(kind, known, term) for term in _split(selector)]


def _field_test(kind: Kind, known: Sequence[str], term: str) -> Match:
    found = _EQUAL.match(term) or re.match(r"^(?P<key>[^=!]+)(?P<op>==|=|!=)(?P<value>.*)$", term)
    if not found:
        raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
    path, wanted, equal = found["key"], found["value"], found["op"] != "!="
    if path not in known:
        raise bad_request(f'Unable to find "{kind.api_version}, Resource={kind.plural}" that match label selector "", '
                          f'field selector "{term}": field label not supported: {path}')  # fmt: skip
    steps = path.split(".")
    return lambda value: (_text(value, steps) == wanted) is equal


def _text(value: JsonMap, steps: Sequence[str]) -> str:
    found = value_at(value, *steps)
    if isinstance(found, bool):
        return "true" if found else "false"
    return text_at(value, *steps)
