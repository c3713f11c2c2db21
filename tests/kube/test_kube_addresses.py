"""Where a tenant's kubeconfig may lead: checked as the address is connected to, however it is written or found."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any, Final

import pytest
from polling import until
from scripted import b64, kubeconfig, server_tls, thing

from nodeattest_kube.addresses import (
    LOOKUPS_PER_TENANT,
    TENANT_ADDRESSES,
    AddressInfos,
    AddressRules,
    Lookups,
    environment_proxy,
    parse_network,
    parse_pod_ips,
)
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError, Unreachable
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_sandbox.pki import ClusterPki

LOOPBACK: Final = AddressRules((parse_network("127.0.0.0/8"), parse_network("::1")))
REFUSED: Final = (
    *("0.0.0.0", "127.0.0.1", "127.255.0.9", "169.254.169.254", "169.254.170.2", "224.0.0.1", "255.255.255.255"),
    *("168.63.129.16", "100.100.100.200", "::", "::1", "::7f00:1", "fe80::1", "fe80::1%eth0", "ff02::1"),
    *("fd00:ec2::254", "fd20:ce::254", "2001:0:1::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::"),
    *("fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:100::100:200", "192.0.0.192"),
    *("fec0::1", "feff::1", "::ffff:0:7f00:1", "::ffff:0:a00:1", "64:ff9b::a83f:8110", "64:ff9b::6464:64c8"),
    *("64:ff9b:1:0:a9:fea9:fe00:0", "2002:a9fe:a9fe::1", "2002:7f00:1::", "localhost", ""),
)
GRANTED: Final = (
    *("10.0.0.1", "172.18.0.3", "192.168.1.1", "100.64.0.1", "203.0.113.7", "2001:db8::1", "fd00::1", "fd20:ce::1"),
    *("::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1"),
)


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_of_the_machine_its_link_or_its_cloud_is_refused(address: str) -> None:
    assert TENANT_ADDRESSES.refuses(address)


@pytest.mark.parametrize("address", GRANTED)
def test_an_address_at_which_a_cluster_may_be_is_not(address: str) -> None:
    assert not TENANT_ADDRESSES.refuses(address)


def test_an_address_of_the_pod_is_refused_in_every_form_unless_it_is_allowed() -> None:
    """What listens on all addresses answers there as it does on loopback."""
    own = parse_pod_ips("10.1.2.3,2001:db8::5")
    rules = AddressRules(own=own)
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "2002:a01:203::1"):
        assert rules.refuses(address)
        assert not AddressRules((parse_network("10.0.0.0/8"),), own).refuses(address)
    for address in ("2001:db8::5", "2001:db8::5%eth0"):
        assert rules.refuses(address)
    for address in ("10.1.2.4", "2001:db8::6"):
        assert not rules.refuses(address)


def test_pod_ips_are_addresses_separated_by_commas() -> None:
    assert parse_pod_ips("10.1.2.3, fd00::1") == {ip_address("10.1.2.3"), ip_address("fd00::1")}
    for wrong in ("10.1.2.0/24", "host", "10.1.2.3;10.1.2.4"):
        with pytest.raises(ValueError, match="does not appear"):
            parse_pod_ips(wrong)


def test_what_the_operator_allows_is_allowed_in_every_form_and_nothing_else() -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert not LOOPBACK.refuses(address)
    for address in ("169.254.169.254", "::ffff:169.254.169.254", "::2"):
        assert LOOPBACK.refuses(address)


class Resolver:
    """Answers with two addresses of loopback; names under ``hangs.example`` hang until the end of the test."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.asked: Counter[str] = Counter()

    def getaddrinfo(self, host: str, port: int, *_more: object) -> list[tuple[int, int, int, str, Any]]:
        self.asked[host] += 1
        if host.endswith("hangs.example"):
            self.end.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.1", "127.0.0.2")]


@asynccontextmanager
async def looking_up(resolver: Resolver, *, really: bool = False) -> AsyncGenerator[Lookups]:
    lookups = Lookups(socket.getaddrinfo if really else resolver.getaddrinfo)
    try:
        yield lookups
    finally:
        resolver.end.set()
        lookups.close()


@asynccontextmanager
async def listening() -> AsyncGenerator[tuple[int, list[object]]]:
    """Listen on loopback; gives the port, and what connected."""
    seen: list[object] = []

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername"))
        writer.close()

    async with await asyncio.start_server(serve, "0.0.0.0", 0) as server:
        yield server.sockets[0].getsockname()[1], seen


@pytest.mark.parametrize("host", ["internal.example", "127.1", "2130706433", "0"])
@pytest.mark.parametrize("field", ["server", "proxy-url"])
async def test_a_name_that_leads_there_is_looked_up_once_and_never_connected_to(host: str, field: str) -> None:
    resolver, really = Resolver(), not host.endswith("example")
    async with listening() as (port, seen), looking_up(resolver, really=really) as lookups:
        named = {"server": f"https://{host}:{port}"}
        if field == "proxy-url":
            named = {"server": "https://api.example", "proxy-url": f"http://{host}:{port}"}
        async with ApiClient.from_kubeconfig(kubeconfig({**named}, {}), addresses=TENANT_ADDRESSES) as client:
            client.use_resolver(lookups.of("a"))
            with pytest.raises(Unreachable) as refused:  # some forms are refused by the library, before a look-up
                await client.get("/api/v1/things/a")
    assert "this machine, its link or its cloud" in str(refused.value) or not resolver.asked
    assert seen == []
    assert sum(resolver.asked.values()) <= 1


@pytest.mark.parametrize("host", ["169.254.169.254", "[::ffff:127.0.0.1]"])
def test_a_kubeconfig_that_names_such_an_address_is_refused_before_anything_is_opened(host: str) -> None:
    for cluster in ({"server": f"https://{host}"}, {"server": "https://a.example", "proxy-url": f"http://{host}:80"}):
        with pytest.raises(KubeconfigError, match="this machine, its link or its cloud"):
            ApiClient.from_kubeconfig(kubeconfig({**cluster}, {}), addresses=TENANT_ADDRESSES)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"])
@pytest.mark.parametrize("field", ["server", "proxy"])
async def test_a_literal_that_no_resolver_sees_is_refused_where_it_is_connected_to(host: str, field: str) -> None:
    async with listening() as (port, seen):
        endpoint = ApiEndpoint(
            server=f"https://{host}:{port}" if field == "server" else "https://192.0.2.1",
            proxy_url=f"http://{host}:{port}" if field == "proxy" else None,
            addresses=TENANT_ADDRESSES,
        )
        async with ApiClient(endpoint) as client:
            with pytest.raises(Unreachable, match="this machine, its link or its cloud"):
                await client.get("/api/v1/things/a")
    assert seen == []


async def test_a_refusal_of_one_address_is_forgotten_once_the_server_answers_at_another(pki: ClusterPki) -> None:
    """The first address answers late, so that the second one is tried meanwhile (RFC 8305)."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(thing("a", 1)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    rules = AddressRules((parse_network("127.0.0.1"),))
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port: int = listener.getsockname()[1]
    cluster = {
        "server": f"https://two.example:{port}",
        "certificate-authority-data": b64(pki.ca_certificate),
    }
    with listener, socket.create_connection(("127.0.0.1", port)):  # which nobody accepts: the next one waits
        config = kubeconfig({**cluster}, {})
        async with looking_up(Resolver()) as lookups, ApiClient.from_kubeconfig(config, addresses=rules) as client:
            client.use_resolver(lookups.of("a"))
            asked = asyncio.create_task(client.get("/api/v1/things/a"))
            await until(lambda: client.refused_address)
            assert "127.0.0.2" in client.refused_address
            async with await asyncio.start_server(serve, sock=listener, ssl=server_tls(pki, "two.example")):
                assert (await asked)["kind"] == "Thing"
            assert client.refused_address == ""


# Look-ups


async def test_a_thousand_hung_lookups_of_one_tenant_leave_threads_to_every_other() -> None:
    resolver = Resolver()
    async with looking_up(resolver) as lookups:
        hung = [asyncio.create_task(lookups.find("a", f"{number}.hangs.example", 443)) for number in range(1000)]
        for tenant in ("b", "c"):
            [found, _] = await lookups.find(tenant, "honest.example", 443)
            assert found[4] == ("127.0.0.1", 443)
        assert sum(host.endswith("hangs.example") for host in resolver.asked) == LOOKUPS_PER_TENANT
        for task in hung:
            task.cancel()
        await asyncio.gather(*hung, return_exceptions=True)


async def test_a_lookup_that_nobody_waits_for_counts_until_it_ends() -> None:
    resolver = Resolver()
    async with looking_up(resolver) as lookups:
        for number in range(LOOKUPS_PER_TENANT):
            hung = asyncio.create_task(lookups.find("a", f"{number}.hangs.example", 443))
            await until(lambda number=number: resolver.asked[f"{number}.hangs.example"])
            hung.cancel()
            await asyncio.gather(hung, return_exceptions=True)
        later = asyncio.create_task(lookups.find("a", "honest.example", 443))
        await lookups.find("b", "other.example", 443)
        assert resolver.asked["honest.example"] == 0
        resolver.end.set()
        assert await later
    with pytest.raises(OSError, match="no more"):
        await lookups.find("a", "honest.example", 443)


async def test_of_a_name_with_many_addresses_a_few_are_tried() -> None:
    def thousands(_host: str, port: int, *_more: object) -> AddressInfos:
        v4 = [(socket.AF_INET, 0, 6, "", (f"192.0.2.{number}", port)) for number in range(200)]
        return [*v4, *((socket.AF_INET6, 0, 6, "", (f"2001:db8::{number:x}", port, 0, 0)) for number in range(2000))]

    found = await Lookups(thousands).of("a").resolve("evil.example", 443)
    assert [each["host"] for each in found][::4] == ["192.0.2.0", "2001:db8::0"]
    assert len(found) == 8


SERVER: Final = "https://api.example.test:6443"
DIRECT: Final = {
    SERVER: (
        *("*", "example.test", ".example.test", "*.example.test", "API.example.test", "api.example.test:6443"),
        "other, example.test",
    ),
    "https://10.96.0.1": ("10.96.0.0/12", "10.96.0.1", "10.96.0.1:443"),
    "https://[fd00::1]": ("fd00::/8", "[fd00::1]:443", "fd00::1"),
    "https://127.0.0.1:6443": ("",),
    "https://localhost:6443": ("",),
}
PROXIED: Final = {
    SERVER: ("", "api.example.test:443", "le.test"),
    "https://10.96.0.1:6443": ("10.96.0.1:443",),
    "https://192.168.0.1": ("10.96.0.0/12",),
}


@pytest.mark.parametrize(("cases", "proxy"), [(DIRECT, None), (PROXIED, "http://proxy:3128")])
def test_no_proxy_is_read_as_go_reads_it(cases: dict[str, tuple[str, ...]], proxy: str | None) -> None:
    for server, exempts in cases.items():
        for exempt in exempts:
            environment = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": exempt}
            assert environment_proxy(server, environment) == proxy, (server, exempt)
