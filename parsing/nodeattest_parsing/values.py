"""The types of parsed JSON and YAML."""

from __future__ import annotations

__all__ = ["IntegerJsonObject", "IntegerJsonValue", "JsonObject", "JsonValue"]

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]

IntegerJsonValue = str | int | bool | None | list["IntegerJsonValue"] | dict[str, "IntegerJsonValue"]
"""JSON whose numbers are integers."""
IntegerJsonObject = dict[str, IntegerJsonValue]
