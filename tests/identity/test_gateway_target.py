"""Which service a path names: exactly the one that kube-apiserver authorised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.target import ROOT, parse

SERVICES = f"{ROOT}/namespaces/kube-system/services"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dashboard", ("http", "dashboard", "")),
        ("dashboard:80", ("http", "dashboard", "80")),
        ("dashboard:web", ("http", "dashboard", "web")),
        (":dashboard:80", ("http", "dashboard", "80")),
        ("https:dashboard:8443", ("https", "dashboard", "8443")),
    ],
)
def test_a_service_is_named_as_in_kube_apiserver_s_own_proxy(name: str, expected: tuple[str, str, str]) -> None:
    target = parse(f"{SERVICES}/{name}/proxy/a%20b/?x=1&add-auth=true&y=%2F")
    assert (target.scheme, target.service, target.port) == expected
    assert (target.name, target.namespace) == (name, "kube-system")
    assert (target.path, target.query) == ("/a%20b/", "x=1&y=%2F")
    assert target.audience == f"kube-system/{expected[1]}"


@pytest.mark.parametrize(
    "place",
    [
        "namespaces//services/b/proxy/",
        "namespaces/../services/b/proxy/",
        "namespaces/a%2Fb/services/b/proxy/",
        "namespaces/a/services//proxy/",
        "namespaces/a/services/../proxy/",
        "namespaces/a/services/B/proxy/",
        "namespaces/a/services/b%2e/proxy/",
        "namespaces/a/services/b:/proxy/",
        "namespaces/a/services/b:0/proxy/",
        "namespaces/a/services/b:080/proxy/",
        "namespaces/a/services/b:65536/proxy/",
        "namespaces/a/services/b:-/proxy/",
        "namespaces/a/services/b:a--b/proxy/",
        "namespaces/a/services/ftp:b:80/proxy/",
        "namespaces/a/services/http:b:80:80/proxy/",
        "namespaces/a/services/127.0.0.1/proxy/",
        "namespaces/a/services/b\u0131/proxy/",
        f"namespaces/{'a' * 64}/services/b/proxy/",
        "namespaces/a/services/b/proxy/?add-auth=false",
        "namespaces/a/services/b/proxy/?add-auth=",
        "namespaces/a/services/b/proxy/?add-auth",
        "namespaces/a/services/b/proxy/?add-auth=true&add-auth=false",
        "namespaces/a/services/b/proxy/?add%2Dauth=false",
        "namespaces/a/services/b/proxy/?ADD-AUTH=0",
    ],
)
def test_names_that_two_readers_could_read_differently_are_refused(place: str) -> None:
    with pytest.raises(StatusError) as refused:
        parse(f"{ROOT}/{place}")
    assert refused.value.status == 400
    assert "127.0.0.1" not in refused.value.message


@pytest.mark.parametrize(
    ("query", "left"),
    [("", ""), ("?add-auth=true", ""), ("?a=b", "a=b"), ("?add-auth=true&a=b&add-auth=true", "a=b"), ("?&", "&")],
)
def test_of_the_query_only_ours_is_taken_out(query: str, left: str) -> None:
    assert parse(f"{SERVICES}/dashboard/proxy/{query}").query == left


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_gives_one_service_or_a_refusal(text: str) -> None:
    for raw in (text, f"{ROOT}/{text}", f"{SERVICES}/{text}", f"{SERVICES}/a/proxy/{text}"):
        try:
            target = parse(raw)
        except StatusError:
            continue
        assert raw.startswith(f"{ROOT}/namespaces/{target.namespace}/services/{target.name}/proxy")
