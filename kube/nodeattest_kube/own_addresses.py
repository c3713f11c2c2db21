"""Which addresses this machine (this pod) has: what is sent to one of them never leaves it.

Promises: every address of every interface, primary or secondary, and every network that the routes call local, IPv4
and IPv6; at most 4 MiB of a file is read, outside the event loop, and parsed where it differs from the last time. Where
the kernel's files are absent, too large or not understood, only an address that is the source of what is sent to it is
known: a secondary IPv4 address is not. Leaves to others: what follows from it (``addresses``).
Source: Linux net/ipv4/fib_trie.c (fib_trie_seq_show), net/ipv6/addrconf.c (if6_seq_show), net/ipv6/ip6_fib.c
(ipv6_route_native_seq_show); all show the network namespace of the process that reads them. ``bind`` tells nothing
where ip_nonlocal_bind is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final

__all__ = ["IPNetwork", "OwnAddresses", "parse_fib_trie", "parse_if_inet6", "parse_ipv6_route"]

IPNetwork = IPv4Network | IPv6Network
_LOG: Final = logging.getLogger(__name__)
_PERIOD: Final = 5.0
"""Seconds for which what was read holds: a pod's files take below a millisecond, a large node's hundreds."""
_LIMIT: Final = 4 << 20
"""Bytes of one file. Each address takes about 130, and as much again where the tables are merged."""
_DISCARD: Final = 9
"""A port; nothing is sent to it."""
_IPV4: Final = 4
_IPV6: Final = 6
_RTF_LOCAL: Final = 0x80000000
_RTF_ANYCAST: Final = 0x00100000
"""Linux include/uapi/linux/ipv6_route.h."""
_FIB_LINE: Final = re.compile(
    r"(?P<table>Main|Local|Id [0-9]{1,10}):"
    r"| +\+-- [0-9.]{7,15}/[0-9]{1,2}(?: [0-9]{1,10}){3}"
    r"| +\|-- (?P<prefix>[0-9.]{7,15})"
    r"| +/(?P<length>[0-9]{1,2}) (?:[a-z]+|scope=[0-9]+) (?P<type>[A-Z]+|type [0-9]+)(?: tos=[0-9]+)?"
    r"|"
)
_TABLES: Final = frozenset({"Main", "Local"})
"""Of others, only marked packets are routed by most: a transparent proxy's calls every address local."""
_IF_INET6_LINE: Final = re.compile(r"(?P<address>[0-9a-f]{32})(?: [0-9a-f]{2,8}){4} +\S+|", re.ASCII)
_IPV6_ROUTE_LINE: Final = re.compile(
    r"(?P<network>[0-9a-f]{32}) (?P<length>[0-9a-f]{2}) [0-9a-f]{32} [0-9a-f]{2} [0-9a-f]{32}"
    r"(?: [0-9a-f]{8}){3} (?P<flags>[0-9a-f]{8}) +\S+|",
    re.ASCII,
)


@dataclass(slots=True)
class _Source:
    """One of the kernel's files, and what it said when it was read last."""

    path: Path
    parse: Callable[[str], frozenset[IPNetwork]]
    version: int
    """Of the Internet Protocol."""
    digest: bytes = b""
    networks: frozenset[IPNetwork] = frozenset()
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """What all files said together."""

    read: frozenset[int] = frozenset()
    """Versions of the Internet Protocol whose files were all read."""
    networks: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict[tuple[int, int], frozenset[int]])
    """By version and bits that follow the prefix: the prefixes."""

    def holds(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether an address is in one of the networks; costs at most one step for each length of a prefix."""
        number = int(address)
        return any(
            version == address.version and number >> bits in prefixes
            for (version, bits), prefixes in self.networks.items()
        )


class OwnAddresses:
    """Tells whether this machine has an address; what it knows is some seconds old."""

    def __init__(
        self,
        folder: Path = Path("/proc/net"),
        clock: Callable[[], float] = time.monotonic,
        probe: Callable[[IPv4Address | IPv6Address], bool] | None = None,
    ) -> None:
        """``folder`` has the kernel's files, ``clock`` is monotonic seconds; ``probe`` asks where no file was read."""
        self._sources = (
            _Source(folder / "fib_trie", parse_fib_trie, _IPV4),
            _Source(folder / "if_inet6", parse_if_inet6, _IPV6),
            _Source(folder / "ipv6_route", parse_ipv6_route, _IPV6),
        )
        self._clock = clock
        self._probe = probe or _is_its_own_source
        self._next = float("-inf")
        """When to read again."""
        self._known: _Known | None = None
        self._lock = threading.Lock()
        self._complained = False

    def __call__(self, address: IPv4Address | IPv6Address) -> bool:
        """Tell it of an address, whatever its scope; of an IPv4-mapped one, ask about the IPv4 address in it.

        Reads the files where that was never done: in an event loop, ``refresh`` comes first.
        """
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            return False
        bare = ip_address(address.packed)
        if self._known is None:
            self.read()
        known = self._known or _Known()
        return known.holds(bare) or (bare.version not in known.read and self._probe(bare))

    async def refresh(self) -> None:
        """Read the files in a thread, where that is some seconds ago; others go on meanwhile by what is known."""
        if self._is_due():
            await asyncio.to_thread(self.read)

    def read(self) -> None:
        """Do as ``refresh``, outside of an event loop; a file that is as it was is not parsed again."""
        if not self._is_due():
            return
        self._next = self._clock() + _PERIOD
        with self._lock:
            for source in self._sources:
                self._read_source(source)
            self._known = _known_of(self._sources)

    def _is_due(self) -> bool:
        return self._known is None or self._clock() >= self._next

    def _read_source(self, source: _Source) -> None:
        try:
            content = _content(source.path)
            digest = hashlib.sha256(content).digest()
            if not source.is_read or digest != source.digest:
                source.networks, source.digest = source.parse(content.decode("latin-1")), digest
        except FileNotFoundError:  # another system, a sandbox, or no IPv6
            source.networks, source.is_read = frozenset(), False
        except (OSError, ValueError) as error:
            if not self._complained:
                _LOG.warning("cannot read which addresses this machine has: %s: %s", source.path, error)
            self._complained = True
            source.networks, source.is_read = frozenset(), False
        else:
            source.is_read = True


def _known_of(sources: Iterable[_Source]) -> _Known:
    networks: dict[tuple[int, int], set[int]] = {}
    unread: set[int] = set()
    for source in sources:
        if not source.is_read:
            unread.add(source.version)
        for network in source.networks:
            bits = network.max_prefixlen - network.prefixlen
            networks.setdefault((network.version, bits), set()).add(int(network.network_address) >> bits)
    return _Known(
        frozenset({_IPV4, _IPV6} - unread), {each: frozenset(prefixes) for each, prefixes in networks.items()}
    )


def parse_fib_trie(text: str) -> frozenset[IPNetwork]:
    """Read the networks that IPv4 routes call local; ``ValueError`` for any line that the kernel does not write."""
    found: set[IPNetwork] = set()
    table = prefix = ""
    for match in _lines(text, _FIB_LINE):
        if match["table"]:
            table, prefix = match["table"], ""
        elif match["prefix"]:
            prefix = match["prefix"]
        elif match["type"] == "LOCAL" and table in _TABLES:
            found.add(IPv4Network(f"{prefix}/{match['length']}"))
    return frozenset(found)


def parse_if_inet6(text: str) -> frozenset[IPNetwork]:
    """Read the interfaces' IPv6 addresses; ``ValueError`` for any line that the kernel does not write."""
    found = (match["address"] for match in _lines(text, _IF_INET6_LINE))
    return frozenset(IPv6Network(bytes.fromhex(each)) for each in found if each)


def parse_ipv6_route(text: str) -> frozenset[IPNetwork]:
    """Read the networks that IPv6 routes call local or anycast; ``ValueError`` as above.

    The file does not name a route's table. A route to every address is a transparent proxy's, for marked packets.
    """
    found: set[IPNetwork] = set()
    for match in _lines(text, _IPV6_ROUTE_LINE):
        if match["flags"] and int(match["flags"], 16) & (_RTF_LOCAL | _RTF_ANYCAST) and match["length"] != "00":
            found.add(IPv6Network((bytes.fromhex(match["network"]), int(match["length"], 16))))
    return frozenset(found)


def _lines(text: str, form: re.Pattern[str]) -> Iterator[re.Match[str]]:
    for number, line in enumerate(text.split("\n"), 1):
        match = form.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} has another form than Linux writes")
        yield match


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_LIMIT + 1)
    if len(content) > _LIMIT:
        raise ValueError(f"more than {_LIMIT} bytes")
    return content


def _is_its_own_source(address: IPv4Address | IPv6Address) -> bool:
    """Whether the kernel sends from an address to itself: it does at an interface's first one. Sends nothing."""
    family = socket.AF_INET if address.version == _IPV4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD))
            source = ip_address(str(probe.getsockname()[0]))
    except OSError:  # no way there, or no such family
        return False
    return source.packed == address.packed
