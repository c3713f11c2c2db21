"""Where a service's requests go: one ready endpoint of it, read from the API.

Promises: only addresses of Pods in the service's own namespace, as its Endpoints say, and never one that no Pod has:
loopback, link-local, multicast, unspecified, and where clouds answer their machines (metadata services), also not as an
IPv6 address that leads to such an IPv4 one. A service that only names another host
(ExternalName) leads nowhere. What was read is good for two seconds.
Leaves to others: who may ask (``review``). Whoever may write Endpoints decides where a service leads, here as with
kube-proxy: that is why a token names one service, and says nothing to others.
Source: Kubernetes pkg/registry/core/service/storage/rest.go (ResourceLocation, isValidAddress),
pkg/proxy/util (IsProxyableIP). RFC 3056, 4380 and 6052 for IPv4 addresses within IPv6 ones.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.target import ServiceTarget
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, NotFound
from nodeattest_kube.jsontypes import JsonObject, JsonValue, dig, dig_text

__all__ = ["ApiEndpointResolver", "Endpoint", "EndpointResolver", "ready_endpoints"]

_GOOD_FOR: Final = 2.0
_MOST: Final = 2_000
_AGAIN: Final = {"Retry-After": "2"}
_MAX_PORT: Final = 65_535
_OF_CLOUDS: Final = frozenset(
    ipaddress.ip_address(each)
    for each in (
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google Cloud
        "168.63.129.16",  # Azure
        "100.100.100.200",  # Alibaba Cloud
        "192.0.0.192",  # Oracle Cloud
    )
)
"""Metadata services, and what tells machines their settings, that are not link-local."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.ip_network("::/96")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect."""

    host: str
    port: int


class EndpointResolver(Protocol):
    """Finds where a service's requests go."""

    async def find(self, target: ServiceTarget, /) -> Endpoint:
        """Return an endpoint; raises ``StatusError``."""
        ...


class ApiEndpointResolver:
    """Reads Services and Endpoints of a cluster."""

    def __init__(
        self, client: ApiClient, *, clock: Callable[[], float], pick: Callable[[Sequence[Endpoint]], Endpoint]
    ) -> None:
        """``pick`` chooses one of several, at random."""
        self._client = client
        self._clock = clock
        self._pick = pick
        self._kept: OrderedDict[tuple[str, str], tuple[JsonObject, JsonObject, float]] = OrderedDict()

    async def find(self, target: ServiceTarget, /) -> Endpoint:
        """Return an endpoint; raises ``StatusError``."""
        key = target.namespace, target.service
        kept = self._kept.get(key)
        if kept is None or self._clock() >= kept[2]:
            service, endpoints = await self._read(*key)
            kept = self._kept[key] = service, endpoints, self._clock() + _GOOD_FOR
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return self._pick(ready_endpoints(kept[0], kept[1], target))

    async def _read(self, namespace: str, name: str) -> tuple[JsonObject, JsonObject]:
        try:
            service = await self._client.get(paths.core_path("services", name, namespace=namespace))
            endpoints = await self._client.get(paths.core_path("endpoints", name, namespace=namespace))
        except NotFound:
            raise StatusError(
                HTTPStatus.NOT_FOUND, "expected a service with endpoints, got none of this name"
            ) from None
        except ApiError as error:
            _log.warning("cannot read a service: %s", error)
            raise StatusError(
                HTTPStatus.SERVICE_UNAVAILABLE, "cannot read the service from the API server", _AGAIN
            ) from None
        return service, endpoints


def ready_endpoints(service: JsonObject, endpoints: JsonObject, target: ServiceTarget) -> list[Endpoint]:
    """List the ready endpoints of a service's port; raises ``StatusError`` where there is none.

    1. The service has Pods, and not another host's name. 2. It has the port. 3. Ready addresses of that port, of Pods
    of the namespace, that a Pod could have.
    """
    # 1
    if dig_text(service, "spec", "type") == "ExternalName":
        raise StatusError(HTTPStatus.BAD_REQUEST, "expected a service of Pods, got one of type ExternalName")
    # 2
    name = _port_name(_objects(dig(service, "spec", "ports")), target.port)
    # 3
    found: list[Endpoint] = []
    for subset in _objects(endpoints.get("subsets")):
        ports = [_number(port) for port in _objects(subset.get("ports")) if dig_text(port, "name") == name]
        for address in _objects(subset.get("addresses")):
            host = dig_text(address, "ip")
            if _is_pod(address, target.namespace) and _is_reachable(host):
                found.extend(Endpoint(host, port) for port in ports if port)
    if not found:
        raise StatusError(HTTPStatus.SERVICE_UNAVAILABLE, "expected a ready endpoint of the service, got none", _AGAIN)
    return found


def _port_name(ports: list[JsonObject], wanted: str) -> str:
    """Find a service's port by number or name, and return its name: that is how Endpoints know it."""
    if not wanted:
        matching = ports if len(ports) == 1 else [port for port in ports if not dig_text(port, "name")]
    elif wanted.isdigit():
        matching = [port for port in ports if port.get("port") == int(wanted)]
    else:
        matching = [port for port in ports if dig_text(port, "name") == wanted]
    matching = [port for port in matching if dig_text(port, "protocol") in {"", "TCP"}]
    if not matching:
        raise StatusError(
            HTTPStatus.BAD_REQUEST, "expected a TCP port of the service by number or name, as in NAME:PORT"
        )
    return dig_text(matching[0], "name")


def _is_pod(address: JsonObject, namespace: str) -> bool:
    return (dig_text(address, "targetRef", "kind"), dig_text(address, "targetRef", "namespace")) == ("Pod", namespace)


def _is_reachable(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if not _could_be_a_pods(address):
        return False
    return not isinstance(address, ipaddress.IPv6Address) or all(map(_could_be_a_pods, _within(address)))


def _could_be_a_pods(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return True  # it is judged by what is within it
    return address not in _OF_CLOUDS and not (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
    )


def _within(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """List the IPv4 addresses that an IPv6 one may lead to."""
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or address in _COMPATIBLE:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return [each for each in found if each is not None]


def _number(port: JsonObject) -> int:
    number = port.get("port")
    return number if isinstance(number, int) and 0 < number <= _MAX_PORT else 0


def _objects(value: JsonValue) -> list[JsonObject]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
