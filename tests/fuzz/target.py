"""What a fuzz target is: a law that any bytes must keep.

A law says whether the parser gave a value. A refusal that the parser declares is no value; every other exception, a
value that is written otherwise than it was read, and time or memory beyond the runner's bounds are findings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from nodeattest_kube.jsontypes import parse_json
from nodeattest_providers import canonical_json
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonObject, JsonValue

Law = Callable[[bytes], bool]
Plain = Callable[[bytes, int], bytes]
"""libFuzzer's own mutation of bytes, to at most so many."""


class BrokenLawError(Exception):
    """A parser gave a value, but not the one that it promises."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser under its law; its seeds are in ``tests/vectors/fuzz/<name>``."""

    name: str
    law: Law
    max_len: int = 4096
    """Bytes of an input."""


def require(kept: bool, promise: str) -> None:
    """Raise ``BrokenLawError`` unless the promise is kept."""
    if not kept:
        raise BrokenLawError(promise)


_LONGEST_MESSAGE: Final = 2048
"""Characters of a refusal of foreign bytes: it goes into conditions, Events and logs."""


def refused(denied: Denied, *allowed: Reason) -> bool:
    """Hold a refusal to a few words, and to the parser's own reasons where they are given."""
    require(len(str(denied)) <= _LONGEST_MESSAGE, "a refusal of a few words")
    require(not allowed or denied.reason in allowed, f"{' or '.join(allowed)} and no other reason")
    return False


def settings_law(
    parse: Callable[[Mapping[str, JsonValue]], object], *, passed_over: frozenset[str] = frozenset()
) -> Law:
    """Make the law of a provider's settings: a value, or ``PolicyInvalid``; keys ``passed_over`` are not tried."""

    def law(data: bytes) -> bool:
        try:
            settings = parse_json(data)
        except ValueError:
            return False
        if passed_over & settings.keys():
            return False
        try:
            parse(settings)  # pyright: ignore[reportArgumentType] - with fractions too: what the type forbids must do no harm
        except Denied as denied:
            return refused(denied, Reason.POLICY_INVALID)
        return True

    return law


T = TypeVar("T")


class Written(Protocol):
    """Evidence that can be written again."""

    def to_json(self) -> JsonObject:
        """Write the object."""
        ...


def bytes_law(parse: Callable[[bytes], T], reason: Reason, promise: str, holds: Callable[[T], bool]) -> Law:
    """Make the law of a document: a value that keeps a promise, or a refusal for one reason."""

    def law(data: bytes) -> bool:
        try:
            value = parse(data)
        except Denied as denied:
            return refused(denied, reason)
        require(holds(value), promise)
        return True

    return law


def text_law(parse: Callable[[str], T], spell: Callable[[T], str], reason: Reason) -> Law:
    """Make the law of a text that has one spelling."""

    def law(data: bytes) -> bool:
        text = data.decode(errors="surrogateescape")
        try:
            value = parse(text)
        except Denied as denied:
            return refused(denied, reason)
        require(spell(value) == text, "one spelling")
        return True

    return law


def evidence_law(parse: Callable[[JsonObject], Written]) -> Law:
    """Make the law of evidence, which has one spelling."""

    def law(data: bytes) -> bool:
        try:
            value = parse(canonical_json.loads(data))
        except Denied as denied:
            return refused(denied, Reason.EVIDENCE_MALFORMED)
        require(canonical_json.dumps(value.to_json()) == data, "one spelling of evidence")
        return True

    return law


@contextmanager
def as_file(data: bytes) -> Generator[Path]:
    """Hold bytes in a file for a while."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
