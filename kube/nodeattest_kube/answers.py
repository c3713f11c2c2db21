"""Parse API servers' answers: JSON objects, lines and events of watches, and how much one answer may hold.

A workload cluster's API server may be hostile: any bytes give a value or an error, in linear time.
Source: RFC 8259; api-conventions.md of Kubernetes; metav1.WatchEvent (apimachinery pkg/apis/meta/v1/watch.go);
Kubernetes API concepts, "Receiving resources as Tables"; etcd --max-request-bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from nodeattest_kube.errors import Malformed, TooLarge, error_from_status
from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import dig, text
from nodeattest_parsing.values import JsonObject

_ABOVE_STATUS_CODES: Final = 600
_LONGEST_VERSION: Final = 20
"""Digits of an unsigned number of 64 bits."""
_ENDLESS: Final = 8
"""A line of more than so many times the limit is not waited for."""


class TooManyValues(ValueError):
    """A document that may hold more values than its reader wants to have in memory."""


def parse_json(body: bytes, max_values: int | None = None, *, duplicates: bool = False) -> JsonObject:
    """Parse one JSON object; every other input is a ``ValueError`` that quotes none of it.

    ``max_values`` bounds time and memory: it is held against the brackets and commas outside texts.
    ``duplicates`` lets the last of duplicate keys win, as Go does: for an API server's own answers only.
    """
    if max_values is not None and strict_json.bound_values(body, max_values) is None:
        raise TooManyValues(f"a JSON document of more than {max_values} values")
    return strict_json.parse_object(body, max_size=None, floats=True, duplicates=duplicates)


def version_of(item: JsonObject) -> tuple[str, str]:
    """Return an object's UID and its opaque resourceVersion, which tell this state of it from every other."""
    return text(item, "metadata", "uid"), text(item, "metadata", "resourceVersion")


def is_before(version: str, other: str) -> bool:
    """Return whether a resourceVersion is an earlier one, if both are numbers (KEP-5504)."""
    if not all(each.isascii() and each.isdecimal() and len(each) <= _LONGEST_VERSION for each in (version, other)):
        return False
    return int(version) < int(other)


@dataclass(frozen=True, slots=True)
class PageLimits:
    """What one JSON document may hold."""

    bytes: int
    values: int
    """JSON values, counted before they are parsed: ``{}`` takes 3 bytes on the way and 72 in memory."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What the answers of one API server may hold."""

    object: PageLimits
    page: PageLimits
    objects: int
    """How many to ask for in a page."""

    def page_of(self, count: int) -> PageLimits:
        """Return what a page of so many objects may hold; 0: of all."""
        one, page, most = self.object, self.page, count or self.objects
        return PageLimits(min(page.bytes, most * one.bytes), min(page.values, most * one.values))


OBJECT: Final = PageLimits(bytes=3 << 20, values=150_000)
"""One object: etcd takes 1.5 MiB, which base64 and honest escapes do not double."""
PAGE: Final = PageLimits(bytes=16 << 20, values=500_000)
"""A page of a list, of however many objects."""
TRUSTED: Final = AnswerLimits(OBJECT, PAGE, objects=500)
"""The management cluster's, or a user's own; as many objects as client-go asks for."""
_TENANT: Final = PageLimits(OBJECT.bytes, values=50_000)
TENANT: Final = AnswerLimits(_TENANT, _TENANT, objects=100)
"""A tenant's: a page is parsed in one piece, in 10 to 30 ms. Honest certificate requests, roles and token Secrets have
at most 200 values on average with their ``managedFields``, so a page of them fills less than half."""
REFUSAL: Final = PageLimits(bytes=1 << 18, values=10_000)
"""A ``Status``: 512 characters of it are kept."""


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


def parse_event(line: bytes, path: str, max_values: int, skipped: Callable[[], None] | None) -> WatchEvent | None:
    """Parse one watch event, None if it is skipped; raise what an ERROR event says."""
    try:
        event = parse_json(line, max_values, duplicates=True)
        kind, subject = text(event, "type"), dig(event, "object")
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


class LineBuffer:
    """Collects chunks until a newline comes; joins each line once."""

    def __init__(self, limit: int, skipped: Callable[[], None] | None = None, where: str = "") -> None:
        """``skipped`` is called for a line that is too long, instead of raising ``TooLarge``."""
        self._limit, self._where, self._skipped = limit, where, skipped
        self._pending: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without newlines and without blank lines."""
        head, *rest = chunk.split(b"\n")
        self._hold(head)
        lines: list[bytes] = []
        for piece in rest:
            if self._size <= self._limit:
                lines.append(b"".join(self._pending))
            elif self._skipped is not None:
                self._skipped()
            self._pending, self._size = [], 0
            self._hold(piece)
        return [line for line in lines if line.strip()]

    @property
    def incomplete(self) -> bool:
        """Whether the stream, if it ended now, would have ended within a line."""
        return self._size > 0

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._pending = []
            if self._skipped is None or self._size > self._limit * _ENDLESS:
                raise TooLarge(200, f"{self._where}: a line of more than {self._limit} bytes in a watch")
        elif piece:
            self._pending.append(piece)
