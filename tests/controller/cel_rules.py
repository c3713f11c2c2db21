"""CEL as an API server evaluates it, by the CEL team's library: a CRD's rules, and an admission policy's expression.

Rules (``x-kubernetes-validations``) run where apiextensions-apiserver runs them: at each node of the schema for which
the object has a value, ``self`` being that value. An admission policy's expression sees ``object`` and ``request``.
Source: apiextensions-apiserver pkg/apiserver/schema/cel/validation.go; apiserver pkg/admission/plugin/cel/condition.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue


def admits(expression: str, obj: JsonObject, request: JsonObject) -> bool:
    """Evaluate the expression of an admission policy; raises RuntimeError on an error in CEL."""
    answer = _compiled(expression, ("object", "request")).eval(data={"object": obj, "request": request}).plain_value()
    if not isinstance(answer, bool):
        raise RuntimeError(f"{expression}: {answer}")
    return answer


@cache
def _compiled(expression: str, names: tuple[str, ...], kind: str = "DYN") -> Any:
    cel: Any = import_module("cel_expr_python.cel")  # by name: the type checker needs none that only these tests need
    return cel.NewEnv(variables=dict.fromkeys(names, getattr(cel.Type, kind))).compile(expression)


def violations(node: JsonObject, value: JsonValue) -> Iterator[str]:
    """Yield the messages of the rules that refuse a value; one that cannot be evaluated refuses, too."""
    kind = "STRING" if text(node, "type") == "string" else "DYN"
    for rule in items(node, "x-kubernetes-validations"):
        if _compiled(text(rule, "rule"), ("self",), kind).eval(data={"self": value}).plain_value() is not True:
            yield text(rule, "message")
    if isinstance(value, dict):
        rest = node.get("additionalProperties")
        for name, entry in value.items():
            inner = mapping(node, "properties", name) or (rest if isinstance(rest, dict) else {})
            yield from violations(inner, entry)
    if isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            yield from violations(mapping(node, "items"), entry)
