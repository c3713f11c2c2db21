"""People with kubectl proxy: the dashboard knows who it is, and nobody else's words on that count."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from addon_kit import PATH, USERS, DashboardWorld, built_world
from front_kit import LOOPBACK

pytestmark = pytest.mark.conformance

NOBODY: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def world(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[DashboardWorld]:
    with built_world(tmp_path_factory.mktemp("dashboard"), assets) as built:
        yield built


def live(url: str, headers: Mapping[str, str] = NOBODY) -> list[dict[str, object]]:
    """Read the page, and two events of its live view."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    with closing(connection):
        connection.request("GET", f"{PATH}/?add-auth=true", headers=dict(headers))
        assert b'new EventSource("events" + location.search)' in connection.getresponse().read()
        connection.request("GET", f"{PATH}/events?add-auth=true", headers=dict(headers))
        answer = connection.getresponse()
        lines: list[bytes] = []
        while len(lines) < 2:
            line = answer.readline()
            assert line, lines
            if line.startswith(b"data: "):
                lines.append(line.removeprefix(b"data: "))
    return [json.loads(line) for line in lines]


def test_two_users_each_see_their_own_dashboard_live(world: DashboardWorld) -> None:
    with world.proxied("alice", USERS) as url:
        first, second = live(url)
        assert first["user"] == "alice"
        assert USERS in str(first["groups"])
        assert first["workloads"] == [
            ["kube-system", "coredns", "2/2"],
            ["payments", "ledger", "3/3"],
            ["shop", "cart", "1/2"],
        ]
        assert str(first["seconds"]) != str(second["seconds"])  # it streams through four programs
    with world.proxied("bob", USERS) as url:
        first, _ = live(url)
        assert (first["user"], first["namespaces"]) == ("bob", ["shop"])


def test_who_says_to_be_somebody_else_is_still_himself(world: DashboardWorld) -> None:
    said = {
        "X-Authenticated-User": "alice",
        "X_Authenticated_User": "alice",
        "X-Remote-User": "alice",
        "X-Authenticated-Groups": "payments-team",
    }
    with world.proxied("dave", USERS) as url:
        first, _ = live(url, said)
        assert (first["user"], first["namespaces"]) == ("dave", [])
        assert "payments-team" not in str(first["groups"])


def test_whoever_walks_around_the_gateway_ends_at_the_sidecar(world: DashboardWorld) -> None:
    connection = HTTPConnection(LOOPBACK, world.sidecar, timeout=60)
    with closing(connection):
        connection.request("GET", "/", headers={"X-Authenticated-User": "alice"})
        assert connection.getresponse().status == 401
