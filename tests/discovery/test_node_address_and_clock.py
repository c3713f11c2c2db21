"""Addresses, the ConfigMap, and time: the small parts of the node half."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_discovery.node import client
from nodeattest_discovery.node.client import cluster_info_path, parse_endpoint, parse_server
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason

NO_ENDPOINTS = [
    "",
    ":6443",
    "127.0.0.1",
    "127.0.0.1:",
    "127.0.0.1:6443/",
    "127.0.0.1:6443\n",
    "127.0.0.1:+1",
    "http://127.0.0.1:6443",
    "HTTPS://127.0.0.1:6443",
    "https://127.0.0.1:6443/path",
    "https://127.0.0.1:6443//",
    "https://https://a:1",
    "https://",
    "::1:6443",
    "https://::1",
    "[::1]",
]


@pytest.mark.parametrize("text", NO_ENDPOINTS)
def test_everything_else_is_no_endpoint(text: str) -> None:
    with pytest.raises(Denied) as caught:
        parse_endpoint(text)
    assert caught.value.reason == Reason.DISCOVERY_ENDPOINT_MALFORMED


@given(st.text(max_size=40))
def test_any_text_is_an_endpoint_or_denied(text: str) -> None:
    try:
        address = parse_endpoint(text)
    except Denied:
        return
    assert parse_endpoint(address.url) == address
    assert parse_server(address.url) == address


def test_a_servers_url_keeps_its_path() -> None:
    address = parse_server("https://Api.Example/k8s/clusters/c-1/")
    assert address == Endpoint("api.example", 443, "/k8s/clusters/c-1")
    assert address.url == "https://api.example:443/k8s/clusters/c-1"
    assert cluster_info_path(address) == (
        "/k8s/clusters/c-1/api/v1/namespaces/kube-public/configmaps/cluster-info?timeout=10s"
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_configmap_or_denied(body: bytes) -> None:
    with pytest.raises(Denied):
        client.parse_config_map(body)
