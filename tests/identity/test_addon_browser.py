"""A person with a browser and kubectl proxy: the dashboard knows who it is, and nobody else's words on that count."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from addon_kit import PATH, USERS, DashboardWorld, built_world
from chromium_kit import Page, browsing
from front_kit import LOOPBACK

pytestmark = pytest.mark.conformance

URL = f"{PATH}/?add-auth=true#/workload"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Generator[Page]:
    with browsing(tmp_path_factory.mktemp("browser") / "chromium") as opened:
        yield opened


@pytest.fixture(scope="module")
def world(page: Page, assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[DashboardWorld]:
    del page  # without a browser there is nothing to build
    with built_world(tmp_path_factory.mktemp("dashboard"), assets) as built:
        yield built


def rows(page: Page) -> str:
    return page.text("#workloads").replace("\t", " ").replace("\n", "; ")


def test_two_users_each_see_their_own_dashboard_live(page: Page, world: DashboardWorld) -> None:
    with world.proxied("alice", USERS) as url:
        page.open(url + URL)
        page.until("#user", "alice")
        assert page.text("#view") == "/workload"
        assert USERS in page.text("#groups")
        assert rows(page) == "kube-system coredns 2/2; payments ledger 3/3; shop cart 1/2"
        page.until_true("Number(document.querySelector('#seconds').innerText) > 1")  # it streams through four programs
        assert page.screenshot().startswith(b"\x89PNG")
    with world.proxied("bob", USERS) as url:
        page.open(url + URL)
        page.until("#user", "bob")
        assert page.text("#allowed") == "shop"
        assert rows(page) == "shop cart 1/2"
    assert [told for told in page.told if "Content Security Policy" in told] == []


def test_a_browser_that_says_it_is_somebody_else_is_still_itself(page: Page, world: DashboardWorld) -> None:
    page.send_always({
        "X-Authenticated-User": "alice",
        "X_Authenticated_User": "alice",
        "X-Remote-User": "alice",
        "X-Authenticated-Groups": "payments-team",
    })  # fmt: skip
    try:
        with world.proxied("dave", USERS) as url:
            page.open(url + URL)
            page.until("#user", "dave")
            assert page.text("#allowed") == "no namespace"
            assert "payments-team" not in page.text("#groups")
    finally:
        page.send_always({})


def test_whoever_walks_around_the_gateway_ends_at_the_sidecar(world: DashboardWorld) -> None:
    connection = HTTPConnection(LOOPBACK, world.sidecar, timeout=60)
    with closing(connection):
        connection.request("GET", "/", headers={"X-Authenticated-User": "alice"})
        assert connection.getresponse().status == 401
