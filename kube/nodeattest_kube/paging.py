"""How many objects to ask for at once, and how much of an answer to hold.

Promises: a collection of any objects can be listed: a page that is too large is asked for again with half as many
objects, and of one object that is too large alone the name only is read, as a row of a table, and it is passed over.
Leaves to others: the requests (``client``). Source: Kubernetes API concepts, "Retrieving large results sets in chunks"
(the limit may change from page to page) and "Receiving resources as Tables"; etcd --max-request-bytes (1.5 MiB).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nodeattest_kube.jsontypes import JsonObject, JsonValue, TooManyValues, check_value_count

__all__ = [
    "OBJECT",
    "PAGE",
    "REFUSAL",
    "ROW_HEADERS",
    "ROW_QUERY",
    "TENANT",
    "TRUSTED",
    "AnswerLimits",
    "PageLimits",
    "PageSize",
    "drop_oversized",
]


@dataclass(frozen=True, slots=True)
class PageLimits:
    """What one JSON document may hold."""

    bytes: int
    values: int
    """JSON values, counted before they are parsed: ``{}`` takes 3 bytes on the way and 72 in memory."""


OBJECT: Final = PageLimits(bytes=3 << 20, values=150_000)
"""One object: etcd takes 1.5 MiB, which base64 and honest escapes do not double."""
PAGE: Final = PageLimits(bytes=16 << 20, values=500_000)
"""A page of a list, of however many objects."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What the answers of one API server may hold."""

    object: PageLimits
    page: PageLimits
    objects: int
    """How many to ask for in a page."""


TRUSTED: Final = AnswerLimits(OBJECT, PAGE, objects=500)
"""The management cluster's, or a user's own; as many objects as client-go asks for."""
_TENANT: Final = PageLimits(OBJECT.bytes, values=50_000)
TENANT: Final = AnswerLimits(_TENANT, _TENANT, objects=100)
"""A tenant's: a page is parsed in one piece, in 10 to 30 ms. Honest certificate requests, roles and token Secrets have
at most 200 values on average with their ``managedFields``, so a page of them fills less than half."""
REFUSAL: Final = PageLimits(bytes=1 << 18, values=10_000)
"""A ``Status``: 512 characters of it are kept."""
ROW_HEADERS: Final[Mapping[str, str]] = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
ROW_QUERY: Final[Mapping[str, str]] = {"limit": "1", "includeObject": "None"}
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_ROOM: Final = 4
"""A page that fills less than this part of its limit may be twice as large next time."""


def drop_oversized(page: JsonObject, size: PageLimits) -> int:
    """Take out of a page the objects that a read or a watch would refuse; return how many they are.

    ``size`` is the page's: where all of it is no larger than one object may be, each is written out for nothing.
    """
    items = page.get("items")
    if (size.bytes <= OBJECT.bytes and size.values <= OBJECT.values) or not isinstance(items, list):
        return 0
    kept = [item for item in items if _fits(item)]
    page["items"] = kept
    return len(items) - len(kept)


def _fits(item: JsonValue) -> bool:
    try:
        body = _ENCODER.encode(item).encode()
        check_value_count(body, OBJECT.values)
    except (RecursionError, TooManyValues):
        return False
    return len(body) <= OBJECT.bytes


class PageSize:
    """How many objects to ask for at once; kept from list to list, it stays where objects are fat."""

    def __init__(self, most: int = TRUSTED.objects) -> None:
        """``most``: 0 asks for everything at once, for as long as that fits."""
        self._bounds = TRUSTED
        self._most = most
        self._paged = most or TRUSTED.objects
        self.now = most
        """How many to ask for; 0 for all."""

    @property
    def limits(self) -> PageLimits:
        """What the next page may hold."""
        one, page, count = self._bounds.object, self._bounds.page, self.now or self._bounds.objects
        return PageLimits(min(page.bytes, count * one.bytes), min(page.values, count * one.values))

    def bound(self, bounds: AnswerLimits) -> None:
        """Stay within what this server's answers may hold."""
        self._bounds = bounds
        self._most, self._paged, self.now = (min(each, bounds.objects) for each in (self._most, self._paged, self.now))

    def shrink(self) -> bool:
        """Ask for less, since the page was too large; False when it was of one object."""
        if self.now == 1:
            return False
        self._paged = self.now = max((self.now or self._paged) // 2, 1)
        return True

    def fitted(self, size: int) -> None:
        """Ask for more next time if a page of so many bytes left much room."""
        if self.now and size * _ROOM <= self.limits.bytes:
            self._paged = self.now = min(self.now * 2, self._most or self._bounds.objects)

    def all_at_once(self) -> None:
        """Ask for everything next time, since pages expire before the list is read (client-go's pager)."""
        self.now = 0

    def listed(self) -> None:
        """Go back to pages, now that a list was read."""
        self.now = self._paged if self._most else 0
