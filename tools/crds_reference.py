"""Write docs/crds.md from the CustomResourceDefinitions: ``python -m tools.crds_reference FILE``.

What is before the first kind's section stays.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodeattest_controller.manifests import crds
from tools.markdown_tables import cell, code, rewrite, table

_GIVEN_BY_KUBERNETES: Final = frozenset({"apiVersion", "kind", "metadata"})
_LIMITS: Final = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} entries",
    "maxProperties": "at most {} entries",
}
_NOT_EMPTY: Final = frozenset({"at least 1 characters", "at least 1 items", "at least 1 entries"})
_LINE: Final = 120
"""Columns of a page's lines."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a kind: its path from the object's root, and its schema."""

    path: str
    schema: Mapping[str, Any]
    required: bool

    @property
    def kind(self) -> str:
        """Return the type in the words of the schema."""
        return _kind(self.schema)

    @property
    def limits(self) -> str:
        """Return what a value must keep, of the field or of its single items."""
        own = _limits(self.schema)
        items = _schema(self.schema, "items") or _schema(self.schema, "additionalProperties")
        each = _limits(items) if "properties" not in items else []
        return "; ".join([*own, *(f"each {limit}" for limit in each)])

    @property
    def rules(self) -> list[tuple[str, str]]:
        """Return the CEL rules with their messages."""
        return [(rule["rule"], rule.get("message", "")) for rule in self.schema.get("x-kubernetes-validations", ())]


def fields(schema: Mapping[str, Any], path: str = "", *, required: bool = False) -> Iterator[Field]:
    """Yield a schema's fields in their order, each before what is inside of it."""
    if path:
        yield Field(path, schema, required)
    inside: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    for name, below in inside.items():
        if path or name not in _GIVEN_BY_KUBERNETES:
            needed = name in schema.get("required", ())
            yield from fields(below, f"{path}.{name}" if path else name, required=needed)
    for word, mark in (("items", "[]"), ("additionalProperties", ".*")):
        items = _schema(schema, word)
        if _has_inside(items):
            yield from fields(items, f"{path}{mark}")


def markdown(before: str) -> str:
    """Write the page anew."""
    parts = [before.partition("\n## ")[0].rstrip()]
    for crd in crds():
        spec: Any = crd["spec"]
        for version in spec["versions"]:
            parts += _section(spec, version)
    return "\n\n".join(parts) + "\n"


def _section(spec: Mapping[str, Any], version: Mapping[str, Any]) -> Iterator[str]:
    names, schema = spec["names"], version["schema"]["openAPIV3Schema"]
    found = list(fields(schema))
    yield f"## {names['kind']}"
    short = ", ".join(f"`{name}`" for name in names.get("shortNames", ()))
    scope = f"`{spec['group']}/{version['name']}`, {spec['scope'].lower()}"
    about = f"{scope}{f'; short name {short}' if short else ''}. {cell(schema.get('description', ''))}"
    yield textwrap.fill(about, _LINE, break_long_words=False, break_on_hyphens=False)
    rows = [
        (
            code(field.path),
            field.kind,
            "yes" if field.required else "",
            code(json.dumps(field.schema["default"])) if "default" in field.schema else "",
            " ".join(filter(None, (cell(field.schema.get("description", "")), _limits_cell(field)))),
        )
        for field in found
        if not field.path.endswith("[]") or "description" in field.schema
    ]
    yield table(("field", "type", "required", "default", "meaning"), rows)
    whole = Field(names["kind"], schema, required=True)
    rules = [(code(each.path), code(rule), cell(message)) for each in (whole, *found) for rule, message in each.rules]
    if rules:
        yield f"### Rules of {names['kind']}"
        yield table(("field", "rule (CEL)", "message"), rules)


def _kind(schema: Mapping[str, Any]) -> str:
    below = _schema(schema, "items") or _schema(schema, "additionalProperties")
    match schema.get("type"):
        case "array":
            return f"list of {_kind(below)}"
        case "object" if below:
            return f"map of {_kind(below)}"
        case None:
            return "integer or string" if schema.get("x-kubernetes-int-or-string") else "any"
        case kind:
            return f"{kind} ({schema['format']})" if schema.get("format") else str(kind)


def _schema(schema: Mapping[str, Any], word: str) -> Mapping[str, Any]:
    """Return a schema inside of another; empty where there is none, or only true or false."""
    found: Any = schema.get(word)
    return {} if found is None or isinstance(found, bool) else found


def _has_inside(schema: Mapping[str, Any]) -> bool:
    return any(word in schema for word in ("properties", "items", "additionalProperties", "x-kubernetes-validations"))


def _limits(schema: Mapping[str, Any]) -> list[str]:
    found = [text.format(schema[word]) for word, text in _LIMITS.items() if word in schema]
    found = ["not empty" if limit in _NOT_EMPTY else limit for limit in found]
    if "enum" in schema:
        found.insert(0, "one of " + ", ".join(f"`{value}`" for value in schema["enum"]))
    if "pattern" in schema:
        found.append(f"matches `{schema['pattern']}`")
    return found


def _limits_cell(field: Field) -> str:
    limits = cell(field.limits)
    return f"({limits})" if limits and "description" in field.schema else limits


if __name__ == "__main__":
    rewrite(markdown, __doc__)
