"""Memory shared out among a collection's objects.

Promises: what is kept never weighs more than the total; an object gets no more than a small part of what is left, so
that however many fat ones come first, there is room for slim ones. Leaves to others: what becomes of the refused.
Source: dynamic thresholds for shared buffers (Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import sys
from typing import Final

from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["Ration", "weigh"]

_PART: Final = 64
"""An object gets at most this part of what is left."""


class Ration:
    """Who has how many bytes."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._shares: dict[str, int] = {}

    @property
    def left(self) -> int:
        """Bytes that nobody has."""
        return self._left

    def of(self, key: str) -> int:
        """Bytes that a key has."""
        return self._shares.get(key, 0)

    def take(self, key: str, weight: int) -> bool:
        """Give a key so many bytes in place of those it has; False, and none, where that is more than it may get."""
        self.give_back(key)
        if weight * _PART > self._left:
            return False
        self._left -= weight
        self._shares[key] = weight
        return True

    def give_back(self, key: str) -> None:
        """Take a key's bytes back."""
        self._left += self._shares.pop(key, 0)


def weigh(key: str, version: tuple[str, str], item: JsonObject) -> int:
    """Bytes that an object takes in memory with its key and version; what it shares with others counts as its own."""
    weight = sum(map(sys.getsizeof, (key, *version)))
    waiting: list[JsonValue] = [item]
    while waiting:
        value = waiting.pop()
        weight += sys.getsizeof(value)
        if isinstance(value, dict):
            weight += sum(map(sys.getsizeof, value))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return weight
