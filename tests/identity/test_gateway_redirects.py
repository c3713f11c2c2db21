"""Redirects stay below the path of their service."""

from __future__ import annotations

from urllib.parse import urljoin

import pytest

from nodeattest_identity.addon.gateway.redirects import relative, to_slash

BASE = "http://localhost:8001/apis/g/v1/namespaces/n/services/s/proxy"


@pytest.mark.parametrize("path", ["/", "/a", "/a/", "/a/b", "/a/b/c%20d/"])
@pytest.mark.parametrize(
    "location", ["/", "/login", "/login/?a=/b#c", "/a:b", "http://Add-On:80/login", "https://add-on:80/login"]
)
def test_a_path_of_the_add_on_s_own_ends_below_the_service_s(path: str, location: str) -> None:
    found = relative(location, path=path, host="add-on:80")
    assert not found.startswith("/")
    own = location.partition(":80")[2] if "://" in location else location
    assert urljoin(BASE + path, found) == BASE + own


@pytest.mark.parametrize(
    "location",
    [
        "login",
        "../login",
        "?x=1",
        "//other/login",
        "/\\other",
        "https://other/login",
        "http://add-on:800/x",
        "mailto:a@b",
        "",
    ],
)
def test_everything_else_stays_as_it_is(location: str) -> None:
    assert relative(location, path="/a/b", host="add-on:80") == location


def test_the_way_to_the_last_slash_is_relative() -> None:
    assert urljoin(BASE, to_slash("")) == f"{BASE}/"
    assert urljoin(BASE, to_slash("add-auth=true")) == f"{BASE}/?add-auth=true"
