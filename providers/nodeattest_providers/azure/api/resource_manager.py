"""Reading lists from Azure's Resource Manager, in pages.

Only GET, only at the configured endpoint: a next page elsewhere is refused. A throttled subscription is not asked
before the time that Azure names. What is not there is an empty list.
Source: Azure, "Azure Resource Manager REST API", "Throttling Resource Manager requests".
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import items
from nodeattest_parsing.values import JsonObject, ParseError
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
        began, outcome = self._monotonic(), CallOutcome.FAILED
        try:
            answer = await self._http.exchange("GET", url, headers={"Authorization": f"Bearer {token}"})
            page = _object(answer)
            outcome = _OUTCOMES.get(answer.status, CallOutcome.OK if page is not None else CallOutcome.FAILED)
        except ExchangeError as error:
            outcome = error.outcome
            raise _unavailable(service, f"gave no usable answer ({outcome})") from None
        finally:
            self._observe(service, outcome, self._monotonic() - began)
        if page is not None:
            return page
        if outcome is CallOutcome.THROTTLED:
            pause = retry_after_seconds(answer.retry_after, default=_WAIT, longest=_MAX_WAIT)
            self._blocked[subscription] = self._monotonic() + pause
            raise _unavailable(service, "is throttled", retry_after=pause)
        if outcome is CallOutcome.REFUSED:
            self._tokens.forget()
            remedy = "give the controller's identity the role of docs/providers/azure.md"
            detail = f"refused the controller (status {answer.status})"
            raise _unavailable(service, detail, remedy=remedy, retry_after=30.0)
        raise _unavailable(service, f"gave no usable answer ({outcome}, status {answer.status})")


_OUTCOMES: Final[dict[int, CallOutcome]] = {
    HTTPStatus.UNAUTHORIZED: CallOutcome.REFUSED,
    HTTPStatus.FORBIDDEN: CallOutcome.REFUSED,
    HTTPStatus.TOO_MANY_REQUESTS: CallOutcome.THROTTLED,
}


def _object(answer: CloudResponse) -> JsonObject | None:
    """Read a page; empty where the subscription, the group or the scale set is not there."""
    if answer.status == HTTPStatus.NOT_FOUND:
        return {}
    if answer.status != HTTPStatus.OK:
        return None
    try:
        return strict_json.parse_object(answer.body, max_size=None, max_values=_MAX_VALUES, floats=True)
    except ParseError:
        return None


def _unavailable(service: str, what: str, *, remedy: str = _REMEDY, retry_after: float = _WAIT) -> Unavailable:
    detail = f"Azure's Resource Manager ({service}) {what}"
    return platform_unavailable(detail, remedy=remedy, retry_after=retry_after)
