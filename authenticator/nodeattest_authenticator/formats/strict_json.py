"""Strict parsing of JSON objects: unknown fields are errors that name the nearest known field."""

from __future__ import annotations

from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import ParseError
from nodeattest_providers.node_interface import JsonObject, JsonValue

_MAX_DEPTH: Final = 64
"""Levels of nesting; API objects have about ten."""
_MAX_VALUES: Final = 50_000
"""Values of one document; a CertificateSigningRequest has some hundreds."""
_DECODER_LIMIT: Final = 1 << 22
"""Bytes of one document."""


class FieldsError(ValueError):
    """A document is invalid. The message names the field and never shows its value."""


def parse_config_object(data: bytes) -> JsonObject:
    """Parse one JSON object. Raises ``FieldsError``."""
    try:
        return strict_json.parse_object(data, max_size=_DECODER_LIMIT, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
    except ParseError as error:
        raise FieldsError(str(error)) from None


class ConfigFields:
    """An object whose fields are taken by name. ``end`` refuses the remaining ones.

    Methods return None for an absent field and raise ``FieldsError`` for an invalid one.
    """

    def __init__(self, value: JsonValue, path: str = "") -> None:
        if not isinstance(value, dict):
            raise FieldsError(f"{path or 'the document'} must be an object")
        self._left = dict(value)
        self._known: list[str] = []
        self._path = path

    def wrong(self, name: str, said: str) -> FieldsError:
        """Return the error for an invalid field."""
        return FieldsError(f"{self._path}{name}{'' if said.startswith(':') else ' '}{said}")

    def text(self, name: str) -> str | None:
        """Take a non-empty string."""
        value = self._take(name)
        if value is None or (isinstance(value, str) and value):
            return value
        raise self.wrong(name, "must be a non-empty string")

    def required(self, name: str) -> str:
        """Take a non-empty string that must be present."""
        value = self.text(name)
        if value is None:
            raise self.wrong(name, "is missing")
        return value

    def octets(self, name: str) -> bytes | None:
        """Take base64."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return decode_base64(text)
        except ParseError:
            raise self.wrong(name, "must be base64") from None

    def required_octets(self, name: str) -> bytes:
        """Take base64 that must be present."""
        octets = self.octets(name)
        if octets is None:
            raise self.wrong(name, "is missing")
        return octets

    def number(self, name: str, *, low: int, high: int) -> int | None:
        """Take an integer within bounds."""
        value = self._take(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high):
            return value
        raise self.wrong(name, f"must be an integer from {low} to {high}")

    def flag(self, name: str) -> bool:
        """Take a boolean. False if it is absent."""
        value = self._take(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.wrong(name, "must be true or false")

    def texts(self, name: str, *, at_least: int = 0) -> tuple[str, ...] | None:
        """Take a list of strings."""
        value = self._take(name)
        if value is None:
            return None
        texts = tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
        if not isinstance(value, list) or not len(value) == len(texts) >= at_least:
            raise self.wrong(name, f"must be a {'non-empty ' if at_least else ''}list of strings")
        return texts

    def object(self, name: str) -> ConfigFields | None:
        """Take an object, to take its fields."""
        value = self._take(name)
        return None if value is None else ConfigFields(value, f"{self._path}{name}.")

    def objects(self, name: str) -> tuple[ConfigFields, ...]:
        """Take a list of objects, to take their fields. Empty if it is absent."""
        value = self._take(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, "must be a list")
        return tuple(ConfigFields(item, f"{self._path}{name}[].") for item in value or ())

    def raw_object(self, name: str) -> JsonObject:
        """Take an object without parsing its fields. Empty if it is absent."""
        value = self._take(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return value

    def end(self) -> None:
        """Raise ``FieldsError`` if fields remain."""
        if not self._left:
            return
        import difflib

        unknown = min(self._left)
        near = difflib.get_close_matches(unknown, self._known, n=1, cutoff=0.0)
        raise FieldsError(f"unknown field {ascii(self._path + unknown)[1:-1]}; the nearest known one is {near[0]}")

    def _take(self, name: str) -> JsonValue:
        self._known.append(name)
        return self._left.pop(name, None)
