"""Laws that the parsers of several providers keep alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from fuzz.target import Law, require
from nodeattest_kube.jsontypes import parse_json
from nodeattest_providers import canonical_json
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonObject, JsonValue

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
