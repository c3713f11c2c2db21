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
from gateway_kit import send
from polling import eventually

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


def test_a_group_of_the_certificate_opens_what_the_list_gives_to_it(page: Page, world: DashboardWorld) -> None:
    with world.proxied("carol", USERS, "payments-team") as url:
        page.open(url + PATH + "?add-auth=true")  # without the last slash: the gateway leads there
        page.until("#user", "carol")
        page.until("#allowed", "payments")


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


def test_who_has_no_right_gets_kube_apiserver_s_refusal_and_no_page(page: Page, world: DashboardWorld) -> None:
    with world.proxied("mallory") as url:
        page.open(url + URL)
        page.until_true("document.body?.innerText.includes('forbidden') === true")
        assert page.evaluate("fetch(location).then(answer => answer.status)") == 403
        assert "Dashboard" not in page.text("body")


def test_a_page_has_kubectl_proxy_for_itself_only(page: Page, world: DashboardWorld) -> None:
    """Everything behind one kubectl proxy is one origin: a page could ask for all that it lets through, as the user."""
    user = world.plane.client(world.plane.client_kubeconfig("erin", [USERS]))
    with world.proxied("erin", USERS) as url:
        page.open(url + URL)
        page.until("#user", "erin")
        assert send(user, "GET", "/version").status == 200
        assert page.evaluate("fetch('/version').then(answer => answer.status)") == 403
        assert page.evaluate("fetch('events' + location.search).then(answer => answer.status)") == 200


def test_whoever_walks_around_the_gateway_ends_at_the_sidecar(world: DashboardWorld) -> None:
    connection = HTTPConnection(LOOPBACK, world.sidecar, timeout=60)
    with closing(connection):
        connection.request("GET", "/", headers={"X-Authenticated-User": "alice"})
        assert connection.getresponse().status == 401


def test_the_sidecar_s_log_names_callers_and_quotes_no_token(page: Page, world: DashboardWorld) -> None:
    with world.proxied("frank", USERS) as url:
        page.open(url + URL)
        page.until("#user", "frank")
        page.open("about:blank")
    log = world.directory / "sidecar.log"
    eventually(lambda: "frank" in log.read_text(encoding="utf-8"), "the sidecar tells of a request")
    assert "eyJ" not in log.read_text(encoding="utf-8")
