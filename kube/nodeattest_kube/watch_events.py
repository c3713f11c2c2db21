"""Watch events out of the bytes of a watch.

Promises: bytes give events or ``ApiError``; an event that is too large is told of, where somebody wants to hear it.
Source: metav1.WatchEvent (apimachinery pkg/apis/meta/v1/watch.go).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from nodeattest_kube.errors import Malformed, TooLarge, error_from_status
from nodeattest_kube.jsontypes import JsonObject, TooManyValues, dig, dig_text, parse_json
from nodeattest_kube.line_buffer import LineBuffer

__all__ = ["WatchEvent", "WatchType", "parse_event", "split_events"]

_ABOVE_STATUS_CODES: Final = 600


class WatchType(StrEnum):
    """What happened to the object of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing but a newer ``metadata.resourceVersion`` to continue from."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch."""

    type: WatchType
    object: JsonObject = field(repr=False)


def split_events(assembler: LineBuffer, chunk: bytes, path: str) -> list[bytes]:
    """Cut a chunk into lines."""
    try:
        return assembler.feed(chunk)
    except ValueError as error:
        raise TooLarge(200, f"GET {path}: {error} in a watch") from None


def parse_event(line: bytes, path: str, max_values: int, skipped: Callable[[], None] | None) -> WatchEvent | None:
    """Parse one watch event (metav1.WatchEvent), None if it is skipped; raise what an ERROR event says."""
    try:
        event = parse_json(line, max_values, duplicates=True)
        kind, subject = dig_text(event, "type"), dig(event, "object")
        if kind != "ERROR" and isinstance(subject, dict):
            return WatchEvent(WatchType(kind), subject)
    except TooManyValues as error:
        if skipped is None:
            raise TooLarge(200, f"GET {path}: {error} in a watch") from None
        skipped()
        return None
    except ValueError as error:
        raise Malformed(200, "MalformedAnswer", f"GET {path}: no watch event: {error}") from None
    status = subject if isinstance(subject, dict) else {}
    code = dig(status, "code")
    if not isinstance(code, int) or not HTTPStatus.BAD_REQUEST <= code < _ABOVE_STATUS_CODES:
        code = 500
    raise error_from_status(code, status, fallback="WatchError")
