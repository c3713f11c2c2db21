"""Reading lists from Azure's Resource Manager, in pages.

Only GET, only at the configured endpoint: a next page elsewhere is refused. A throttled subscription is not asked
before the time that Azure names. What is not there is an empty list.
Source: Azure, "Azure Resource Manager REST API", "Throttling Resource Manager requests".
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import items
from nodeattest_parsing.values import JsonObject, JsonValue, ParseError
from nodeattest_providers.azure.api.tokens import Tokens
from nodeattest_providers.azure.config import AzurePlatform
from nodeattest_providers.cloud_http import CloudHttp, CloudResponse, ExchangeError, ResponseLimits, retry_after_seconds
from nodeattest_providers.errors import Unavailable, platform_unavailable
from nodeattest_providers.platform import CallOutcome, ObserveCall

_TIMEOUT: Final = 10.0
"""Seconds for one page; Azure answers within one or two."""
_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of a page; a machine has about 4 KiB, a page some hundred machines."""
_MAX_VALUES: Final = 200_000
"""Of a page; a thousand machines have some 100,000."""
_MAX_PAGES: Final = 100
_MAX_WAIT: Final = 120.0
"""Seconds of back-off at most, whatever is asked for."""
_WAIT: Final = 10.0
"""Seconds of back-off where none is asked for."""
_CONNECTIONS: Final = 8
_REMEDY: Final = "see to the Resource Manager and to platforms.azure in the controller's configuration"


class ResourceManager:
    """Asks for lists."""

    def __init__(
        self,
        configuration: AzurePlatform,
        tokens: Tokens,
        *,
        observe: ObserveCall,
        monotonic: Callable[[], float] = time.monotonic,
        time_limit: float = _TIMEOUT,
    ) -> None:
        """``time_limit``: seconds for one page."""
        self._endpoint = configuration.cloud.resource_manager
        self._tokens = tokens
        self._observe = observe
        self._monotonic = monotonic
        bundle = configuration.ca_bundle
        self._http = CloudHttp(
            trust=lambda: ssl.create_default_context(cafile=None if bundle is None else str(bundle)),
            proxy=configuration.proxy,
            limits=ResponseLimits(seconds=time_limit, answer_bytes=_LIMIT, connections=_CONNECTIONS),
        )
        self._blocked: dict[str, float] = {}

    async def list(self, service: str, path: str, query: str) -> list[JsonObject]:
        """Return the objects of all pages; ``service`` names the call to whom counts calls. Raises Unavailable."""
        found: list[JsonObject] = []
        url: str | None = f"{self._endpoint}{path}?{query}"
        subscription = "/".join(path.split("/", 3)[:3])
        for _ in range(_MAX_PAGES):
            page = await self._page(service, url, subscription)
            found += items(page, "value")
            following = page.get("nextLink")
            if not following:
                return found
            if not isinstance(following, str) or not following.startswith(f"{self._endpoint}/"):
                raise _unavailable(service, "named a next page elsewhere")
            url = following
        raise _unavailable(service, f"has more than {_MAX_PAGES} pages")

    async def aclose(self) -> None:
        """Close connections."""
        await self._http.aclose()
        await self._tokens.aclose()

    async def _page(self, service: str, url: str, subscription: str) -> JsonObject:
        wait = self._blocked.get(subscription, 0.0) - self._monotonic()
        if wait > 0:
            raise _unavailable(service, "is throttled", retry_after=wait)
        self._blocked.pop(subscription, None)
        token = await self._tokens.get()
        began = self._monotonic()
        answer = await self._ask(url, token)
        self._observe(service, answer.outcome, self._monotonic() - began)
        match answer.outcome:
            case CallOutcome.OK:
                return answer.page
            case CallOutcome.REFUSED:
                self._tokens.forget()
                remedy = "give the controller's identity the role of docs/providers/azure.md"
                detail = f"refused the controller (status {answer.status})"
                raise _unavailable(service, detail, remedy=remedy, retry_after=30.0)
            case CallOutcome.THROTTLED:
                self._blocked[subscription] = self._monotonic() + answer.pause
                raise _unavailable(service, "is throttled", retry_after=answer.pause)
            case _:
                status = f", status {answer.status}" if answer.status else ""
                raise _unavailable(service, f"gave no usable answer ({answer.outcome}{status})")

    async def _ask(self, url: str, token: str) -> _Page:
        """Send one request."""
        try:
            answer = await self._http.exchange("GET", url, headers={"Authorization": f"Bearer {token}"})
        except ExchangeError as error:
            return _Page(error.outcome)
        return _read(answer)


@dataclass(frozen=True, slots=True)
class _Page:
    """How a request for one page ended."""

    outcome: CallOutcome
    status: int = 0
    page: JsonObject = field(default_factory=dict[str, JsonValue], repr=False)
    pause: float = _WAIT


def _read(answer: CloudResponse) -> _Page:
    match answer.status:
        case HTTPStatus.OK:
            page = _object(answer.body)
            return _Page(CallOutcome.FAILED if page is None else CallOutcome.OK, answer.status, page or {})
        case HTTPStatus.NOT_FOUND:  # the subscription, the group or the scale set: nothing is in it
            return _Page(CallOutcome.OK, answer.status)
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return _Page(CallOutcome.REFUSED, answer.status)
        case HTTPStatus.TOO_MANY_REQUESTS:
            pause = retry_after_seconds(answer.retry_after, default=_WAIT, longest=_MAX_WAIT)
            return _Page(CallOutcome.THROTTLED, answer.status, pause=pause)
        case _:
            return _Page(CallOutcome.FAILED, answer.status)


def _object(body: bytes) -> JsonObject | None:
    try:
        return strict_json.parse_object(body, max_size=None, max_values=_MAX_VALUES, floats=True)
    except ParseError:
        return None


def _unavailable(service: str, what: str, *, remedy: str = _REMEDY, retry_after: float = _WAIT) -> Unavailable:
    detail = f"Azure's Resource Manager ({service}) {what}"
    return platform_unavailable(detail, remedy=remedy, retry_after=retry_after)
