"""Where a tenant's kubeconfig may lead: checked as the address is connected to, however it is written or found."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import pytest
from polling import until
from scripted import kubeconfig, server_tls, thing

from nodeattest_kube.addresses import TENANT_ADDRESSES, AddressRules, parse_network, parse_pod_ips
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError, Unreachable
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_kube.lookups import Lookups

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
    assert parse_pod_ips("") == frozenset()
    assert parse_pod_ips("10.1.2.3, fd00::1") == {ip_address("10.1.2.3"), ip_address("fd00::1")}
    for wrong in ("10.1.2.0/24", "host", "10.1.2.3;10.1.2.4"):
        with pytest.raises(ValueError, match="does not appear"):
            parse_pod_ips(wrong)


def test_what_the_operator_allows_is_allowed_in_every_form_and_nothing_else() -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert not LOOPBACK.refuses(address)
    for address in ("169.254.169.254", "::ffff:169.254.169.254", "::2"):
        assert LOOPBACK.refuses(address)


@pytest.mark.parametrize("host", ["169.254.169.254", "127.0.0.1", "[::ffff:169.254.169.254]", "[fd00:ec2::254]"])
def test_a_kubeconfig_that_names_such_an_address_is_refused_before_anything_is_opened(host: str) -> None:
    for cluster in ({"server": f"https://{host}"}, {"server": "https://api.example", "proxy-url": f"http://{host}:80"}):
        with pytest.raises(KubeconfigError, match="this machine, its link or its cloud"):
            ApiClient.from_kubeconfig(kubeconfig({**cluster}, {}), addresses=TENANT_ADDRESSES)
        ApiClient.from_kubeconfig(kubeconfig({**cluster}, {}))


class Names:
    """Resolves every name to loopback, but ``moves.example`` to an honest address when it is asked first."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def getaddrinfo(self, host: str, port: int, *_more: object) -> list[tuple[int, int, int, str, Any]]:
        self.asked[host] += 1
        first = host == "moves.example" and self.asked[host] == 1
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, port))
            for each in (["192.0.2.1"] if first else ["127.0.0.1", "127.0.0.2"])
        ]


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
    names = Names()
    lookups = Lookups(names.getaddrinfo if host.endswith("example") else socket.getaddrinfo)
    async with listening() as (port, seen):
        named = {"server": f"https://{host}:{port}"}
        if field == "proxy-url":
            named = {"server": "https://api.example", "proxy-url": f"http://{host}:{port}"}
        async with ApiClient.from_kubeconfig(kubeconfig({**named}, {}), addresses=TENANT_ADDRESSES) as client:
            client.use_resolver(lookups.of("a"))
            with pytest.raises(Unreachable) as refused:  # some forms are refused by the library, before a look-up
                await client.get("/api/v1/things/a")
    lookups.close()
    assert "this machine, its link or its cloud" in str(refused.value) or not names.asked
    assert seen == []
    assert sum(names.asked.values()) <= 1


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


async def test_a_name_that_resolves_otherwise_between_two_requests_is_judged_each_time() -> None:
    names = Names()
    lookups = Lookups(names.getaddrinfo)
    async with listening() as (port, seen):
        moving = kubeconfig({"server": f"https://moves.example:{port}"}, {})
        async with ApiClient.from_kubeconfig(moving, request_timeout=0.1, addresses=TENANT_ADDRESSES) as client:
            client.use_resolver(lookups.of("a"))
            with pytest.raises(Unreachable):  # 192.0.2.1: nobody answers
                await client.get("/api/v1/things/a")
        async with ApiClient.from_kubeconfig(moving, request_timeout=60, addresses=TENANT_ADDRESSES) as client:
            client.use_resolver(lookups.of("a"))
            with pytest.raises(Unreachable, match="this machine, its link or its cloud"):
                await client.get("/api/v1/things/a")
    lookups.close()
    assert seen == []


async def test_a_refusal_of_one_address_is_forgotten_once_the_server_answers_at_another(tmp_path: Path) -> None:
    """The first address answers late, so that the second one is tried meanwhile (RFC 8305)."""
    authority, context = server_tls(tmp_path, "two.example")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(thing("a", 1)).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()

    lookups, rules = Lookups(Names().getaddrinfo), AddressRules((parse_network("127.0.0.1"),))
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port: int = listener.getsockname()[1]
    cluster = {
        "server": f"https://two.example:{port}",
        "certificate-authority-data": base64.b64encode(authority.pem).decode(),
    }
    with listener, socket.create_connection(("127.0.0.1", port)):  # which nobody accepts: the next one waits
        async with ApiClient.from_kubeconfig(kubeconfig({**cluster}, {}), addresses=rules) as client:
            client.use_resolver(lookups.of("a"))
            asked = asyncio.create_task(client.get("/api/v1/things/a"))
            await until(lambda: client.refused_address)
            assert "127.0.0.2" in client.refused_address
            async with await asyncio.start_server(serve, sock=listener, ssl=context):
                assert (await asked)["kind"] == "Thing"
            assert client.refused_address == ""
    lookups.close()
