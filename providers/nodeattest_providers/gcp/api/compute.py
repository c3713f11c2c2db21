"""The Compute API: instances and their endorsement keys, for many requests at once.

Instances of one zone share a call. A running instance is remembered for some seconds. An instance's numeric ID never
gets other endorsement keys, so those are asked for once. Whatever goes wrong is ``Unavailable``, and holds no token.
Source: Compute Engine API v1, ``instances.list`` (filter: AIP-160), ``instances.getShieldedInstanceIdentity``; Google,
"Compute Engine API: errors" (``error.errors[].reason``), "API rate limits".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from math import inf
from typing import Final, TypeVar
from urllib.parse import quote

from nodeattest_providers.cloud_http import (
    CloudHttp,
    CloudResponse,
    ExchangeError,
    Lookup,
    ResponseLimits,
    retry_after_seconds,
)
from nodeattest_providers.errors import Denied, Unavailable, platform_unavailable
from nodeattest_providers.gcp.api.instance import (
    FIELDS,
    RUNNING,
    ComputeInstance,
    parse_instance,
    parse_instance_identity,
    parse_page,
)
from nodeattest_providers.gcp.api.tokens import Tokens, trust
from nodeattest_providers.gcp.config import GcpPlatform
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.node_interface import JsonObject
from nodeattest_providers.platform import CallOutcome, ObserveCall

_LIMITS: Final = ResponseLimits(seconds=10.0, answer_bytes=4 * 1024 * 1024, connections=64)
"""The time is half of the controller's default ``verificationTimeout``; fifty instances have some 100 KiB."""
_THROTTLED_FOR: Final = 15.0
_LONGEST_WAIT: Final = 120.0
"""Seconds."""
_QUOTA: Final = (b"rateLimitExceeded", b"RATE_LIMIT_EXCEEDED", b"quotaExceeded", b"userRateLimitExceeded")
"""Why a 403 of the Compute API is none of permissions."""
_MOST: Final = 60
"""Names in one call: a filter of 5 KB at most, in a URL."""
_PAGES: Final = 10
"""Pages of one answer; sixty instances fit into one, but a page may be empty and have another behind it."""
_REMEMBERED: Final = 10.0
"""Seconds; what a join takes, so that its three reads are one call."""
_V = TypeVar("_V")


class Compute:
    """One session with the Compute API; it belongs to the event loop that first used it."""

    def __init__(
        self,
        settings: GcpPlatform,
        observe: ObserveCall,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        page_size: int = 500,
    ) -> None:
        self._endpoint = settings.compute
        self._observe = observe
        self._page_size = page_size
        self._tokens = Tokens(settings, observe)
        self._http = CloudHttp(trust=lambda: trust(settings), proxy=settings.proxy, limits=_LIMITS)
        self._instances = Lookup(self._list, seconds=_REMEMBERED, most=_MOST, monotonic=monotonic)
        self._identities = Lookup(self._identity, seconds=inf, monotonic=monotonic)

    async def instance(self, place: InstanceRef, *, fresh: bool = False) -> ComputeInstance | None:
        """Return an instance, or None where there is none; raises Unavailable. A fresh answer is asked for now."""
        item = await self._instances.get((place.project, place.zone), place.name, fresh=fresh)
        if item is None:
            return None
        instance = _readable(lambda: parse_instance(item, place))
        return instance if fresh or instance.status == RUNNING else await self.instance(place, fresh=True)

    async def endorsement_keys(self, instance: ComputeInstance) -> frozenset[str] | None:
        """Return the fingerprints of an instance's endorsement keys, None if it is gone; raises Unavailable."""
        return await self._identities.get((instance.place.project, instance.place.zone, instance.number), "")

    async def aclose(self) -> None:
        """End what is under way and close the connections."""
        await self._instances.cancel()
        await self._identities.cancel()
        await self._tokens.aclose()
        await self._http.aclose()

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes | None:
        """Get a document; None where there is no such thing; raises Unavailable."""
        token = await self._tokens.token()
        answer = await self._ask(path, parameters, token)
        if answer.status == HTTPStatus.UNAUTHORIZED:  # revoked, or of a clock that is wrong: once more with another
            self._tokens.forget(token)
            answer = await self._ask(path, parameters, await self._tokens.token())
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if _outcome(answer) is not CallOutcome.OK:
            raise _refusal(answer)
        return answer.body

    async def _ask(self, path: str, parameters: Mapping[str, str], token: str) -> CloudResponse:
        started, outcome = time.monotonic(), CallOutcome.FAILED
        headers = {"Authorization": f"Bearer {token}"}
        try:
            answer = await self._http.exchange("GET", self._endpoint + path, parameters=parameters, headers=headers)
            outcome = _outcome(answer)
        except ExchangeError as error:
            outcome = error.outcome
            raise platform_unavailable(
                f"the Compute API at {self._endpoint} {error}",
                remedy="wait; if this stays, check platforms.gcp.endpoints, caBundle and proxy of the controller",
            ) from None
        finally:
            self._observe("compute", outcome, time.monotonic() - started)
        return answer

    async def _list(self, zone: tuple[str, str], names: Sequence[str]) -> Mapping[str, JsonObject]:
        words = " OR ".join(f'(name = "{name}")' for name in sorted(names))
        found: dict[str, JsonObject] = {}
        parameters = {"filter": words, "fields": FIELDS, "maxResults": str(self._page_size)}
        for _ in range(_PAGES):
            data = await self.get(_instances_of(*zone), parameters)
            if data is None:
                return found
            page = _readable(lambda data=data: parse_page(data))
            found.update({str(item.get("name")): item for item in page.items})
            if page.next_token is None:
                return found
            parameters["pageToken"] = page.next_token
        raise _unreadable("a list that ends")

    async def _identity(self, instance: tuple[str, str, str], _: Sequence[str]) -> Mapping[str, frozenset[str]]:
        project, zone, number = instance
        data = await self.get(f"{_instances_of(project, zone)}/{number}/getShieldedInstanceIdentity", {})
        if data is None:
            return {}
        keys = _readable(lambda: parse_instance_identity(data))
        if not keys:
            raise platform_unavailable(
                "the Compute API has no endorsement key of the instance yet",
                remedy="wait; if this stays, stop and start the instance, which makes its vTPM",
                retry_after=10.0,
            )
        return {"": keys}


def _instances_of(project: str, zone: str) -> str:
    return f"/compute/v1/projects/{quote(project, safe=':')}/zones/{zone}/instances"


def _outcome(answer: CloudResponse) -> CallOutcome:
    match answer.status:
        case HTTPStatus.OK if answer.body.lstrip().startswith(b"{"):
            return CallOutcome.OK
        case HTTPStatus.TOO_MANY_REQUESTS:
            return CallOutcome.THROTTLED
        case HTTPStatus.FORBIDDEN if any(word in answer.body for word in _QUOTA):
            return CallOutcome.THROTTLED
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN | HTTPStatus.NOT_FOUND:
            return CallOutcome.REFUSED
        case _:
            return CallOutcome.FAILED


def _refusal(answer: CloudResponse) -> Unavailable:
    match _outcome(answer):
        case CallOutcome.THROTTLED:
            what, remedy = "throttles", "wait; if this stays, raise the project's Compute read quota"
            wait = retry_after_seconds(answer.retry_after, default=_THROTTLED_FOR, longest=_LONGEST_WAIT)
        case CallOutcome.REFUSED:
            what, wait = "refuses the controller", 30.0
            remedy = (
                "grant the controller's service account compute.instances.list and "
                "compute.instances.getShieldedInstanceIdentity in this project"
            )
        case _:
            what, wait = "failed", 5.0
            remedy = "wait; if this stays, see Google Cloud's status and the controller's log"
    detail = f"the Compute API {what} (HTTP status {answer.status})"
    return platform_unavailable(detail, remedy=remedy, retry_after=wait)


def _readable(read: Callable[[], _V]) -> _V:
    """Read an answer; one that cannot be read is the platform's fault, and asked for again."""
    try:
        return read()
    except Denied as denied:
        raise _unreadable(denied.expected) from None


def _unreadable(expected: str) -> Unavailable:
    return platform_unavailable(
        f"the Compute API's answer cannot be read: expected {expected}",
        remedy="check that platforms.gcp.endpoints.compute is the Compute Engine API",
    )
