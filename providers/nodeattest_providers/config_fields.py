"""Settings of a policy, the controller or a node, read by a closed schema: every key known, every value of its type.

Also the names of pins, ``<provider>.<kind>`` such as ``tpm.ek``. The ledger records what a machine proved itself by. A
pin is compared by its kind, so a pin of one provider binds the next provider too. A provider's own pin comes first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonValue

if TYPE_CHECKING:
    from pathlib import Path

_MAX_DEPTH = 16
"""Levels of a setting on a command line; providers' have two."""
_SHOWN: Final = 80


def invalid(where: str, expected: str, got: str) -> Denied:
    return Denied(Reason.POLICY_INVALID, expected=f"{where}: {expected}", got=got, remedy=f"correct {where}")


def check_keys(
    values: Mapping[str, JsonValue], where: str, known: Collection[str], required: Collection[str] = ()
) -> None:
    for key in values:
        if key not in known:
            raise invalid(where, f"one of {', '.join(known)}", f"{key[:_SHOWN]!r}; {nearest(key, known)}")
    for key in required:
        if key not in values:
            raise invalid(where, f"the key {key}", "none")


def nearest(name: str, known: Collection[str]) -> str:
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
    if not isinstance(value, dict):
        raise invalid(where, "an object", type(value).__name__)
    return value


def items(value: JsonValue, where: str) -> list[JsonValue]:
    if not isinstance(value, list):
        raise invalid(where, "an array", type(value).__name__)
    return value


def text(value: JsonValue, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(where, "a string", "an empty string" if value == "" else type(value).__name__)
    return value


def string_set(value: JsonValue, where: str, spelling: re.Pattern[str], expected: str) -> frozenset[str]:
    found: set[str] = set()
    for item in items(value, where):
        if not isinstance(item, str) or not spelling.fullmatch(item):
            raise invalid(where, expected, repr(item)[:_SHOWN])
        found.add(item)
    return frozenset(found)


def boolean(value: JsonValue, where: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(where, "true or false", type(value).__name__)
    return value


class Section:
    """An object of settings whose keys are all known. A message names a value by its path, such as ``spec.aws.tags``.

    The methods read the value at a key; a missing one gives the default, or an empty value of the type.
    """

    __slots__ = ("_values", "where")

    def __init__(
        self,
        values: JsonValue | Mapping[str, JsonValue],
        where: str,
        known: Collection[str],
        required: Collection[str] = (),
    ) -> None:
        if not isinstance(values, Mapping):
            raise invalid(where, "an object", type(values).__name__)
        check_keys(values, where, known, required)
        self._values = values
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __bool__(self) -> bool:
        return bool(self._values)

    def at(self, key: str) -> str:
        return f"{self.where}.{key}"

    def text(self, key: str, default: str = "", *, may_be_empty: bool = False) -> str:
        value = self._values.get(key, default)
        is_absent = key not in self._values or (may_be_empty and value == "")
        return default if is_absent else text(value, self.at(key))

    def spelled(self, key: str, spelling: re.Pattern[str], expected: str) -> str:
        value = self.text(key)
        if not spelling.fullmatch(value):
            raise invalid(self.at(key), expected, repr(value[:_SHOWN]))
        return value

    def choice(self, key: str, known: Collection[str], default: str) -> str:
        value = self.text(key, default)
        if value not in known:
            raise invalid(self.at(key), " or ".join(known), repr(value[:_SHOWN]))
        return value

    def boolean(self, key: str) -> bool:
        return boolean(self._values.get(key, False), self.at(key))

    def strings(self, key: str, spelling: re.Pattern[str], expected: str) -> frozenset[str]:
        return string_set(self._values.get(key, []), self.at(key), spelling, expected)

    def items(self, key: str) -> list[JsonValue]:
        return items(self._values.get(key, []), self.at(key))

    def mapping(self, key: str) -> dict[str, JsonValue]:
        return mapping(self._values.get(key, {}), self.at(key))

    def section(self, key: str, known: Collection[str], required: Collection[str] = ()) -> Section:
        return Section(self._values.get(key, {}), self.at(key), known, required)

    def sections(self, key: str, known: Collection[str], required: Collection[str] = ()) -> list[Section]:
        named = ((value, f"{self.at(key)}[{number}]") for number, value in enumerate(self.items(key)))
        return [Section(value, where, known, required) for value, where in named]

    def tags(self, key: str, *, longest_name: int, longest_value: int = 256) -> dict[str, str]:
        where = self.at(key)
        found: dict[str, str] = {}
        for name, wanted in self.mapping(key).items():
            if not 1 <= len(name) <= longest_name:
                raise invalid(where, f"names of 1 to {longest_name} characters", f"{len(name)} characters")
            if not isinstance(wanted, str) or len(wanted) > longest_value:
                raise invalid(f"{where}[{name}]", f"a string of at most {longest_value} characters", "another value")
            found[name] = wanted
        return found

    def path(self, key: str) -> Path | None:
        from pathlib import Path  # takes 5 ms of a node's start, and the node has no such settings

        if key not in self._values:
            return None
        path = Path(self.text(key))
        if not path.is_absolute():
            raise invalid(self.at(key), "an absolute path", repr(str(path)[:_SHOWN]))
        return path

    def origin(self, key: str, schemes: tuple[str, ...] = ("https",)) -> str | None:
        """Read scheme, host and port of a URL (RFC 6454 §4).

        Anything more in the URL would change what is asked, and a proxy's may hold a password, so no message shows it.
        """
        from urllib.parse import urlsplit

        from nodeattest_parsing.endpoint import port_of

        if key not in self._values:
            return None
        url = self.text(key)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, port_of(parts)
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        rest = (parts.path.strip("/"), parts.query, parts.fragment)
        if parts.scheme not in schemes or not host or "@" in parts.netloc or any(rest) or not url.isascii():
            expected = " or ".join(f"{scheme}://host, {scheme}://host:port" for scheme in schemes)
            raise invalid(self.at(key), expected, "another URL")
        name = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{name}" + ("" if port is None else f":{port}")


COMPOSITE: Final = "composite"
"""The provider that is made of others: its parts pin, each under its own name."""


def name_pin(provider: str, kind: str) -> str:
    return f"{provider}.{kind}"


def split_pin(pin: str) -> tuple[str, str]:
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
