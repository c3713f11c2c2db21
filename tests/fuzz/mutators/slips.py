"""Slips of the pen: a letter of a short text changed, added, left out, doubled, all within an alphabet that it uses."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from fuzz.target import Plain

_PLAIN_SHARE: Final = 0.1
_MOST_SLIPS: Final = 3


@dataclass(frozen=True)
class Slips:
    """A mutator of texts whose parsers take few: plain mutation of bytes would leave the first check hardly ever."""

    alphabet: bytes

    def __call__(self, data: bytes, size: int, random: Random, plain: Plain) -> bytes:
        """Make up to three slips."""
        if not data or random.random() < _PLAIN_SHARE:
            return plain(data, size)
        changed = bytearray(data)
        for _ in range(random.randint(1, _MOST_SLIPS)):
            at = random.randrange(len(changed) + 1)
            match random.randrange(6):
                case 0:
                    changed[at:at] = self._letter(random)
                case 1:
                    del changed[at : at + 1]
                case 2:
                    changed[at:at] = changed[at : at + random.randint(1, 4)]
                case _:
                    changed[at : at + 1] = self._letter(random)
        return bytes(changed[:size])

    def _letter(self, random: Random) -> bytes:
        return bytes([random.choice(self.alphabet)])
