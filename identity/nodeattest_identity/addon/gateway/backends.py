"""What the gateway asks the API server: whether a user may use a service, and to which Pod the service leads.

A SubjectAccessReview repeats kube-apiserver's own, by our reading of the path, as all aggregated API servers do. Of a
service only addresses of Pods in its own namespace count, and never one of this machine, its link or its cloud. The
writer of Endpoints decides where a service leads, so a token names one service.
Source: authorization.k8s.io/v1 SubjectAccessReview; apiserver pkg/authorization/authorizerfactory/delegating.go and
pkg/endpoints/request/requestinfo.go; Kubernetes pkg/registry/core/service/storage/rest.go (ResourceLocation,
isValidAddress), pkg/proxy/util (IsProxyableIP).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.addon.gateway.target import GROUP, RESOURCE, SUBRESOURCE, VERSION, ServiceTarget, unavailable
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_kube import paths
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.addresses import TENANT_ADDRESSES
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.cloud_http import SingleFlight
from nodeattest_serving.bounded_server import BindAddress

_ALLOWED_SECONDS: Final = 10.0
"""kube-apiserver itself decides on each request, so this only bounds the second review."""
_DENIED_SECONDS: Final = 2.0
_MAX_REVIEWS: Final = 10_000
_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
"""requestinfo.go. Every other method becomes the empty verb, which only ``*`` allows."""
_ENDPOINT_SECONDS: Final = 2.0
_MAX_SERVICES: Final = 2_000
_MAX_ADDRESSES: Final = 1_000
"""Of an Endpoints object that are looked at; Kubernetes' own controller writes no more (maxCapacity)."""
_MAX_PORTS: Final = 1_000
"""Of a Service, and of an Endpoints object."""
_MAX_PORT: Final = 65_535

_choose = random.SystemRandom().choice
log = logging.getLogger(__name__)

_Question = tuple[UserInfo, str, str, str]
"""User, namespace, name and verb."""


class SubjectAccessAuthorizer:
    """Authorizes by SubjectAccessReview; answers are cached for seconds."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._cache: ExpiringCache[_Question, bool] = ExpiringCache(_MAX_REVIEWS, clock)
        self._in_flight: SingleFlight[_Question, bool] = SingleFlight()

    async def authorize(self, user: UserInfo, target: ServiceTarget, method: str) -> None:
        question = user, target.namespace, target.name, _VERBS.get(method, "")
        allowed = self._cache.get(question)
        if allowed is None:
            allowed = await self._in_flight.share(question, lambda: self._review(question))
        if not allowed:
            raise RefusalError(
                HTTPStatus.FORBIDDEN,
                f"expected a right to {question[3] or '*'} {RESOURCE}/{SUBRESOURCE} of {GROUP} here, got none",
            )

    async def _review(self, question: _Question) -> bool:
        user, namespace, name, verb = question
        attributes = ResourceAttributes(
            group=GROUP,
            version=VERSION,
            resource=RESOURCE,
            subresource=SUBRESOURCE,
            namespace=namespace,
            name=name,
            verb=verb,
        )
        who = ReviewedUser(name=user.user, groups=user.groups, uid=user.uid, extra=dict(user.extra))
        try:
            allowed = await is_access_allowed(self._client, attributes, who)
        except ApiError as error:
            log.warning("cannot create a SubjectAccessReview: %s", error)
            raise unavailable("cannot ask the API server what this user may do") from None
        self._cache.put(question, allowed, self._clock() + (_ALLOWED_SECONDS if allowed else _DENIED_SECONDS))
        return allowed


class EndpointResolver:
    """Reads Services and Endpoints from the API server, and chooses one endpoint at random."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._cache: ExpiringCache[tuple[str, str, str], list[BindAddress]] = ExpiringCache(_MAX_SERVICES, clock)

    async def resolve(self, target: ServiceTarget) -> BindAddress:
        key = target.namespace, target.service, target.port
        found = self._cache.get(key)
        if found is None:
            found = ready_endpoints(await self._read("services", target), await self._read("endpoints", target), target)
            self._cache.put(key, found, self._clock() + _ENDPOINT_SECONDS)
        return _choose(found)

    async def _read(self, resource: str, target: ServiceTarget) -> JsonObject:
        try:
            return await self._client.get(paths.core_path(resource, target.service, namespace=target.namespace))
        except NotFound:
            raise RefusalError(
                HTTPStatus.NOT_FOUND, "expected a service with endpoints, got none of this name"
            ) from None
        except ApiError as error:
            log.warning("cannot read a Service or its Endpoints: %s", error)
            raise unavailable("cannot read the service from the API server", retry_after=2) from None


def ready_endpoints(service: JsonObject, endpoints: JsonObject, target: ServiceTarget) -> list[BindAddress]:
    """List the ready endpoints of a service's port; raises ``RefusalError`` where there is none.

    1. The service is not an ExternalName. 2. It has the port. 3. Keep addresses that Pods of the namespace may use.
    """
    # 1
    if text(service, "spec", "type") == "ExternalName":
        raise RefusalError(HTTPStatus.BAD_REQUEST, "expected a service of Pods, got one of type ExternalName")
    # 2
    name = _port_name(items(service, "spec", "ports")[:_MAX_PORTS], target.port)
    # 3
    found = list(_endpoints(endpoints, name, target.namespace))
    if not found:
        raise unavailable("expected a ready endpoint of the service, got none", retry_after=2)
    return found


def _endpoints(endpoints: JsonObject, port_name: str, namespace: str) -> Iterator[BindAddress]:
    """Yield the endpoints of a port; what is over the bounds is not looked at."""
    addresses_left, ports_left = _MAX_ADDRESSES, _MAX_PORTS
    for subset in items(endpoints, "subsets"):
        addresses = items(subset, "addresses")[:addresses_left]
        ports = items(subset, "ports")[:ports_left]
        addresses_left, ports_left = addresses_left - len(addresses), ports_left - len(ports)
        number = next((_number(port) for port in ports if text(port, "name") == port_name and _number(port)), 0)
        for address in addresses if number else ():
            host, owner = text(address, "ip"), mapping(address, "targetRef")
            is_pod = (owner.get("kind"), owner.get("namespace")) == ("Pod", namespace)
            if is_pod and not TENANT_ADDRESSES.refuses(host):
                yield BindAddress(host, number)
        if not (addresses_left and ports_left):
            return


def _port_name(ports: list[JsonObject], wanted: str) -> str:
    """Find a service's port by number or name; returns its name, which is the key in Endpoints."""
    if not wanted:
        matching = ports if len(ports) == 1 else [port for port in ports if not text(port, "name")]
    elif wanted.isdigit():
        matching = [port for port in ports if _number(port) == int(wanted)]
    else:
        matching = [port for port in ports if text(port, "name") == wanted]
    for port in matching:
        if text(port, "protocol") in {"", "TCP"}:
            return text(port, "name")
    raise RefusalError(HTTPStatus.BAD_REQUEST, "expected a TCP port of the service by number or name, as in NAME:PORT")


def _number(port: JsonObject) -> int:
    number = port.get("port")
    return number if isinstance(number, int) and 0 < number <= _MAX_PORT else 0
