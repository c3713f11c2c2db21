"""How many objects to ask for at once, and how much of an answer to hold.

A collection of any objects can be listed. A page that is too large is queried again with half as many objects, and the
page after one that fits with twice as many. An object that is too large alone is skipped: it is read as a row of a
table, without the object.
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

    def page_of(self, count: int) -> PageLimits:
        """Return what a page of so many objects may hold; 0: of all."""
        one, page, most = self.object, self.page, count or self.objects
        return PageLimits(min(page.bytes, most * one.bytes), min(page.values, most * one.values))


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
