"""Which addresses a tenant's kubeconfig may lead to: none of this machine, its link or its cloud. And name look-ups.

An address is judged as it is handed to ``connect``, after every look-up. An IPv4 address in an IPv6 one is judged, too.
The pod's own addresses are refused like loopback.
Out of scope: further addresses of a node in whose network the pod runs, networks that only the operator knows (a
NetworkPolicy), and what a proxy connects to.
Source: IANA special-purpose address registries (RFC 6890); RFC 6052 §2.2 and RFC 8215 (NAT64), RFC 3056 (6to4), RFC
2765 §2.1 (IPv4-translated), RFC 3879 (site-local); metadata services: oci-python-sdk instance_principals, cloud-init's
data sources Scaleway, Akamai and AliYun; golang.org/x/net/http/httpproxy.
"""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from aiohttp.abc import AbstractResolver, ResolveResult

from nodeattest_kube.errors import KubeconfigError

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network
POD_IPS: Final = "POD_IPS"
"""The environment variable with the pod's addresses, from the downward API (``status.podIPs``)."""
_REFUSED: Final[tuple[IPNetwork, ...]] = tuple(
    ip_network(each)
    for each in (
        *("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32"),
        *("::/96", "::ffff:0:0:0/96", "fe80::/10", "fec0::/10", "ff00::/8"),
        "2001::/32",  # Teredo: leads to an IPv4 address behind a relay
        "168.63.129.16/32",  # Azure's WireServer; the metadata service is link-local there
        *("100.100.100.200/32", "fd00:100::100:200/128"),  # Alibaba Cloud's metadata service
        *("192.0.0.192/32", "fd00:c1::a9fe:a9fe/128"),  # Oracle Cloud's metadata services
        "fd00:42::42/128",  # Scaleway's metadata service
        "fd00:a9fe:a9fe::1/128",  # Linode's metadata service
        "fd00:ec2::/32",  # AWS: metadata, DNS, time, credentials of pods
        "fd20:ce::254/128",  # Google Cloud's metadata server
    )
)
"""Loopback, this network, link-local, site-local, multicast, broadcast, IPv4-compatible and IPv4-translated; clouds'
services for their machines."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
"""Of the operator's choice, with a prefix of any length of RFC 6052 from 48 bits on."""
_REMEDY: Final = "correct the kubeconfig; or, if it is right, let the operator list the network in allowedAddresses"

AddressInfos = Sequence[tuple[int, int, int, str, Any]]
"""What ``getaddrinfo`` returns: family, type, protocol, canonical name, address."""

_THREADS: Final = 32
LOOKUPS_PER_TENANT: Final = 2
"""Look-ups in progress; the clusters of a namespace wait for each other."""
_MAX_ADDRESSES: Final = 4
"""Addresses of one family that a name may lead to. aiohttp tries all of them, and a name may have thousands."""


class AddressRefused(OSError):
    """A connection was not begun."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    """What may be connected to: all but ``_REFUSED`` and the pod's ``own`` addresses, and what is in ``allowed``."""

    allowed: tuple[IPNetwork, ...] = ()
    own: frozenset[IPAddress] = frozenset()

    def refuses(self, address: str) -> bool:
        """Whether an IP address is refused, itself or as what it contains; so is what is no IP address."""
        try:
            whole = ip_address(address)
        except ValueError:
            return True
        return any(
            not _within(each, self.allowed) and (_within(each, _REFUSED) or ip_address(each.packed) in self.own)
            for each in (whole, *_embedded(whole))
        )

    def check(self, address: str) -> None:
        """Raise ``AddressRefused`` where ``connect`` must not be called."""
        if self.refuses(address):
            raise AddressRefused(
                f"expected an address of a cluster, got {address}, which is of this machine, its link or its cloud: "
                + _REMEDY
            )

    def check_host(self, host: str | None, field: str) -> None:
        """Raise ``KubeconfigError`` if a URL's host is an IP address that is refused; a name is looked up later."""
        try:
            literal = str(ip_address(host or ""))
        except ValueError:
            return
        if self.refuses(literal):
            raise KubeconfigError(
                expected=f"{field} with an address of a cluster",
                got=f"{literal}, which is of this machine, its link or its cloud",
                remedy=_REMEDY,
            )


TENANT_ADDRESSES: Final = AddressRules()
"""Without exceptions, and outside of a pod."""


def parse_network(text: str) -> IPNetwork:
    """Parse an address or a network in CIDR notation; raises ``ValueError``."""
    return ip_network(text)


def parse_pod_ips(text: str) -> frozenset[IPAddress]:
    """Parse the value of ``POD_IPS``, addresses separated by commas; raises ``ValueError``."""
    return frozenset(ip_address(each.strip()) for each in text.split(",") if each.strip())


def _within(address: IPAddress, networks: Iterable[IPNetwork]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _embedded(address: IPAddress) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that a gateway may read out of an IPv6 one."""
    if isinstance(address, IPv4Address):
        return
    for found in (address.ipv4_mapped, address.sixtofour):
        if found is not None:
            yield found
    if address in _NAT64:
        yield IPv4Address(address.packed[-4:])
    if address in _LOCAL_NAT64:
        # RFC 6052 §2.2: four octets after a prefix of 48, 56, 64 or 96 bits, without octet 8. None begins with zero.
        octets = address.packed[:8] + address.packed[9:]
        for first in (6, 7, 8, 11):
            if octets[first]:
                yield IPv4Address(octets[first : first + 4])


def environment_proxy(server: str, environment: Mapping[str, str]) -> str | None:
    """Return the proxy's URL for an ``https`` server as Go does, which knows networks in NO_PROXY; None: direct."""
    proxy = environment.get("HTTPS_PROXY") or environment.get("https_proxy")
    if not proxy:
        return None
    parts = urlsplit(server)
    host, port = (parts.hostname or "").rstrip("."), parts.port or 443
    exempt = (environment.get("NO_PROXY") or environment.get("no_proxy") or "").replace("*.", ".")
    if host == "localhost":
        return None
    with suppress(ValueError):  # a name
        address = ip_address(host)
        if address.is_loopback or _within(address, _networks_in(exempt)):
            return None
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if urllib.request.proxy_bypass_environment(authority, {"no": exempt}):  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - typeshed lacks it
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _networks_in(exempt: str) -> Iterator[IPNetwork]:
    for entry in exempt.split(","):
        with suppress(ValueError):
            yield ip_network(entry.strip(), strict=False)


class Lookups:
    """Look-ups of host names in threads of their own, so that one tenant's resolver delays nobody else.

    A look-up that hangs counts until it ends, even if nobody waits for it, because ``getaddrinfo`` cannot be canceled.
    """

    def __init__(self, getaddrinfo: Callable[..., AddressInfos] = socket.getaddrinfo) -> None:
        """``getaddrinfo`` blocks; it is called in a thread."""
        self._getaddrinfo = getaddrinfo
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup")
        self._free: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By tenant with a look-up in progress."""

    def of(self, tenant: str) -> AbstractResolver:
        """Return the resolver of a tenant's clients."""
        return _TenantResolver(self, tenant)

    async def find(self, tenant: str, host: str, port: int) -> AddressInfos:
        """Look up a name; raises OSError."""
        free, loop = self._free.setdefault(tenant, asyncio.Semaphore(LOOKUPS_PER_TENANT)), asyncio.get_running_loop()
        await free.acquire()
        try:
            call = self._threads.submit(
                self._getaddrinfo, host, port, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
            )
        except RuntimeError:  # closed
            free.release()
            raise OSError("no more look-ups") from None

        def ended(_call: Future[AddressInfos]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(free.release)

        call.add_done_callback(ended)
        return await asyncio.wrap_future(call)

    def close(self) -> None:
        """Stop; look-ups in progress are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _TenantResolver(AbstractResolver):
    def __init__(self, lookups: Lookups, tenant: str) -> None:
        self._lookups, self._tenant = lookups, tenant

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        del family
        count = Counter[int]()
        results: list[ResolveResult] = []
        for found, _kind, protocol, _name, address in await self._lookups.find(self._tenant, host, port):
            count[found] += 1
            if count[found] <= _MAX_ADDRESSES:
                results.append(
                    ResolveResult(
                        hostname=host,
                        host=address[0],
                        port=port,
                        family=found,
                        proto=protocol,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
        return results

    async def close(self) -> None:
        """Own nothing."""
