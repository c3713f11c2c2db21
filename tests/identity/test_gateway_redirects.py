"""No redirect leaves the gateway, and what stands in its place leads nowhere but below the service's path."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import urljoin, urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_identity.addon.gateway.redirects import own_reference, replace_redirect
from nodeattest_identity.proxy.request import RequestTarget, read_target

ROOT = "/apis/g/v1/namespaces/n/services/https:s:443/proxy"
BASE = f"http://localhost:8001{ROOT}"
OWN = "../" * 9 + ROOT[1:]
"""Reference from ``/a/b`` of the add-on to its root."""
HOST = "add-on:80"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
FOREIGN = [
    "//other/login", "/\\other", "\\\\other", "/\t/other", "https://other/login", "http://add-on:800/x",
    "http://jane@add-on:80/x", "http:/login", "http:login", "https:add-on:80/x", "ftp://add-on:80/x",
    "javascript:alert(1)", "data:text/html,x", "mailto:a@b", "/a\r\nSet-Cookie: x=1", "/a\x00",
]  # fmt: skip


def leads(page: str) -> list[str]:
    """Return where a page leads, whose only links are the refresh and the anchor."""
    found = [html.unescape(each) for each in re.findall('(?:url=|href=")([^"]*)"', page)]
    assert len(found) == 2
    assert "<script" not in page
    return found


def request(method: str = "GET", accept: str = BROWSER) -> web.BaseRequest:
    return make_mocked_request(method, "/apis/g/v1/x/proxy?a=%22%3e", headers={"Host": HOST, "Accept": accept})


def replaced(
    status: int, *locations: str, method: str = "GET", accept: str = BROWSER, path: str = "/a/b"
) -> web.StreamResponse:
    sent = web.StreamResponse(status=status)
    for location in locations:
        sent.headers.add("Location", location)
    sent.headers.add("Set-Cookie", "a=1")
    sent.headers.add("Set-Cookie", "b=2")
    return replace_redirect(sent, request=request(method, accept), target=read_target(path), root=ROOT)


def text(response: web.StreamResponse) -> str:
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    return response.body.decode()


@pytest.mark.parametrize("path", ["/", "/a", "/a/", "/a/b", "/a/b/c%20d/"])
@pytest.mark.parametrize(
    ("location", "own"),
    [
        ("/", "/"), ("/login", "/login"), ("/login/?a=/b#c", "/login/?a=/b#c"), ("/a:b", "/a:b"),
        ("http://Add-On:80/login", "/login"), ("http://add-on/login", "/login"), ("https://add-on:80/login", "/login"),
        ("//add-on:80/login", "/login"), ("http://add-on:80", "/"), ("http://add-on:80?x=1", "/?x=1"),
        ("/a/../../../../../../api/v1/secrets", "/api/v1/secrets"), ("/%2e%2E/%2e./x", "/x"), ("/..", "/"),
        ("/a/b/..", "/a/"), ("/ä b", "/%C3%A4%20b"), ("/\"'<>", "/%22%27%3C%3E"),
    ],
)  # fmt: skip
def test_a_path_of_the_add_on_s_own_ends_below_the_service_s(path: str, location: str, own: str) -> None:
    found = own_reference(location, target=RequestTarget(path, None), root=ROOT, host=HOST)
    assert found is not None
    assert found.startswith("../")
    assert urljoin(BASE + path, found) == BASE + own


@pytest.mark.parametrize("location", FOREIGN)
def test_another_place_is_refused_and_not_named(location: str) -> None:
    assert own_reference(location, target=RequestTarget("/a/b", None), root=ROOT, host=HOST) is None
    answer = replaced(302, location)
    assert answer.status == 404
    told = json.loads(text(answer))
    assert told["reason"] == "NotFound"
    assert "other" not in told["message"].replace("another", "")
    assert "Location" not in answer.headers


@given(
    st.text(st.sampled_from("/.\\%2eE:?#@ab \t\n'\"<>&;=adon-80htp"), max_size=40),
    st.sampled_from(["/", "/a", "/a/b/"]),
)
def test_whatever_an_add_on_says_a_reference_stays_below_its_path(location: str, path: str) -> None:
    found = own_reference(location, target=RequestTarget(path, None), root=ROOT, host=HOST)
    if found is None:
        return
    assert found.startswith("../")
    assert not set(found) & set("<>\"'\\ \t\r\n")
    decoded_dots = found.replace("%2e", ".").replace("%2E", ".")  # as browsers read them
    for each in (found, decoded_dots):
        ends = urlsplit(urljoin(BASE + path, each))
        assert f"{ends.scheme}://{ends.netloc}{ends.path}".startswith(f"{BASE}/")


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_browser_is_led_on_by_a_page(status: int, method: str) -> None:
    answer = replaced(status, "/login?next=%2Fa&x=1", method=method)
    assert answer.status == 200
    assert "Location" not in answer.headers
    assert leads(text(answer)) == [f"{OWN}/login?next=%2Fa&x=1"] * 2
    assert answer.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers.getall("Set-Cookie") == ["a=1", "b=2"]


@pytest.mark.parametrize(
    ("method", "status", "is_led"),
    [
        ("POST", 301, True), ("POST", 302, True), ("POST", 303, True), ("PUT", 303, True), ("POST", 307, False),
        ("POST", 308, False), ("PUT", 302, False), ("DELETE", 301, False),
    ],
)  # fmt: skip
def test_a_form_is_led_on_with_get_and_no_body_is_sent_again(method: str, status: int, is_led: bool) -> None:
    answer = replaced(status, "/done", method=method)
    if is_led:
        assert answer.status == 200
        assert leads(text(answer))[0] == f"{OWN}/done"
    else:
        assert answer.status == 404
        assert f"send the {method} to {OWN}/done, relative to this path" in json.loads(text(answer))["message"]


def test_other_answers_stay_and_their_location_is_relative() -> None:
    assert replaced(200).status == 200
    assert "Location" not in replaced(302, "").headers
    unmodified = replaced(304, "/x")
    assert (unmodified.status, "Location" in unmodified.headers) == (304, False)
    created = replaced(201, "/things/1")
    assert (created.status, created.headers["Location"]) == (201, f"{OWN}/things/1")
    assert replaced(201, "https://other/1").headers["Location"] == "https://other/1"
