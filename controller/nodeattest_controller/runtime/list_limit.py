"""A bound on what is kept of a list that a cluster's API server sends.

An endless list, or one with endless names, is an error and does not exhaust the controller's memory.
"""

from __future__ import annotations

from typing import Final

from nodeattest_kube.client import TooLarge

__all__ = ["MOST", "ListLimit"]

MOST: Final = 20_000
"""Things that are kept of one list: some times what a large cluster has."""
_CHARACTERS: Final = 400
"""Characters a thing, on the average: names have 253 at most."""


class ListLimit:
    """Counts what is kept in one look."""

    def __init__(self, what: str, most: int = MOST) -> None:
        self._what = what
        self._most = most
        self._things = 0
        self._characters = 0

    def take(self, *words: str) -> None:
        """Count one thing that is kept, with the words that are kept of it; raises TooLarge."""
        self._things += 1
        self._characters += sum(map(len, words))
        if self._things > self._most or self._characters > self._most * _CHARACTERS:
            raise TooLarge(200, f"the list of {self._what} does not end: more than {self._most} are not kept")
