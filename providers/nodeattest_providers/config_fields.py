"""Closed settings, of a policy, the controller or a node: every key known, every value of its type, or ``Denied``.

Also the names of pins, ``<provider>.<kind>`` such as ``tpm.ek``: what a machine proved itself by, as the ledger has it.
A pin is compared by its kind, whichever provider asks, alone or as a part of ``composite``: what a machine was pinned
by under one policy holds under the next. A provider's own pin comes first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonValue

_MAX_DEPTH = 16
"""Levels of a setting on a command line; providers' have two."""
_SHOWN: Final = 80
"""Characters of a name or value that a message repeats."""


def invalid(where: str, expected: str, got: str) -> Denied:
    """Make the refusal of a setting."""
    return Denied(Reason.POLICY_INVALID, expected=f"{where}: {expected}", got=got, remedy=f"correct {where}")


def check_keys(
    values: Mapping[str, JsonValue], where: str, known: Collection[str], required: Collection[str] = ()
) -> None:
    """Refuse unknown and missing keys."""
    for key in values:
        if key not in known:
            raise invalid(where, f"one of {', '.join(known)}", f"{key[:_SHOWN]!r}; {nearest(key, known)}")
    for key in required:
        if key not in values:
            raise invalid(where, f"the key {key}", "none")


def nearest(name: str, known: Collection[str]) -> str:
    """Say which known name was meant, or which are known."""
    import difflib

    near = difflib.get_close_matches(name[:_SHOWN], sorted(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"


def parse_setting(word: str) -> tuple[str, JsonValue] | None:
    """Read ``name=value`` of a command line: JSON where it is JSON, else the text; None where it is no such word."""
    from nodeattest_parsing import strict_json
    from nodeattest_parsing.values import ParseError

    name, equals, value = word.partition("=")
    if not name or not equals:
        return None
    try:
        return name, strict_json.parse(value, max_size=None, max_depth=_MAX_DEPTH)
    except ParseError:
        return name, value


def mapping(value: JsonValue, where: str) -> dict[str, JsonValue]:
    """Read an object."""
    if not isinstance(value, dict):
        raise invalid(where, "an object", type(value).__name__)
    return value


def items(value: JsonValue, where: str) -> list[JsonValue]:
    """Read an array."""
    if not isinstance(value, list):
        raise invalid(where, "an array", type(value).__name__)
    return value


def text(value: JsonValue, where: str) -> str:
    """Read a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise invalid(where, "a string", "an empty string" if value == "" else type(value).__name__)
    return value


def string_set(value: JsonValue, where: str, spelling: re.Pattern[str], expected: str) -> frozenset[str]:
    """Read an array of strings, each of which is spelt so."""
    found: set[str] = set()
    for item in items(value, where):
        if not isinstance(item, str) or not spelling.fullmatch(item):
            raise invalid(where, expected, repr(item)[:_SHOWN])
        found.add(item)
    return frozenset(found)


def tags(value: JsonValue, where: str, *, longest_name: int, longest_value: int = 256) -> dict[str, str]:
    """Read an object of names and values of bounded length."""
    found: dict[str, str] = {}
    for name, wanted in mapping(value, where).items():
        if not 1 <= len(name) <= longest_name:
            raise invalid(where, f"names of 1 to {longest_name} characters", f"{len(name)} characters")
        if not isinstance(wanted, str) or len(wanted) > longest_value:
            raise invalid(f"{where}[{name}]", f"a string of at most {longest_value} characters", "another value")
        found[name] = wanted
    return found


def boolean(value: JsonValue, where: str) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise invalid(where, "true or false", type(value).__name__)
    return value


COMPOSITE: Final = "composite"
"""The provider that is made of others: its parts pin, each under its own name."""


def name_pin(provider: str, kind: str) -> str:
    """Name a pin."""
    return f"{provider}.{kind}"


def split_pin(pin: str) -> tuple[str, str]:
    """Split a pin's name into provider and kind."""
    provider, _, kind = pin.partition(".")
    return provider, kind


def pins_for(recorded: Mapping[str, str], provider: str) -> dict[str, str]:
    """Return by kind what binds a provider: its own pins, and those of others where it has none of the kind."""
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for pin in sorted(recorded, reverse=True):  # the same one each time, were others to differ
        by, kind = split_pin(pin)
        (own if by == provider else others)[kind] = recorded[pin]
    return {**others, **own}
