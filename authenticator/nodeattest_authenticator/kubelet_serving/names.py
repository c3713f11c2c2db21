"""The names of a serving certificate: those of the configuration, else the node's name and its own addresses.

The addresses are those from which this machine reaches its API server, in each address family that the server has:
the interface that the cluster's control plane, which connects to kubelet, can reach too. Asking for more would be
asking for a refusal, since each name must be the Machine's. Promises: nothing is sent but the resolver's question.
Source: kubelet takes one address a family by the default route (k8s.io/apimachinery util/net ResolveBindAddress).
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator.config.serving import SubjectNames
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind

if TYPE_CHECKING:
    from nodeattest_authenticator.config.settings import Settings
    from nodeattest_parsing.endpoint import Endpoint

__all__ = ["local_addresses", "wanted_names"]

_ELSEWHERE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that are nobody's (RFC 5737, RFC 3849): the way to them is the default route."""
_ANY_PORT: Final = 9
"""Discard; a datagram socket that is connected sends nothing."""


def wanted_names(settings: Settings) -> SubjectNames:
    """Return the names that the certificate should have now; raises ``AgentError`` while an address is not known."""
    dns = settings.serving.dns_names if settings.serving else None
    addresses = settings.serving.ip_addresses if settings.serving else None
    if addresses is None:
        addresses = local_addresses(settings.endpoint)
    return SubjectNames(tuple(sorted(dns if dns is not None else (settings.node_name,))), tuple(sorted(addresses)))


def local_addresses(endpoint: Endpoint) -> tuple[str, ...]:
    """Return this machine's address towards the API server, of each family; the default route's where that is itself.

    A proxy or the server on this very machine is reached by the loopback, whose address no certificate is for.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise _unknown(f"{endpoint.host}: {getattr(error, 'strerror', None) or 'no host name'}") from None
    towards = {_source(family, str(address[0]), int(address[1])) for family, _, _, _, address in found}
    towards.discard(None)
    if not towards:
        families = {family for family, *_ in found} & _ELSEWHERE.keys()
        towards = {_source(family, _ELSEWHERE[family], _ANY_PORT) for family in families}
    addresses = tuple(sorted(address for address in towards if address is not None))
    if not addresses:
        raise _unknown(f"no interface of this machine leads to {endpoint.host}")
    return addresses


def _source(family: socket.AddressFamily | int, host: str, port: int) -> str | None:
    """Return the address from which this machine would connect; None for one that others cannot reach."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            address = ip_address(str(probe.getsockname()[0]).partition("%")[0])
    except (OSError, ValueError):
        return None
    if address.is_loopback or address.is_link_local or address.is_unspecified:
        return None
    return str(address)


def _unknown(message: str) -> AgentError:
    return AgentError(
        AgentReason.ADDRESS_UNKNOWN,
        f"this machine's address is not known: {message}",
        remedy="name the addresses: join --serving-ip-address, or serving.ipAddresses in the configuration",
        kind=FailureKind.TEMPORARY,
    )
