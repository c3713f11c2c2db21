"""Resolves a service to one of its ready endpoints, as the API server has them.

Promises: only addresses of Pods in the service's own namespace, and never an address that no Pod has: loopback,
link-local, multicast, unspecified, and cloud metadata services, also as an IPv6 address that embeds such an IPv4
address. ExternalName services have no endpoint. What is read is cached for two seconds, and bounded whatever a
namespace's Services and Endpoints hold: it belongs to the gateway's other users, too.
Leaves to others: authorization (``authorizer``). The writer of Endpoints decides where a service leads, as with
kube-proxy: that is why a token names one service and is of no use for others.
Source: Kubernetes pkg/registry/core/service/storage/rest.go (ResourceLocation, isValidAddress),
pkg/proxy/util (IsProxyableIP). RFC 3056, 4380 and 6052 for IPv4 addresses within IPv6 addresses.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Final, Protocol

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.target import ServiceTarget
from nodeattest_kube import client as paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_parsing.objects import dig, text
from nodeattest_parsing.values import JsonObject, JsonValue

_CACHE_SECONDS: Final = 2.0
_MAX_CACHED: Final = 2_000
_MAX_ADDRESSES: Final = 1_000
"""Of an Endpoints object that are looked at; Kubernetes' own controller writes no more (maxCapacity)."""
_MAX_PORTS: Final = 1_000
"""Of a Service, and of an Endpoints object."""
_RETRY_AFTER: Final = {"Retry-After": "2"}
_MAX_PORT: Final = 65_535
_CLOUD_ADDRESSES: Final = frozenset(
    ipaddress.ip_address(each)
    for each in (
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google Cloud
        "168.63.129.16",  # Azure
        "100.100.100.200",  # Alibaba Cloud
        "192.0.0.192",  # Oracle Cloud
    )
)
"""Metadata services and instance configuration services that are not link-local."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.ip_network("::/96")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """An address to connect to."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class _ServicePort:
    number: int
    name: str
    protocol: str


@dataclass(frozen=True, slots=True)
class _Subset:
    ports: Mapping[str, int]
    """By name."""
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Routes:
    """What is kept of a Service and its Endpoints."""

    is_external: bool
    ports: tuple[_ServicePort, ...]
    subsets: tuple[_Subset, ...]


class EndpointResolver(Protocol):
    """Finds an endpoint of a service."""

    async def resolve(self, target: ServiceTarget, /) -> ServiceEndpoint:
        """Return an endpoint; raises ``StatusError``."""
        ...


class ApiEndpointResolver:
    """Reads Services and Endpoints from the API server."""

    def __init__(
        self,
        client: ApiClient,
        *,
        clock: Callable[[], float],
        pick: Callable[[Sequence[ServiceEndpoint]], ServiceEndpoint],
    ) -> None:
        """``pick`` chooses one endpoint at random."""
        self._client = client
        self._clock = clock
        self._pick = pick
        self._cache: ExpiringCache[tuple[str, str], _Routes] = ExpiringCache(_MAX_CACHED, clock)

    async def resolve(self, target: ServiceTarget, /) -> ServiceEndpoint:
        """Return an endpoint; raises ``StatusError``."""
        key = target.namespace, target.service
        routes = self._cache.get(key)
        if routes is None:
            routes = await self._read(*key)
            self._cache.put(key, routes, self._clock() + _CACHE_SECONDS)
        return self._pick(_endpoints_of(routes, target))

    async def _read(self, namespace: str, name: str) -> _Routes:
        try:
            service = await self._client.get(paths.core_path("services", name, namespace=namespace))
            endpoints = await self._client.get(paths.core_path("endpoints", name, namespace=namespace))
        except NotFound:
            raise StatusError(
                HTTPStatus.NOT_FOUND, "expected a service with endpoints, got none of this name"
            ) from None
        except ApiError as error:
            _log.warning("cannot read a Service or its Endpoints: %s", error)
            raise StatusError(
                HTTPStatus.SERVICE_UNAVAILABLE, "cannot read the service from the API server", _RETRY_AFTER
            ) from None
        return _routes(service, endpoints, namespace)


def ready_endpoints(service: JsonObject, endpoints: JsonObject, target: ServiceTarget) -> list[ServiceEndpoint]:
    """List the ready endpoints of a service's port; raises ``StatusError`` where there is none.

    1. The service is not an ExternalName. 2. It has the port. 3. Ready addresses of that port that belong to Pods of
    the namespace and are in a range that Pods may use.
    """
    return _endpoints_of(_routes(service, endpoints, target.namespace), target)


def _endpoints_of(routes: _Routes, target: ServiceTarget) -> list[ServiceEndpoint]:
    # 1
    if routes.is_external:
        raise StatusError(HTTPStatus.BAD_REQUEST, "expected a service of Pods, got one of type ExternalName")
    # 2
    name = _port_name(routes.ports, target.port)
    # 3
    found = [
        ServiceEndpoint(host, subset.ports[name])
        for subset in routes.subsets
        if name in subset.ports
        for host in subset.hosts
    ]
    if not found:
        raise StatusError(
            HTTPStatus.SERVICE_UNAVAILABLE, "expected a ready endpoint of the service, got none", _RETRY_AFTER
        )
    return found


def _routes(service: JsonObject, endpoints: JsonObject, namespace: str) -> _Routes:
    """Read both objects once; what is over the bounds is not looked at."""
    ports = islice(_objects(dig(service, "spec", "ports")), _MAX_PORTS)
    return _Routes(
        is_external=text(service, "spec", "type") == "ExternalName",
        ports=tuple(_ServicePort(_number(port), text(port, "name"), text(port, "protocol")) for port in ports),
        subsets=tuple(_subsets(endpoints, namespace)),
    )


def _subsets(endpoints: JsonObject, namespace: str) -> Iterator[_Subset]:
    addresses_left, ports_left = _MAX_ADDRESSES, _MAX_PORTS
    for subset in _objects(endpoints.get("subsets")):
        addresses = list(islice(_objects(subset.get("addresses")), addresses_left))
        ports = list(islice(_objects(subset.get("ports")), ports_left))
        addresses_left, ports_left = addresses_left - len(addresses), ports_left - len(ports)
        hosts = (text(one, "ip") for one in addresses if _is_pod(one, namespace))
        numbers = {text(port, "name"): number for port in reversed(ports) if (number := _number(port))}
        yield _Subset(numbers, tuple(host for host in hosts if _is_allowed_address(host)))
        if not (addresses_left and ports_left):
            return


def _port_name(ports: Sequence[_ServicePort], wanted: str) -> str:
    """Find a service's port by number or name; returns its name, which is the key in Endpoints."""
    if not wanted:
        matching = ports if len(ports) == 1 else [port for port in ports if not port.name]
    elif wanted.isdigit():
        matching = [port for port in ports if port.number == int(wanted)]
    else:
        matching = [port for port in ports if port.name == wanted]
    matching = [port for port in matching if port.protocol in {"", "TCP"}]
    if not matching:
        raise StatusError(
            HTTPStatus.BAD_REQUEST, "expected a TCP port of the service by number or name, as in NAME:PORT"
        )
    return matching[0].name


def _is_pod(address: JsonObject, namespace: str) -> bool:
    return (text(address, "targetRef", "kind"), text(address, "targetRef", "namespace")) == ("Pod", namespace)


def _is_allowed_address(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if not _may_be_pod_address(address):
        return False
    return not isinstance(address, ipaddress.IPv6Address) or all(map(_may_be_pod_address, _embedded_ipv4(address)))


def _may_be_pod_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return True  # the embedded IPv4 address decides
    return address not in _CLOUD_ADDRESSES and not (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
    )


def _embedded_ipv4(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """List the IPv4 addresses that are embedded in an IPv6 address."""
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or address in _COMPATIBLE:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return [each for each in found if each is not None]


def _number(port: JsonObject) -> int:
    number = port.get("port")
    return number if isinstance(number, int) and 0 < number <= _MAX_PORT else 0


def _objects(value: JsonValue) -> list[JsonObject]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
