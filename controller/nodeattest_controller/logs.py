"""Structured logs: one line a record on a stream, JSON or text. Only plain values are written, so that nothing leaks.

Example: ``logger.info("request approved", extra=fields(cluster="ns/name", csr="csr-1"))``.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from pathlib import PurePath
from typing import Final, TextIO, cast

from nodeattest_parsing.values import visible

_KEY: Final = "nodeattest_fields"
"""The attribute of a LogRecord that carries the fields; one, so that no field shadows an attribute of the record."""
_RESERVED: Final = frozenset({"ts", "level", "logger", "msg", "exception", "stack"})
_MAX_TEXT: Final = 1024
"""Characters of one value or message; a name in Kubernetes has at most 571."""
_MAX_ITEMS: Final = 32
_MAX_STACK: Final = 16_384
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:@%+,*-]+", re.ASCII)
"""What text format writes without quotes."""
_PEM: Final = "-----BEGIN "

_Plain = str | int | float | bool | None | list["_Plain"] | dict[str, "_Plain"]


def fields(**values: object) -> dict[str, object]:
    return {_KEY: values}


def configure(*, level: str, log_format: str, stream: TextIO) -> logging.Handler:
    """Send every record of this process to a stream; returns the one handler, for tests to remove."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


def handle_unconfigured(stream: TextIO) -> None:
    """Write warnings in the form of ``configure`` where nothing is configured, for commands that do not serve."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    handler.setLevel(logging.WARNING)
    logging.lastResort = handler


class JsonFormatter(logging.Formatter):
    """One JSON object a line, ASCII only."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_record(record, self), ensure_ascii=True, separators=(",", ":"), allow_nan=False)


class TextFormatter(logging.Formatter):
    """``<time> <LEVEL> <message> key=value …`` for people."""

    def format(self, record: logging.LogRecord) -> str:
        entries = _record(record, self)
        head = f"{entries.pop('ts')} {str(entries.pop('level')).upper():<7} {visible(str(entries.pop('msg')))}"
        return " ".join([head, *(f"{_word(key)}={_word(value)}" for key, value in entries.items())])


def _record(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, _Plain]:
    """Return the entries of a record in the order they are read: when, how bad, what, about what, why."""
    entries: dict[str, _Plain] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": _text(record.getMessage()),
    }
    for name, value in cast("dict[str, object]", getattr(record, _KEY, {})).items():  # made by fields()
        entries[name + "_" if name in _RESERVED else name] = _plain(value)
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        entries["exception"] = _text(f"{type(error).__name__}: {error}")
        entries["stack"] = formatter.formatException(record.exc_info)[-_MAX_STACK:]
    return entries


def _plain(value: object, depth: int = 3) -> _Plain:
    """Return a value that JSON can hold; what is not plain shows as its type's name, so that nothing leaks."""
    plain: _Plain
    match value:
        case Enum():
            plain = _plain(value.value, depth)
        case float():
            plain = value if math.isfinite(value) else str(value)
        case None | bool() | int():
            plain = value
        case str() | PurePath():
            plain = _text(str(value))
        case datetime():
            plain = value.isoformat()
        case BaseException():
            plain = _text(f"{type(value).__name__}: {value}")
        case Mapping() if depth:
            entries = cast("Mapping[object, object]", value).items()
            plain = {str(_plain(key, 0)): _plain(entry, depth - 1) for key, entry in islice(entries, _MAX_ITEMS)}
        case list() | tuple() | set() | frozenset() if depth:
            listed = cast("Collection[object]", value)
            ordered = sorted(listed, key=str) if isinstance(value, set | frozenset) else listed
            plain = [_plain(item, depth - 1) for item in islice(ordered, _MAX_ITEMS)]
        case _:
            plain = f"<{type(value).__name__}>"
    return plain


def _text(value: str) -> str:
    if _PEM in value:
        return "<PEM>"
    return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"


def _word(value: _Plain) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value)
    return json.dumps(value, separators=(",", ":"))
