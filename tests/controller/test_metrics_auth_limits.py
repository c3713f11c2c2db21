"""Reviews that strangers cause are few, and take none from a scraper that was allowed."""

from __future__ import annotations

import itertools
from http import HTTPStatus
from typing import Final

import pytest
from fake_api import FakeApi

from nodeattest_controller.metrics_auth import ScrapeAuthorizer, ScrapeRefusedError
from nodeattest_kube.errors import Unreachable
from nodeattest_kube.jsontypes import JsonObject, dig

TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SCRAPER, STRANGER = "10.0.0.1", "10.0.0.2"
OK, REFUSED, LIMITED = HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS


class World:
    """An authorizer, its clock, and an API server that knows the tokens ``good``."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.good = {"prometheus"}
        self.reviews = 0
        self.api = FakeApi()
        self.api.answers = {
            TOKEN_REVIEWS: self._review,
            ACCESS_REVIEWS: lambda body: {**body, "status": {"allowed": True}},
        }
        self._authorizer = ScrapeAuthorizer(self.api, audiences=(), secret=bytes(32), clock=lambda: self.now)
        self._made_up = itertools.count()

    def _review(self, body: JsonObject) -> JsonObject:
        self.reviews += 1
        known = dig(body, "spec", "token") in self.good
        return {**body, "status": {"authenticated": known, "user": {"username": "u"}}}

    async def ask(self, token: str, peer: str = SCRAPER) -> HTTPStatus:
        """Ask with a token."""
        try:
            await self._authorizer.check(((b"Authorization", f"Bearer {token}".encode()),), peer)
        except ScrapeRefusedError as refused:
            return refused.status
        return OK

    async def flood(self, peer: str = STRANGER, count: int = 30) -> list[HTTPStatus]:
        """Ask with as many tokens that nobody made."""
        return [await self.ask(f"made-up-{next(self._made_up)}", peer) for _ in range(count)]

    async def flood_from_everywhere(self) -> None:
        """Use up what all addresses together may cause."""
        for number in range(20):
            await self.flood(f"10.9.0.{number}", 3)


async def test_new_tokens_from_one_address_cause_ten_reviews_and_one_a_second() -> None:
    world = World()
    assert await world.flood() == [REFUSED] * 10 + [LIMITED] * 20
    assert world.reviews == 10
    for _ in range(60):
        world.now += 1.0
        await world.flood(count=5)
    assert world.reviews == 70


async def test_new_tokens_from_many_addresses_cause_twenty_reviews_and_four_a_second() -> None:
    world = World()
    await world.flood_from_everywhere()
    assert world.reviews == 20
    for _ in range(10):
        world.now += 1.0
        await world.flood_from_everywhere()
    assert world.reviews == 60


async def test_one_address_does_not_use_up_the_limit_of_all() -> None:
    world = World()
    await world.flood(count=1000)
    assert await world.ask("prometheus") is OK


@pytest.mark.parametrize("address", [SCRAPER, STRANGER])
async def test_a_cached_decision_and_a_token_of_the_last_hour_are_not_limited_by_strangers(address: str) -> None:
    world = World()
    assert await world.ask("prometheus", address) is OK
    for _ in range(60):
        await world.flood(STRANGER)
        await world.flood_from_everywhere()
        before = world.reviews
        assert await world.ask("prometheus", address) is OK
        world.now += 60.0
        await world.flood(STRANGER)
        await world.flood_from_everywhere()
        assert await world.ask("prometheus", address) is OK
        assert await world.ask("prometheus", address) is OK
        assert world.reviews > before
    world.now += 3600.0
    await world.flood_from_everywhere()
    await world.flood(address)
    assert await world.ask("prometheus", address) is LIMITED


async def test_a_scrapers_new_token_passes_while_strangers_use_up_the_limit_of_all() -> None:
    world = World()
    assert await world.ask("prometheus") is OK
    world.now += 2880.0
    world.good.add("renewed")
    await world.flood_from_everywhere()
    assert await world.ask("renewed", "10.0.0.3") is LIMITED
    assert await world.ask("renewed", SCRAPER) is OK


async def test_a_token_that_is_refused_is_no_longer_known() -> None:
    world = World()
    assert await world.ask("prometheus") is OK
    world.good.clear()
    world.now += 60.0
    assert await world.ask("prometheus") is REFUSED
    world.now += 3.0
    await world.flood(SCRAPER)
    assert await world.ask("prometheus") is LIMITED


async def test_strangers_cannot_make_a_known_token_forgotten_and_its_own_reviews_are_limited() -> None:
    world = World()
    assert await world.ask("prometheus") is OK
    for number in range(300):
        await world.flood(f"10.1.{number}.1", 1)
        world.now += 1.0

    async def fail(_method: str, _path: str) -> None:
        raise Unreachable("no route")

    world.api.on_call = fail
    await world.flood(SCRAPER)
    away = HTTPStatus.SERVICE_UNAVAILABLE
    assert [await world.ask("prometheus") for _ in range(8)] == [away] * 5 + [LIMITED] * 3
