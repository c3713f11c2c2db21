"""Mutations of JSON values: another type, a missing or foreign key, text changed inside its base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Final, cast

from fuzz.target import Mutator, Plain

_ODD: Final[tuple[object, ...]] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e308),
    *("", "x", "\ud800", "\0", "é", "0" * 300, "=", "AA", "system:nodes", "sha256:" + "0" * 64),
    *([], {}, [None], [""], {"": ""}),
)
"""Values of the wrong type or at a border."""
_PLAIN_SHARE: Final = 0.1
_MOST_CHANGES: Final = 3

_Place = tuple[dict[str, object], str] | tuple[list[object], int]


@dataclass(frozen=True)
class JsonTree:
    """A mutator of one JSON text."""

    inner: Mapping[str, Mutator] = field(default_factory=dict[str, Mutator])
    """For strings that are base64, by their key: how to change what is inside."""
    canonical: bool = False
    """Write canonical JSON with base64url instead."""

    def __call__(self, data: bytes, size: int, random: Random, plain: Plain) -> bytes:
        """Change up to three places."""
        if random.random() < _PLAIN_SHARE:
            return plain(data, size)
        try:
            written = self._changed(cast("object", json.loads(data)), random, plain)
        except (ValueError, RecursionError):  # no JSON, or too deep for json
            return plain(data, size)
        return written if len(written) <= size else plain(data, size)

    def _changed(self, value: object, random: Random, plain: Plain) -> bytes:
        for _ in range(random.randint(1, _MOST_CHANGES)):
            places = list(_places(value))
            if not places:
                raise ValueError("nothing to change")
            self._change(random.choice(places), places, random, plain)
        return self._write(value)

    def _change(self, place: _Place, places: list[_Place], random: Random, plain: Plain) -> None:
        old = _get(place)
        match random.randrange(6):
            case 0:
                _put(place, _odd(random))
            case 1:
                del place[0][place[1]]  # pyright: ignore[reportArgumentType, reportCallIssue] - the pair is of one kind
            case 2:
                _put(place, deepcopy(_get(random.choice(places))))
            case 3:
                _add(place, random, places, plain)
            case _:
                _put(place, self._text(place, old, random, plain) if isinstance(old, str) else _odd(random))

    def _text(self, place: _Place, old: str, random: Random, plain: Plain) -> str:
        mutate = self.inner.get(str(place[1]))
        if mutate is None and not self.canonical:
            return _spoilt(old, plain)
        try:
            inside = base64.urlsafe_b64decode(old + "===") if self.canonical else base64.b64decode(old)
        except ValueError:
            return _spoilt(old, plain)
        most = 2 * len(inside) + 64
        changed = mutate(inside, most, random, plain) if mutate else plain(inside, most)
        if self.canonical:
            return base64.urlsafe_b64encode(changed).decode().rstrip("=")
        return base64.b64encode(changed).decode()

    def _write(self, value: object) -> bytes:
        if not self.canonical:
            return json.dumps(value).encode()
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return text.encode(errors="surrogatepass")


def _odd(random: Random) -> object:
    return deepcopy(random.choice(_ODD))


def _spoilt(text: str, plain: Plain) -> str:
    return plain(text.encode(errors="surrogatepass"), 2 * len(text) + 16).decode(errors="replace")


def _places(value: object) -> Iterator[_Place]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for key, each in (mapping := cast("dict[str, object]", one)).items():
                yield mapping, key
                waiting.append(each)
        elif isinstance(one, list):
            for index, each in enumerate(array := cast("list[object]", one)):
                yield array, index
                waiting.append(each)


def _get(place: _Place) -> object:
    return place[0][place[1]]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType] - as above


def _put(place: _Place, value: object) -> None:
    place[0][place[1]] = value  # pyright: ignore[reportArgumentType, reportCallIssue] - as above


def _add(place: _Place, random: Random, places: list[_Place], plain: Plain) -> None:
    """Add an entry: under a key that stands elsewhere, or one that is spoilt."""
    holder, value = place[0], _odd(random)
    if isinstance(holder, list):
        holder.insert(random.randint(0, len(holder)), value)
        return
    key = str(random.choice(places)[1])
    holder[_spoilt(key, plain) if random.random() < _PLAIN_SHARE else key] = value
