"""CEL as an API server evaluates it, by the CEL team's library: a CRD's rules, and an admission policy's expression.

Promises: rules (``x-kubernetes-validations``) are found and run where apiextensions-apiserver finds and runs them
(pkg/apiserver/schema/cel/validation.go): at each node of the schema for which the object has a value, ``self`` being
that value; a ValidatingAdmissionPolicy's expression sees ``object`` and ``request``, absent fields being absent
(apiserver pkg/admission/plugin/cel/condition.go).
Leaves out types: an API server also refuses a definition whose rule names an unknown field, hence ``selected``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from nodeattest_parsing.objects import items, mapping, number, text
from nodeattest_parsing.values import JsonObject, JsonValue

_SELECTION = re.compile(r"\bself((?:\.[A-Za-z_]\w*)+)(?!\w*\()")
_LOOP = re.compile(r"\b(\w+(?:\.\w+|\[\w+\])*)\.(?:all|exists|exists_one|map|filter)\((\w+),")


class _Value(Protocol):
    def plain_value(self) -> object: ...


class _Expression(Protocol):
    def eval(self, *, data: Mapping[str, object]) -> _Value: ...


class _Env(Protocol):
    def compile(self, expression: str) -> _Expression: ...


class _Types(Protocol):
    DYN: object
    STRING: object


class _Cel(Protocol):
    Type: _Types

    def NewEnv(self, *, variables: Mapping[str, object]) -> _Env: ...  # noqa: N802 - the library's name


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, and the place of the schema at which it stands."""

    path: str
    node: JsonObject
    """The schema of what the rule calls ``self``."""
    expression: str
    message: str
    bounds: tuple[int | None, ...]
    """How many entries each list and map above may have; None: any number."""

    def selections(self) -> list[tuple[str, ...]]:
        """List the fields of ``self`` that the rule names."""
        return [tuple(found.strip(".").split(".")) for found in _SELECTION.findall(self.expression)]

    def loops(self) -> list[str]:
        """List what the rule runs over."""
        return [over for over, _variable in _LOOP.findall(self.expression)]


def rules_of(node: JsonObject, path: str = "", bounds: tuple[int | None, ...] = ()) -> Iterator[Rule]:
    """Find every rule of a schema."""
    for rule in items(node, "x-kubernetes-validations"):
        yield Rule(path, node, text(rule, "rule"), text(rule, "message"), bounds)
    for name in mapping(node, "properties"):
        yield from rules_of(mapping(node, "properties", name), f"{path}.{name}", bounds)
    if "items" in node:
        yield from rules_of(mapping(node, "items"), f"{path}[]", (*bounds, number(node, "maxItems")))
    if isinstance(node.get("additionalProperties"), dict):
        inner = mapping(node, "additionalProperties")
        yield from rules_of(inner, f"{path}[]", (*bounds, number(node, "maxProperties")))


def compiled(expression: str, node: JsonObject) -> _Expression:
    """Compile a rule; raises RuntimeError."""
    cel = _library()
    kind = cel.Type.STRING if text(node, "type") == "string" else cel.Type.DYN
    return cel.NewEnv(variables={"self": kind}).compile(expression)


def admits(expression: str, obj: JsonObject, request: JsonObject, old: JsonObject | None = None) -> bool:
    """Evaluate the expression of an admission policy or a match condition; raises RuntimeError on an error in CEL."""
    answer = _admission(expression).eval(data={"object": obj, "oldObject": old, "request": request}).plain_value()
    if not isinstance(answer, bool):
        raise RuntimeError(f"{expression}: {answer}")
    return answer


@cache
def _admission(expression: str) -> _Expression:
    cel = _library()
    return cel.NewEnv(variables=dict.fromkeys(("object", "oldObject", "request"), cel.Type.DYN)).compile(expression)


def _library() -> _Cel:
    """Find the library by name, so that the type checker needs none that only these tests need."""
    return cast("_Cel", import_module("cel_expr_python.cel"))


def violations(node: JsonObject, value: JsonValue) -> Iterator[str]:
    """Yield the messages of the rules that refuse a value; one that cannot be evaluated refuses, too."""
    for rule in items(node, "x-kubernetes-validations"):
        answer = compiled(text(rule, "rule"), node).eval(data={"self": value}).plain_value()
        if answer is not True:
            yield text(rule, "message")
    if isinstance(value, dict):
        rest = node.get("additionalProperties")
        for name, entry in value.items():
            inner = mapping(node, "properties", name) or (rest if isinstance(rest, dict) else {})
            yield from violations(inner, entry)
    if isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            yield from violations(mapping(node, "items"), entry)
