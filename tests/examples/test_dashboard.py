"""The example of an add-on: it believes its sidecar and nobody else, and its page runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nodeattest_sandbox.child_process import LOOPBACK, Process, free_ports, listens, wait

EXAMPLE = Path(__file__).parents[2] / "examples" / "dashboard"
USER, GROUP = "X-Authenticated-User", "X-Authenticated-Groups"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory = tmp_path_factory.mktemp("dashboard")
    (port,) = free_ports(1)
    command = [sys.executable, str(EXAMPLE / "dashboard.py"), str(port), str(EXAMPLE / "allowed.json")]
    process = Process("dashboard", command, directory)
    try:
        wait(process, lambda: listens(port))
        yield port
    finally:
        process.stop()


@contextmanager
def asked(port: int, path: str, *headers: tuple[str, str]) -> Generator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    connection.putrequest("GET", path)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    with closing(connection), connection.getresponse() as answer:
        yield answer


def live(port: int, *headers: tuple[str, str]) -> dict[str, object]:
    """Return the first event of the live view."""
    with asked(port, "/events?add-auth=true", *headers) as answer:
        assert answer.status == 200
        return json.loads(answer.readline().removeprefix(b"data: "))


UNKNOWN: tuple[list[tuple[str, str]], ...] = (
    [],
    [(USER, "")],
    [(USER, "alice"), (USER, "bob")],
    [("X-Forwarded-User", "alice")],
)


@pytest.mark.parametrize("headers", UNKNOWN, ids=["none", "empty", "two", "another header"])
@pytest.mark.parametrize("path", ["/", "/events"])
def test_a_request_of_nobody_or_of_two_is_answered_nothing(
    port: int, path: str, headers: list[tuple[str, str]]
) -> None:
    with asked(port, path, *headers) as answer:
        assert answer.status == 401
        assert b"Dashboard" not in answer.read()


def test_each_user_sees_what_the_list_allows(port: int) -> None:
    seen = {user: live(port, (USER, user))["namespaces"] for user in ("alice", "bob", "eve")}
    assert seen == {"alice": ["kube-system", "payments", "shop"], "bob": ["shop"], "eve": []}


def test_a_group_opens_more_and_a_user_of_its_name_nothing(port: int) -> None:
    assert live(port, (USER, "bob"), (GROUP, "payments-team"))["namespaces"] == ["payments", "shop"]
    assert live(port, (USER, "payments-team"))["namespaces"] == []
    assert live(port, (USER, "group:payments-team"))["namespaces"] == []


def test_rows_are_those_of_the_namespaces(port: int) -> None:
    assert live(port, (USER, "bob"))["workloads"] == [["shop", "cart", "1/2"]]


class _Tags(HTMLParser):
    """Collects inline content and everything that a page fetches or leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: dict[str, list[str]] = {}
        self.links: list[str] = []
        self._within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "action"}]
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        if self._within in {"script", "style"}:
            self.inline.setdefault(self._within, []).append(data)

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._within = ""


def test_the_page_loads_nothing_and_its_policy_names_its_own_script_and_style_only(port: int) -> None:
    with asked(port, "/", (USER, "alice")) as answer:
        page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    tags = _Tags()
    tags.feed(page)
    assert tags.links == []
    directives = dict(item.strip().split(" ", 1) for item in policy.split(";"))
    assert directives["default-src"] == directives["base-uri"] == directives["frame-ancestors"] == "'none'"
    for tag in ("script", "style"):
        (text,) = tags.inline[tag]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[f"{tag}-src"] == f"'sha256-{digest}'"
    assert "alice" not in page  # who asks comes as data, never as markup


def test_its_links_are_relative_and_it_keeps_nothing_in_caches(port: int) -> None:
    with asked(port, "/", (USER, "alice")) as answer:
        page = answer.read().decode()
        assert answer.headers["Cache-Control"] == "no-store"
    assert re.findall(r'EventSource\("([^"]*)"', page) == ["events"]
    assert "http" not in page.lower()


def test_the_module_is_short_and_of_the_standard_library() -> None:
    lines = (EXAMPLE / "dashboard.py").read_text(encoding="utf-8").splitlines()
    imported = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert len(lines) <= 150
    assert imported <= sys.stdlib_module_names
