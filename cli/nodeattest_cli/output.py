"""JSON objects as YAML, in the spelling of sigs.k8s.io/yaml: sorted keys, double quotes where a text needs any.

Promises: what is text stays text for every reader of YAML 1.1 and 1.2 (a token of digits and an ``e`` is a number to
some), and nothing that is no text is obeyed by a terminal: it stands in double quotes, as an escape.
Source: go-yaml, yaml_private_emitter and resolve.go.
"""

from __future__ import annotations

import re
from typing import Final, cast

import yaml

from nodeattest_kube.jsontypes import JsonObject

__all__ = ["to_yaml"]

_WIDTH: Final = 1 << 30
"""Characters; no line is folded."""
_STR: Final = "tag:yaml.org,2002:str"
_AMBIGUOUS: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|0[xob][0-9a-fA-F_]+|[ynYN]"
)
"""What go-yaml or YAML 1.2 reads as a number or a boolean, and PyYAML does not."""


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes texts which another reader would take for something else."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    lines = value.endswith("\n") and all(line.isprintable() for line in value.split("\n"))
    return yaml.ScalarNode(_STR, value, style="|" if lines else '"' if _is_ambiguous(dumper, value) else None)


def _is_ambiguous(dumper: yaml.SafeDumper, value: str) -> bool:
    resolve = dumper.resolve  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves it open
    tag = cast("str", resolve(yaml.ScalarNode, value, (True, False)))
    return tag != _STR or not value.isprintable() or _AMBIGUOUS.fullmatch(value) is not None


_Dumper.add_representer(str, _text)


def to_yaml(value: JsonObject) -> str:
    """Write one document, without a ``---`` before it."""
    written = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, width=_WIDTH, allow_unicode=True)
    return "".join(one if one.isprintable() or one == "\n" else f"\\U{ord(one):08X}" for one in written)
