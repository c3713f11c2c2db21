"""Structured logs: one line a record on a stream, JSON or text.

Promises: a record is one line whatever its values hold, times are RFC 3339 in UTC, and only plain values are written:
bytes, evidence, requests and secrets show as their type's name. Leaves what to say to the callers.

    logger.info("request approved", extra=fields(cluster="ns/name", csr="csr-1"))
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import Final, TextIO, TypeGuard, cast

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
    """Wrap key=value fields for the ``extra`` argument of a logging call."""
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
        """Return the line without its end."""
        return json.dumps(_record(record, self), ensure_ascii=True, separators=(",", ":"), allow_nan=False)


class TextFormatter(logging.Formatter):
    """``<time> <LEVEL> <message> key=value …`` for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end."""
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
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth and _is_collection(value):
        return _collection(value, depth - 1)
    if isinstance(value, Enum):
        return _plain(value.value, depth - 1)
    if value is None or isinstance(value, bool | int):
        return value
    return _to_text(value)


def _to_text(value: object) -> str:
    if isinstance(value, str | PurePath):
        return _text(str(value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseException):
        return _text(f"{type(value).__name__}: {value}")
    return f"<{type(value).__name__}>"


def _is_collection(value: object) -> TypeGuard[Collection[object]]:
    return isinstance(value, Mapping | list | tuple | set | frozenset)


def _collection(value: Collection[object], depth: int) -> _Plain:
    if isinstance(value, Mapping):
        entries = itertools.islice(cast("Mapping[object, object]", value).items(), _MAX_ITEMS)
        return {_to_text(key): _plain(entry, depth) for key, entry in entries}
    ordered = sorted(value, key=str) if isinstance(value, set | frozenset) else value
    return [_plain(item, depth) for item in itertools.islice(ordered, _MAX_ITEMS)]


def _text(value: str) -> str:
    if _PEM in value:
        return "<PEM>"
    return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"


def _word(value: _Plain) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value)
    return json.dumps(value, separators=(",", ":"))
