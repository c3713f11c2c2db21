"""The formats of ``-o``: kubeadm's, and one document of all tokens besides.

Promises: a format is understood or refused before anything is asked of a cluster. JSON and YAML are what kubeadm
prints: one object after the other.
Source: kubernetes cmd/kubeadm/app/util/output; cli-runtime pkg/printers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from nodeattest_cli.errors import UserError
from nodeattest_cli.output import to_yaml
from nodeattest_cli.token import gotemplate, jsonpath
from nodeattest_cli.token.model import TokenView
from nodeattest_cli.token.table import table
from nodeattest_kube.jsontypes import JsonValue

__all__ = ["FORMATS", "Printer", "printer"]

Printer = Callable[[Sequence[TokenView], datetime], str]

_TEMPLATES: Final = ("go-template", "go-template-file", "jsonpath", "jsonpath-as-json", "jsonpath-file")
_ALIASES: Final = {"template": "go-template", "templatefile": "go-template-file"}
FORMATS: Final = tuple(sorted(("json", "json-list", "text", "yaml", *_TEMPLATES, *_ALIASES)))
_HTML: Final = frozenset("<>&")
"""What Go's encoding/json escapes besides, so that JSON may stand in HTML."""
_CASELESS: Final = frozenset({"JSON", "YAML"})
_LARGEST: Final = 4096
"""Bytes of a file with a template."""


def printer(output: str, *, missing_is_empty: bool = True) -> Printer:
    """Choose a printer by the value of ``-o``; raises ``UserError``."""
    name, _, argument = output.partition("=")
    name = name.lower() if name.upper() in _CASELESS else _ALIASES.get(name, name)
    if name in _TEMPLATES:
        return _template_printer(name, _template(name, argument), missing_is_empty)
    plain: dict[str, Printer] = {
        "text": table,
        "json": lambda tokens, _: "".join(f"{_json(token.to_json())}\n" for token in tokens),
        "json-list": lambda tokens, _: f"{_list(tokens)}\n",
        "yaml": lambda tokens, _: "---\n".join(to_yaml(token.to_json()) for token in tokens),
    }
    if argument or name not in plain:
        raise UserError(f"-o: expected one of {', '.join(FORMATS)}, got {output[:80]!a}")
    return plain[name]


def _template(name: str, argument: str) -> str:
    if not argument:
        raise UserError(f"-o {name}: expected {name}=…, got nothing to print by")
    if not name.endswith("-file"):
        return argument
    try:
        with Path(argument).open(encoding="utf-8") as file:
            return file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"-o {name}: {argument}: {getattr(error, 'strerror', None) or 'no text'}") from None


def _template_printer(name: str, text: str, missing_is_empty: bool) -> Printer:
    compiling = gotemplate.compile_template if name.startswith("go") else jsonpath.compile_template
    try:
        compiled = compiling(text)
    except ValueError as error:
        raise UserError(f"-o {name}: {error}") from None

    def _one(token: TokenView) -> str:
        if name == "jsonpath-as-json" and isinstance(compiled, jsonpath.Template):
            selected = compiled.select(token.to_json(), missing_is_empty=missing_is_empty)
            return "".join(f"{_json(found)}\n" for found in selected)
        return compiled.render(token.to_json(), missing_is_empty=missing_is_empty)

    def _print(tokens: Sequence[TokenView], _now: datetime) -> str:
        try:
            return "".join(map(_one, tokens))
        except ValueError as error:
            raise UserError(f"-o {name}: {error}") from None

    return _print


def _list(tokens: Sequence[TokenView]) -> str:
    return _json({"kind": "List", "apiVersion": "v1", "items": [token.to_json() for token in tokens]})


def _json(value: JsonValue) -> str:
    """Write JSON; what a terminal may obey, such as U+009B, is escaped, since somebody else wrote the description."""
    return "".join(map(_escaped, json.dumps(value, indent=4, ensure_ascii=False)))


def _escaped(one: str) -> str:
    if one == "\n" or (one.isprintable() and one not in _HTML):
        return one
    units = one.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
