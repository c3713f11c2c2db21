"""While one page of a list is worked on, its server makes the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from nodeattest_kube.client import Gone
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_kube.paging import OBJECT, PageLimits, drop_oversized, read_ahead


class Pages:
    """Counts what was asked for."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.asked = 0
        self.ended = False
        self._count, self._error = count, error

    async def __call__(self) -> AsyncGenerator[JsonObject]:
        try:
            for number in range(self._count):
                self.asked += 1
                await asyncio.sleep(0)
                yield {"number": number}
            if self._error is not None:
                raise self._error
        finally:
            self.ended = True


async def test_the_next_page_is_asked_for_before_a_page_is_worked_on_and_none_is_lost() -> None:
    pages, seen = Pages(4), list[JsonObject]()
    async for page in read_ahead(pages()):
        seen.append(page)
        assert pages.asked == min(4, len(seen) + 1)
    assert seen == [{"number": number} for number in range(4)]
    assert pages.ended


async def test_who_stops_reading_leaves_nothing_under_way() -> None:
    pages, before = Pages(4), asyncio.all_tasks()
    async with aclosing(read_ahead(pages())) as ahead:
        assert await anext(ahead) == {"number": 0}
    assert pages.ended
    assert asyncio.all_tasks() == before


async def test_what_ends_a_list_comes_after_the_pages_before_it() -> None:
    ahead = read_ahead(Pages(2, Gone(410, "Expired", "too old"))())
    assert [(await anext(ahead))["number"] for _ in range(2)] == [0, 1]
    with pytest.raises(Gone):
        await anext(ahead)


def test_objects_are_held_against_the_limit_only_in_a_page_that_is_above_it() -> None:
    fat: JsonObject = {"metadata": {"name": "a"}, "text": "x" * OBJECT.bytes}
    thin: JsonObject = {"metadata": {"name": "b"}}
    page: JsonObject = {"items": [fat, thin]}
    assert drop_oversized(page, PageLimits(OBJECT.bytes + 100, 10)) == 1
    assert page["items"] == [thin]
    zeros: list[JsonValue] = [0] * OBJECT.values
    many: JsonObject = {"items": [{"values": zeros}, thin]}
    assert drop_oversized(many, PageLimits(3 * OBJECT.values, OBJECT.values + 10)) == 1
    fits: JsonObject = {"items": [fat, thin]}
    assert drop_oversized(fits, PageLimits(OBJECT.bytes, OBJECT.values)) == 0, "its size says so"
