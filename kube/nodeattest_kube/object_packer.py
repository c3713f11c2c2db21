"""Objects at rest as compressed JSON: what the objects of a collection have in common takes room once.

Most of an object's text is in the others, too: names of fields, conditions, labels. An object of the collection is the
preset dictionary (RFC 1950, FDICT) that the others are compressed with, so a Machine of 1,200 bytes takes 150; as
Python objects it takes 2,600. Nothing is lost: ``unpack`` gives an equal object, of its own.
Promises: ``pack`` is total; what is packed has at most ``_LONGEST`` bytes of text and ``_BRACKETS`` brackets, so that
unpacking is bounded, and nothing is nested too deep to be read; there are at most 16 dictionaries of ``_WINDOW`` bytes.
Leaves to others: which objects. A dictionary outlives the object that it is made of, so no secret may be packed.
"""

from __future__ import annotations

import json
import zlib
from typing import Final

from nodeattest_kube.jsontypes import JsonObject

__all__ = ["ObjectPacker"]

_LONGEST: Final = 16 << 10
_BRACKETS: Final = 256
_LEVEL: Final = 1
_WINDOW_BITS: Final = -13
"""8 KiB, without header and checksum."""
_WINDOW: Final = 1 << -_WINDOW_BITS
_MEMORY_LEVEL: Final = 5
"""24 KiB while an object is compressed; zlib's default takes ten times as much, and twice the time."""
_NEXT: Final = 16
"""There is another dictionary after so many times as many objects: the first ones may be unlike those that follow."""

_encode: Final = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


class ObjectPacker:
    """Packs the objects of one collection."""

    def __init__(self) -> None:
        self._packed = 0
        """How often anything was."""
        self._dictionaries: list[bytes] = []

    def pack(self, obj: JsonObject) -> JsonObject | bytes:
        """Return an object compressed, or as it is where it is too large for this."""
        try:
            text = _encode(obj).encode()
        except RecursionError:
            return obj
        if len(text) > _LONGEST or text.count(b"[") + text.count(b"{") > _BRACKETS:
            return obj
        self._packed += 1
        if self._packed >= _NEXT ** len(self._dictionaries):
            self._dictionaries.append(text[-_WINDOW:])
        number = len(self._dictionaries) - 1
        compressor = zlib.compressobj(
            _LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zdict=self._dictionaries[number]
        )
        return bytes([number]) + compressor.compress(text) + compressor.flush()

    def unpack(self, packed: bytes) -> JsonObject:
        """Return the object that was packed."""
        decompressor = zlib.decompressobj(_WINDOW_BITS, zdict=self._dictionaries[packed[0]])
        return json.loads(decompressor.decompress(packed[1:], _LONGEST))
