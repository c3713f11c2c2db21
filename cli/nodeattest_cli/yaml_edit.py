"""Writing a changed object back into the YAML that it came from, in its author's style.

Promises: what was not changed keeps its quotes, its order and its shape; the result reads as the changed object.
Comments of a changed document are lost: PyYAML does not read them.
"""

from __future__ import annotations

from typing import Final

import yaml

from nodeattest_parsing.values import JsonObject, JsonValue

_WIDTH: Final = 1 << 16
"""Columns: long commands stay on one line."""


def edit(source: str, old: JsonObject, new: JsonObject) -> str:
    """Return the document ``source``, which reads as ``old``, so that it reads as ``new``."""
    root = yaml.compose(source, Loader=yaml.SafeLoader)  # pyright: ignore[reportUnknownMemberType] - its stub leaves it open
    made = _graft(root, old, new) if root is not None else _node(new)
    written = yaml.serialize(made, Dumper=yaml.SafeDumper, width=_WIDTH, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType] - the same
    return str(written)


def _graft(node: yaml.Node, old: JsonValue, new: JsonValue) -> yaml.Node:
    if old == new and type(old) is type(new):
        return node
    if isinstance(node, yaml.MappingNode) and isinstance(old, dict) and isinstance(new, dict):
        return _mapping(node, old, new)
    if isinstance(node, yaml.SequenceNode) and isinstance(old, list) and isinstance(new, list):
        return _sequence(node, old, new)
    return _node(new)


def _mapping(node: yaml.MappingNode, old: JsonObject, new: JsonObject) -> yaml.Node:
    there = {str(key.value): (key, value) for key, value in node.value}
    pairs: list[tuple[yaml.Node, yaml.Node]] = []
    for name, value in new.items():
        if name in there and name in old:
            key, inner = there[name]
            pairs.append((key, _graft(inner, old[name], value)))
        else:
            pairs.append((_node(name), _node(value)))
    empty = not node.value
    return yaml.MappingNode(node.tag, pairs, flow_style=False if empty else node.flow_style)


def _sequence(node: yaml.SequenceNode, old: list[JsonValue], new: list[JsonValue]) -> yaml.Node:
    """Keep the nodes of entries that are still there, wherever they stand now."""
    left = list(zip(old, node.value, strict=True))
    items: list[yaml.Node] = []
    for value in new:
        found = next((index for index, (entry, _) in enumerate(left) if entry == value), None)
        items.append(_node(value) if found is None else left.pop(found)[1])
    return yaml.SequenceNode(node.tag, items, flow_style=False if not node.value else node.flow_style)


def _node(value: JsonValue) -> yaml.Node:
    text = yaml.safe_dump(value, sort_keys=False, width=_WIDTH, allow_unicode=True)
    made = yaml.compose(text, Loader=yaml.SafeLoader)  # pyright: ignore[reportUnknownMemberType] - as above
    if made is None:
        raise ValueError("expected safe_dump to write a document, got none")
    _in_blocks(made)
    return made


def _in_blocks(node: yaml.Node) -> None:
    """Write texts of several lines as people do."""
    if isinstance(node, yaml.ScalarNode):
        if "\n" in str(node.value):
            node.style = "|"
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _in_blocks(item)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _in_blocks(key)
            _in_blocks(value)
