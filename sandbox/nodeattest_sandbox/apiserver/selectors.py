"""Label and field selectors.

Promises: equality and presence, in the syntax of kubectl's ``-l`` and ``--field-selector``; a field that the resource
does not index is a 400.
Source: k8s.io/apimachinery/pkg/labels/selector.go, pkg/fields/selector.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.status_errors import bad_request

Match: TypeAlias = Callable[[JsonMap], bool]

_METADATA: Final = ("metadata.name", "metadata.namespace")
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "/secrets": ("type",),
    "/events": ("involvedObject.uid", "involvedObject.name", "reason"),
    "certificates.k8s.io/certificatesigningrequests": ("spec.signerName",),
}
_LABEL: Final = re.compile(r"(?P<not>!?)(?P<key>[^\s!=,()]+)(?:(?P<op>==|=|!=)(?P<value>[^\s!=,()]*))?")
_FIELD: Final = re.compile(r"(?P<key>[^=!]+)(?P<op>==|=|!=)(?P<value>.*)")


def read_selectors(kind: Kind, label_selector: str, field_selector: str) -> Match | None:
    """Return the test for both selectors, or None when there is nothing to test; raises ApiError."""
    tests = [_label_test(term.strip()) for term in label_selector.split(",") if term.strip()]
    tests += [_field_test(kind, term.strip()) for term in field_selector.split(",") if term.strip()]
    return (lambda value: all(test(value) for test in tests)) if tests else None


def _label_test(term: str) -> Match:
    found = _LABEL.fullmatch(term)
    if found is None or (found["not"] and found["op"]):
        raise bad_request(f"unable to parse requirement: {term!r}")
    key, op, wanted = found["key"], found["op"], found["value"]

    def test(value: JsonMap) -> bool:
        labels = map_at(value, "metadata", "labels")
        if op is None:
            return (key in labels) is not bool(found["not"])
        return (key in labels and labels[key] == wanted) is (op != "!=")

    return test


def _field_test(kind: Kind, term: str) -> Match:
    found = _FIELD.fullmatch(term)
    if found is None or found["key"] not in (*_METADATA, *_FIELDS.get(kind.collection, ())):
        raise bad_request(f'field label not supported: "{term}" of {kind.plural}')
    steps, wanted, equal = found["key"].split("."), found["value"], found["op"] != "!="
    return lambda value: (text_at(value, *steps) == wanted) is equal
