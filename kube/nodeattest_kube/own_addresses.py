"""Which addresses this machine (this pod) has: what is sent to one of them never leaves it.

Promises: every address of every interface, primary or secondary, and every network that the routes call local. Where
the kernel's files are absent, too large or not understood, only an address that is the source of what is sent to it is
known: a secondary IPv4 address is not. Leaves to others: what follows from it (``addresses``).
Source: Linux net/ipv4/fib_trie.c (fib_trie_seq_show), net/ipv6/addrconf.c (if6_seq_show); both files show the network
namespace of the process that reads them. ``bind`` tells nothing where ip_nonlocal_bind is set.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final

__all__ = ["IPNetwork", "OwnAddresses", "parse_fib_trie", "parse_if_inet6"]

IPNetwork = IPv4Network | IPv6Network
_LOG: Final = logging.getLogger(__name__)
_PERIOD: Final = 5.0
"""Seconds for which what was read holds: a pod's files take below a millisecond, a large node's many."""
_LIMIT: Final = 4 << 20
"""Bytes of one file. Each address takes about 130, and as much again where the tables are merged."""
_DISCARD: Final = 9
"""A port; nothing is sent to it."""
_IPV4: Final = 4
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


class OwnAddresses:
    """Tells whether this machine has an address; reads its interfaces again when that is some seconds old."""

    def __init__(self, folder: Path = Path("/proc/net"), clock: Callable[[], float] = time.monotonic) -> None:
        """``folder`` has the kernel's files, ``clock`` is monotonic seconds."""
        self._sources = ((folder / "fib_trie", parse_fib_trie), (folder / "if_inet6", parse_if_inet6))
        self._clock = clock
        self._next = float("-inf")
        """When to read again."""
        self._known: tuple[frozenset[IPv4Address | IPv6Address], tuple[IPNetwork, ...]] = (frozenset(), ())
        """Addresses, and networks of more than one."""
        self._complained = False

    def __call__(self, address: IPv4Address | IPv6Address) -> bool:
        """Tell it of an address, whatever its scope; of an IPv4-mapped one, ask about the IPv4 address in it."""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            return False
        bare = ip_address(address.packed)
        now = self._clock()
        if now >= self._next:
            self._known = self._read()
            self._next = now + _PERIOD
        addresses, networks = self._known
        return bare in addresses or any(bare in network for network in networks) or _is_its_own_source(bare)

    def _read(self) -> tuple[frozenset[IPv4Address | IPv6Address], tuple[IPNetwork, ...]]:
        found: set[IPNetwork] = set()
        for path, parse in self._sources:
            try:
                found |= parse(_text(path))
            except FileNotFoundError:  # another system, a sandbox, or no IPv6
                continue
            except (OSError, ValueError) as error:
                if not self._complained:
                    _LOG.warning("cannot read which addresses this machine has: %s: %s", path, error)
                self._complained = True
        return (
            frozenset(each.network_address for each in found if each.num_addresses == 1),
            tuple(each for each in found if each.num_addresses > 1),
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


def _lines(text: str, form: re.Pattern[str]) -> Iterator[re.Match[str]]:
    for number, line in enumerate(text.split("\n"), 1):
        match = form.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} has another form than Linux writes")
        yield match


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(_LIMIT + 1)
    if len(content) > _LIMIT:
        raise ValueError(f"more than {_LIMIT} bytes")
    return content.decode("latin-1")


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
