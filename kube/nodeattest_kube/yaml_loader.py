"""YAML of strangers: a SafeLoader whose time and memory are bounded by the length of the text.

Promises: no aliases (merged into each other they grow without bounds), and nesting of at most ``MAX_DEPTH`` levels
(PyYAML's time grows with the square of open brackets: 3 KiB of them took seconds). Everything else is YAML 1.1 as
PyYAML reads it, which raises whatever it likes on odd tags: callers catch ``Exception``.
Leaves to others: the size of the text, repeated keys, what the values mean.
"""

from __future__ import annotations

from typing import Final

import yaml

__all__ = ["MAX_DEPTH", "BoundedLoader"]

MAX_DEPTH: Final = 64
"""Levels; Kubernetes objects have some ten."""


class BoundedLoader(yaml.SafeLoader):
    """Refuses aliases and deep nesting with a ``MarkedYAMLError``."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node that stands there itself."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias, which JSON has not", problem_mark=self.get_mark())
        self._depth += 1
        self._check_depth(self._depth)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803 - PyYAML's name
        """Open a bracket: the scanner runs ahead of the composer, and is what takes the time."""
        self._check_depth(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)  # pyright: ignore[reportUnknownMemberType] - its stub leaves it open

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nesting deeper than {MAX_DEPTH}", problem_mark=self.get_mark())
