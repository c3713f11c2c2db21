"""``python -m tools.reference``: write the pages of the reference anew, from what they are about.

docs/commands.md, docs/metrics.md, docs/crds.md, and the controller's section of docs/configuration.md; what is before
the first of these sections stays. A setting's meaning is the docstring below its field.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from nodeattest_cli.main import cli
from nodeattest_controller import configfile, main
from nodeattest_controller.manifests import crds
from nodeattest_controller.metrics import Metrics as Controller
from nodeattest_controller.settings import OFF_BY_DEFAULT, Settings, camel
from nodeattest_discovery.front import Metrics as Front
from nodeattest_identity.addon.gateway.service import Metrics as Gateway
from nodeattest_identity.addon.sidecar.service import Metrics as Sidecar
from nodeattest_identity.serve import Metrics as Issuer
from nodeattest_parsing.times import format_seconds
from tools.markdown_tables import cell, code, table

DOCS: Final = Path(__file__).parents[1] / "docs"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


# Commands


def commands(group: click.Group = cli, title: str = "nodeattest") -> Iterator[str]:
    """Yield the section of each command that does something, in the order of ``--help``."""
    parent = click.Context(group, info_name=title)
    for name in group.list_commands(parent):
        _, command, _ = group.resolve_command(parent, [name])
        if isinstance(command, click.Group):
            yield from commands(command, f"{title} {name}")
        elif command is not None:
            yield from _command(command, f"{title} {name}")


def _command(command: click.Command, title: str) -> Iterator[str]:
    context = click.Context(command, info_name=title, terminal_width=110, show_default=True)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    yield f"## {title}\n\n```text\n{usage}\n```"
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        yield _wrapped(_escaped(" ".join(paragraph.split())))
    records = [param.get_help_record(context) for param in command.params if isinstance(param, click.Option)]
    rows = [
        (code(names), _escaped(" ".join(text.split())).replace("|", "\\|")) for names, text in filter(None, records)
    ]
    if rows:
        yield table(("option", "meaning"), rows)


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "\\<")


# Metrics

SERVERS: Final = {
    "node-attestation-controller": Controller,
    "nodeattest issuer serve": Issuer,
    "nodeattest discovery serve": Front,
    "nodeattest addon-auth gateway": Gateway,
    "nodeattest addon-auth sidecar": Sidecar,
}
_OURS: Final = ("nodeattest_", "workqueue_", "rest_client_")
"""Not those of the process; the last two are client-go's names."""
_SUFFIXES: Final = {
    "histogram": ("_bucket", "_sum", "_count"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
    "counter": ("_total",),
}
"""Of the series of a family; others have the family's name."""


class Family(NamedTuple):
    """One family as it is registered."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def series(self) -> tuple[str, ...]:
        """Names that a query uses."""
        return tuple(f"{self.name}{suffix}" for suffix in _SUFFIXES.get(self.kind, ("",)))


def families(server: str) -> Iterator[Family]:
    """Yield the families of one server, in the order of their registration."""
    made = vars(SERVERS[server]())
    registry: CollectorRegistry = made.get("registry") or made["_registry"]  # some servers show text only
    collectors: Mapping[Collector, object] = vars(registry)["_collector_to_names"]
    for collector in collectors:
        for family in collector.collect():  # a family without series shows its labels nowhere but in these attributes
            labels: tuple[str, ...] = getattr(family, "_labelnames", None) or getattr(collector, "_labelnames", ())
            if family.name.startswith(_OURS):
                yield Family(family.name, family.type, labels, family.documentation)


def series_names() -> frozenset[str]:
    """Return every name that a query may use, of all servers."""
    return frozenset(name for server in SERVERS for family in families(server) for name in family.series)


def metrics() -> Iterator[str]:
    """Yield the section of each server."""
    for server in SERVERS:
        rows: list[tuple[str, str, str]] = []
        for family in families(server):
            name = family.series[0] if family.kind == "counter" else family.name  # of a histogram without ``le``
            labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
            rows.append((f"`{name}{labels}`", family.kind, family.text))
        yield f"## {server}"
        yield table(("metric", "type", "meaning"), rows)


# Definitions

_Schema = Mapping[str, Any]
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


def definitions() -> Iterator[str]:
    """Yield the sections of each kind: its fields, and its rules."""
    for crd in crds():
        spec: Any = crd["spec"]
        for version in spec["versions"]:
            yield from _kind(spec, version)


def _kind(spec: _Schema, version: _Schema) -> Iterator[str]:
    names, schema = spec["names"], version["schema"]["openAPIV3Schema"]
    short = ", ".join(f"`{name}`" for name in names.get("shortNames", ()))
    scope = f"`{spec['group']}/{version['name']}`, {spec['scope'].lower()}"
    yield f"## {names['kind']}"
    yield _wrapped(f"{scope}{f'; short name {short}' if short else ''}. {cell(schema.get('description', ''))}")
    found = list(_fields(schema))
    rows = [
        (
            code(path),
            _type(field),
            "yes" if required else "",
            code(json.dumps(field["default"])) if "default" in field else "",
            _meaning(field),
        )
        for path, field, required in found
        if not path.endswith("[]") or "description" in field
    ]
    yield table(("field", "type", "required", "default", "meaning"), rows)
    rules = [
        (code(path), code(rule["rule"]), cell(rule.get("message", "")))
        for path, field, _ in ((names["kind"], schema, True), *found)
        for rule in field.get("x-kubernetes-validations", ())
    ]
    if rules:
        yield f"### Rules of {names['kind']}"
        yield table(("field", "rule (CEL)", "message"), rules)


def _fields(schema: _Schema, path: str = "", *, required: bool = False) -> Iterator[tuple[str, _Schema, bool]]:
    """Yield path, schema and whether it is required of each field, each before what is inside of it."""
    if path:
        yield path, schema, required
    for name, below in schema.get("properties", {}).items():
        if path or name not in {"apiVersion", "kind", "metadata"}:
            yield from _fields(below, f"{path}.{name}" if path else name, required=name in schema.get("required", ()))
    for word, mark in (("items", "[]"), ("additionalProperties", ".*")):
        inside = _below(schema, word)
        if inside.keys() & {"properties", "items", "additionalProperties", "x-kubernetes-validations"}:
            yield from _fields(inside, f"{path}{mark}")


def _below(schema: _Schema, *words: str) -> _Schema:
    """Return the first schema inside of another; empty where there is none, or only true or false."""
    for word in words:
        found: Any = schema.get(word)
        if found and found is not True:
            return found
    return {}


def _type(schema: _Schema) -> str:
    below = _below(schema, "items", "additionalProperties")
    match schema.get("type"):
        case "array":
            return f"list of {_type(below)}"
        case "object" if below:
            return f"map of {_type(below)}"
        case None:
            return "integer or string" if schema.get("x-kubernetes-int-or-string") else "any"
        case kind:
            return f"{kind} ({schema['format']})" if schema.get("format") else str(kind)


def _meaning(schema: _Schema) -> str:
    """Return what a field is, and what a value must keep, of the field or of its single items."""
    inside = _below(schema, "items", "additionalProperties")
    each = [f"each {limit}" for limit in _limits(inside)] if "properties" not in inside else []
    text, limits = cell(schema.get("description", "")), cell("; ".join([*_limits(schema), *each]))
    return f"{text} ({limits})" if text and limits else text or limits


def _limits(schema: _Schema) -> list[str]:
    found = [text.format(schema[word]) for word, text in _LIMITS.items() if word in schema]
    found = ["not empty" if limit in _NOT_EMPTY else limit for limit in found]
    if "enum" in schema:
        found.insert(0, "one of " + ", ".join(f"`{value}`" for value in schema["enum"]))
    if "pattern" in schema:
        found.append(f"matches `{schema['pattern']}`")
    return found


# Settings

_KINDS: Final = {
    "str": "string",
    "str | None": "string",
    "bool": "true or false",
    "int": "whole number",
    "float": "duration",
    "Path | None": "path of a file",
    "tuple[str, ...]": "list of strings",
    "tuple[str, ...] | None": "list of strings",
    "Mapping[str, Mapping[str, JsonValue]]": "mapping of mappings",
}
"""By the annotation: a field of a new type needs its words here."""


def settings() -> Iterator[str]:
    """Yield the controller's settings."""
    options = {option for param in main.run.params for option in param.opts}
    meanings = _docstrings(Settings)
    rows: list[tuple[str, ...]] = []
    for field in fields(Settings):
        if field.name != "identity":
            name = camel(field.name)
            flag = "--" + re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", "-", name).lower()
            kind, default = _KINDS[str(field.type)], _default(str(field.type), field.default)
            rows.append((code(name), code(flag) if flag in options else "", kind, default, meanings[field.name]))
    yield "## Controller"
    yield f"`apiVersion: {configfile.API_VERSION}`, `kind: {configfile.KIND}`,\nin YAML; `--config` names the file."
    yield table(("field", "flag", "type", "default", "meaning"), rows)


def _default(annotation: str, value: object) -> str:
    match value:
        case None | ():
            return ""
        case float() if annotation == "float":
            return code(format_seconds(value))
        case bool() | tuple():
            return code(json.dumps(value))
        case _:
            return "" if value is MISSING else code(str(value))


def _docstrings(owner: type) -> dict[str, str]:
    """Return the docstrings below a class's attributes, as cells."""
    module = ast.parse(Path(inspect.getfile(owner)).read_text(encoding="utf-8"))
    [body] = [node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == owner.__name__]
    found: dict[str, str] = {}
    off = ", ".join(f"`{each}`" for each in OFF_BY_DEFAULT)
    for statement, after in pairwise(body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                meaning = re.sub(r"(; |^|\. )None(:| means)", r"\1absent\2", text.replace("``", "`"))
                meaning = meaning.replace(". absent", ". Absent")
                found[name] = cell(meaning.replace("those of `OFF_BY_DEFAULT`", off))
            case _:
                pass
    return found


PAGES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "commands.md": commands,
    "metrics.md": metrics,
    "crds.md": definitions,
    "configuration.md": settings,
}


def page(name: str) -> str:
    """Write a page anew."""
    before = (DOCS / name).read_text(encoding="utf-8")
    first = {"commands.md": "\n## nodeattest", "configuration.md": "\n## Controller"}.get(name, "\n## ")
    head = before.partition(first)[0].rstrip()
    return "\n\n".join((head, *PAGES[name]())) + "\n"


if __name__ == "__main__":
    for _name in PAGES:
        (DOCS / _name).write_text(page(_name), encoding="utf-8")
