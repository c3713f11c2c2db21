"""Where a tenant's kubeconfig may lead: checked as the address is connected to, however it is written or found."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

import pytest
from needs import not_possible
from polling import Turns, until
from scripted import answers, kubeconfig, server_tls, serving, thing

from nodeattest_kube.addresses import TENANT_ADDRESSES, AddressRules, parse_network
from nodeattest_kube.client import ApiClient, KubeconfigError, Unreachable
from nodeattest_kube.lookups import Lookups
from nodeattest_kube.own_addresses import OwnAddresses, parse_fib_trie, parse_if_inet6, parse_ipv6_route

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
    assert not AddressRules(is_own=lambda _address: False).refuses(address)


def test_an_address_of_an_own_interface_is_refused_in_every_form_unless_it_is_allowed() -> None:
    """What listens on all addresses answers there as it does on loopback."""
    own = AddressRules(is_own=lambda address: str(address) == "10.1.2.3")
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "2002:a01:203::1"):
        assert own.refuses(address)
        assert not AddressRules((parse_network("10.0.0.0/8"),), own.is_own).refuses(address)
    assert not own.refuses("10.1.2.4")


FIB_TRIE: Final = """\
Id 100:
  |-- 0.0.0.0
     /0 host LOCAL
Main:
  +-- 10.9.0.0/24 2 0 2
     |-- 10.9.0.0
        /16 universe UNREACHABLE
        /24 link UNICAST tos=16

Local:
  +-- 0.0.0.0/1 2 0 2
     +-- 10.9.0.0/24 2 0 2
        +-- 10.9.0.0/29 2 0 1
           |-- 10.9.0.5
              /32 host LOCAL
           |-- 10.9.0.6
              /32 host LOCAL
        |-- 10.9.0.255
           /32 link BROADCAST
     |-- 10.50.0.0
        /24 host LOCAL
"""
"""Of a machine with a secondary address, a network that is local, and a transparent proxy's table."""
IF_INET6: Final = """\
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
20010db8000000000000000000000005 04 40 00 82     eth0
"""
IPV6_ROUTE: Final = "".join(
    f"{network} {'0' * 32} 00 {'0' * 32} 00000400 00000001 00000000 {flags}       lo\n"
    for network, flags in (
        (f"{'0' * 32} 00", "80000001"),  # of a transparent proxy
        (f"{'0' * 32} 00", "00200200"),
        ("20010db8000000000000000000000000 40", "00200200"),
        ("20010db8007700000000000000000000 40", "80000001"),
        ("20010db8000100000000000000000000 80", "80300001"),
    )
)
"""As Linux writes it of a network that is local (``ip -6 route add local``), and of a router's anycast address."""


def recorded(folder: Path, fib_trie: str = FIB_TRIE, if_inet6: str = IF_INET6, ipv6_route: str = IPV6_ROUTE) -> Path:
    (folder / "fib_trie").write_text(fib_trie)
    (folder / "if_inet6").write_text(if_inet6)
    (folder / "ipv6_route").write_text(ipv6_route)
    return folder


@pytest.mark.parametrize(
    "address",
    [
        *("10.9.0.5", "10.9.0.6", "10.50.0.77", "2001:db8::5", "2001:db8::5%1", "2001:db8::5%eth0", "::ffff:10.9.0.6"),
        *("::ffff:10.9.0.6%1", "64:ff9b::a09:6", "2001:db8:77::9", "2001:db8:1::"),
    ],
)
def test_every_address_of_every_interface_is_own_primary_or_secondary(tmp_path: Path, address: str) -> None:
    rules = AddressRules(is_own=OwnAddresses(recorded(tmp_path)))
    assert rules.refuses(address)
    for other in ("10.9.0.7", "10.51.0.1", "203.0.113.9", "2001:db8::6", "2001:db8::6%1", "2001:db8:78::1"):
        assert not rules.refuses(other), "of the link, of no one, or of a table for marked packets"


async def test_an_address_that_the_machine_gets_later_is_own_some_seconds_after_and_reads_are_spared(
    tmp_path: Path,
) -> None:
    now = [100.0]
    own = OwnAddresses(recorded(tmp_path), lambda: now[0])
    assert not own(ip_address("10.9.0.8"))
    recorded(tmp_path, FIB_TRIE.replace("10.9.0.6", "10.9.0.8"), "")
    await own.refresh()
    assert not own(ip_address("10.9.0.8"))
    now[0] += 5
    await own.refresh()
    assert own(ip_address("10.9.0.8"))
    assert not own(ip_address("10.9.0.6"))
    assert not own(ip_address("2001:db8::5"))


@pytest.mark.parametrize(
    "broken",
    [
        *("Main", "  |-- 10.9.0.6 more", "  |-- 10.9.0.256\n     /32 host LOCAL", "     /32 host LOCAL", "\u00e9"),
        *("  |-- 10.9.0.6\n     /33 host LOCAL", "  |-- 10.9.0.6\n     /24 host LOCAL"),
        pytest.param("\n" * (4 << 20), id="too large"),
    ],
)
def test_a_file_that_is_not_as_linux_writes_it_counts_for_nothing_and_is_complained_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    now = [0.0]
    own = OwnAddresses(recorded(tmp_path, FIB_TRIE.replace("Id 100:", f"Local:\n{broken}\nId 100:")), lambda: now[0])
    for _ in range(3):
        now[0] += 60
        own.read()
        assert not own(ip_address("10.9.0.6"))
        assert own(ip_address("2001:db8::5")), "the other file holds"
        assert own(ip_address("127.0.0.1")), "asked of the kernel"
    assert [record.message.partition(": ")[0] for record in caplog.records] == [
        "cannot read which addresses this machine has"
    ]


async def test_files_of_megabytes_are_read_beside_the_event_loop(tmp_path: Path) -> None:
    leaves = "".join(f"  |-- 10.{n >> 16}.{n >> 8 & 255}.{n & 255}\n     /32 host LOCAL\n" for n in range(60_000))
    rules = AddressRules(is_own=OwnAddresses(recorded(tmp_path, f"Local:\n{leaves}")))
    async with Turns() as others:
        await rules.refresh()
    assert others.count >= 20
    assert rules.refuses("10.0.200.7")
    assert not rules.refuses("10.1.200.7")


def test_the_kernel_is_asked_where_no_file_was_read_and_not_else(tmp_path: Path) -> None:
    asked: list[str] = []

    def probe(address: IPv4Address | IPv6Address) -> bool:
        asked.append(str(address))
        return False

    own = OwnAddresses(recorded(tmp_path), probe=probe)
    assert not own(ip_address("203.0.113.9"))
    assert not own(ip_address("2001:db8:5::9"))
    assert asked == []
    (tmp_path / "ipv6_route").unlink()
    own = OwnAddresses(tmp_path, probe=probe)
    assert not own(ip_address("203.0.113.9"))
    assert not own(ip_address("2001:db8:5::9"))
    assert asked == ["2001:db8:5::9"]


def test_where_the_kernels_files_are_absent_the_address_that_the_machine_sends_from_is_own(tmp_path: Path) -> None:
    own = OwnAddresses(tmp_path)
    assert own(ip_address("127.0.0.1"))
    for other in ("203.0.113.9", "2001:db8::1", "2001:db8::1%1"):
        assert not own(ip_address(other))
    assert own(mine())


def test_this_machines_own_files_name_the_address_that_it_sends_from() -> None:
    fib_trie = Path("/proc/net/fib_trie")
    if not fib_trie.exists():
        not_possible("this system has no /proc/net/fib_trie")
    named = {str(each) for each in parse_fib_trie(fib_trie.read_text())}
    assert {"127.0.0.1/32", "127.0.0.0/8", f"{mine()}/32"} <= named
    assert TENANT_ADDRESSES.refuses(str(mine()))
    if_inet6 = Path("/proc/net/if_inet6")
    for each in parse_if_inet6(if_inet6.read_text()) if if_inet6.exists() else ():
        assert TENANT_ADDRESSES.refuses(str(each.network_address))
    ipv6_route = Path("/proc/net/ipv6_route")
    for each in parse_ipv6_route(ipv6_route.read_text()) if ipv6_route.exists() else ():
        assert TENANT_ADDRESSES.refuses(str(each.network_address))


def mine() -> IPv4Address:
    """Return an IPv4 address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))
        except OSError:
            not_possible("this machine has no route, hence no address of its own")
        return IPv4Address(probe.getsockname()[0])


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


async def test_an_allowed_address_is_connected_to(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        server.script = [answers(thing("a", 1))]
        async with ApiClient.from_kubeconfig(server.kubeconfig(), addresses=LOOPBACK) as client:
            await client.get("/api/v1/things/a")
    assert len(server.requests) == 1


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
