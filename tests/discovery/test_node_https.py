"""The node half's one question: to which address, what goes out, what may come back, and how long either may take."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from lying_servers import LOOPBACK, QUIET, Ca, LyingServer, Reply, status

from nodeattest_discovery.node import client, https
from nodeattest_discovery.node.client import (
    Environment,
    cluster_info_path,
    fetch_cluster_info,
    parse_endpoint,
    parse_server,
)
from nodeattest_discovery.tls import client_context, unverified_context
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason, Unavailable

CA = Ca()
HELLO = Reply(body=b"hello")


def ask(address: Endpoint, trust: https.Verified | None = https.UNVERIFIED, limit: float = 10.0) -> https.Response:
    return client.get(address, "/path", trust, Environment(limit=limit).deadline(), headers={})


def refused(address: Endpoint, trust: https.Verified | None = https.UNVERIFIED, limit: float = 10.0) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        ask(address, trust, limit)
    return caught.value


def of(server: LyingServer) -> Endpoint:
    return parse_server(server.url)


@pytest.mark.parametrize("context", [client_context(CA.pem), unverified_context()], ids=["verified", "unverified"])
def test_no_server_can_have_a_node_compute_in_a_group_of_its_choice(context: ssl.SSLContext) -> None:
    offered = {cipher["name"] for cipher in context.get_ciphers()}
    assert {name.partition("-")[0].partition("_")[0] for name in offered} == {"ECDHE", "TLS"}


def test_no_proxy_and_no_authority_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_bytes(CA.pem)
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
    with LyingServer(CA.server(), HELLO) as server:
        assert ask(of(server), https.Verified(ca_pem=CA.pem)).body == b"hello"
        assert refused(of(server), https.Verified(ca_pem=None)).reason == Reason.SERVER_NOT_TRUSTED
        assert len(server.seen) == 1


# Who may answer


CERTIFICATES: dict[str, Callable[[], bytes]] = {
    "another CA's": lambda: Ca().server(),
    "for another address": lambda: CA.server((), ["127.0.0.2"]),
    "for a name only": lambda: CA.server(["localhost"], []),
    "expired": lambda: CA.server(starts=-600, lasts=-300),
    "not valid yet": lambda: CA.server(starts=300),
    "a node's by its group": lambda: CA.certified("a", LOOPBACK, group="system:nodes"),
    "a node's by its name": lambda: CA.certified("system:node:a", LOOPBACK),
    "an address as a DNS name": lambda: CA.certified("x", x509.DNSName("127.0.0.1")),
    "from an intermediate that is not sent": lambda: Ca("middle", above=CA).server(),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_a_certificate_that_does_not_pass_ends_the_connection_before_anything_is_asked(case: str) -> None:
    with LyingServer(CERTIFICATES[case](), HELLO) as server:
        found = refused(of(server), https.Verified(ca_pem=CA.pem))
        assert found.reason == Reason.SERVER_NOT_TRUSTED
        assert server.url in found.detail
        assert server.seen == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
@pytest.mark.parametrize("trust", [https.UNVERIFIED, https.Verified(ca_pem=CA.pem)])
def test_tls_before_1_2_is_not_spoken(trust: https.Verified | None) -> None:
    with LyingServer(CA.server(), HELLO) as server:
        server.context.maximum_version = ssl.TLSVersion.TLSv1_1
        assert refused(of(server), trust).reason == Reason.API_UNAVAILABLE


# What may come back


ANSWERS: dict[str, Reply] = {
    "compressed twice": Reply(body=b"x", headers={"Content-Encoding": "identity, gzip"}),
    "too large": Reply(body=b"x" * (https.LIMIT + 1)),
    "too large, it says": Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx"),
    "cut off": Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx"),
    "cut off, and the end of TLS": Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx", ends=True),
    "cut off in a chunk": Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nx"),
    "no length, and no end of TLS": Reply(raw=b"HTTP/1.1 200 OK\r\n\r\nx"),
    "no HTTP": Reply(raw=b"SSH-2.0-OpenSSH_9.2\r\n"),
    "nothing": Reply(raw=b""),
    "endless headers": Reply(raw=b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000),
    "one endless header": Reply(raw=b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000),
    "endless continuation": Reply(raw=b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000),
    "a length that is none": Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx"),
    "a length with a sign": Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx"),
    "two lengths": Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
    "chunks beside a length": Reply(
        raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n"
    ),
    "another coding": Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "another protocol": Reply(raw=b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    "an interim response nobody asked for": Reply(raw=b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
    "a chunk that is none": Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_that_may_not_come_is_unavailable(case: str) -> None:
    with LyingServer(CA.server(), ANSWERS[case]) as server:
        assert refused(of(server)).reason == Reason.API_UNAVAILABLE


def test_the_largest_answer_comes_whole() -> None:
    with LyingServer(CA.server(), Reply(body=b"x" * https.LIMIT)) as server:
        assert len(ask(of(server)).body) == https.LIMIT


@pytest.mark.parametrize("name", ["a\0b", "." * 300, "a..b", "ä" * 70, "a" * 64], ids=len)
def test_an_impossible_name_is_unavailable_and_no_bug(name: str) -> None:
    with LyingServer(CA.server(), HELLO) as server:
        refused(of(server), https.Verified(ca_pem=CA.pem, server_name=name))
        assert server.seen == []


@pytest.mark.parametrize("path", ["/a b", "/\r\nX: y", "/\xe4"])
def test_nothing_that_would_begin_another_line_is_sent(path: str) -> None:
    with LyingServer(CA.server(), HELLO) as server:
        with pytest.raises(Unavailable):
            client.get(of(server), path, https.UNVERIFIED, Environment().deadline(), headers={})
        with pytest.raises(Unavailable):
            client.get(of(server), "/", https.UNVERIFIED, Environment().deadline(), headers={"A": "b\r\nC: d"})
        assert server.seen == []


@pytest.mark.parametrize("case", ["too large", "endless continuation"])
def test_reading_ends_where_the_limit_is(case: str) -> None:
    with LyingServer(CA.server(), ANSWERS[case]) as server:
        assert f"more than {https.LIMIT}" in refused(of(server)).detail


def test_a_credential_is_never_shown_to_an_unverified_server() -> None:
    with LyingServer(CA.server(), status(403)) as server:
        with pytest.raises(Unavailable):
            fetch_cluster_info(of(server), https.UNVERIFIED, Environment().deadline(), token="a")
        assert server.headers == QUIET


# How long it may take


def test_a_server_that_never_shakes_hands_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # nobody accepts
        address = Endpoint("127.0.0.1", listener.getsockname()[1])
        assert "no whole answer" in refused(address, limit=0.3).detail


def test_a_dripping_answer_does_not_stretch_the_time() -> None:
    # Each byte comes within any time-out of one read; only the whole exchange's end stops it.
    with LyingServer(CA.server(), Reply(body=b"x" * 1000, slowly=0.02)) as server:
        assert "no whole answer" in refused(of(server), limit=2).detail


# Addresses, and the ConfigMap


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
