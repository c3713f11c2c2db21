"""Reading lists from Azure's Resource Manager: over HTTPS, in pages, within bounds.

Promises: only GET, only at the configured endpoint (a next page elsewhere is refused), no redirect, no proxy but a
configured one; an answer is bounded in time and size, and asked for unpacked, so that none grows here. A subscription
that is throttled is not asked again before the time that Azure names, and no other waits for it: Azure counts by
subscription. Every failure is ``Unavailable`` and says which call. What is not there is an empty list.
Leaves to others: which lists (``api.machines``), tokens (``api.tokens``).
Source: Azure, "Azure Resource Manager REST API", "Throttling Resource Manager requests", "Async paging with nextLink".
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from nodeattest_parsing import strict_json
from nodeattest_parsing.errors import ParseError
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.azure.api.tokens import Tokens
from nodeattest_providers.azure.config import AzurePlatform
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.platform import CallOutcome, ObserveCall

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["ResourceManager"]

_TIMEOUT: Final = 10.0
"""Seconds for one page; Azure answers within one or two."""
_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of a page; a machine has about 4 KiB, a page some hundred machines."""
_MAX_PAGES: Final = 100
_MAX_WAIT: Final = 120.0
"""Seconds of back-off at most, whatever is asked for."""
_WAIT: Final = 10.0
"""Seconds of back-off where none is asked for."""
_DIGITS: Final = 6
"""Of a number of seconds; more would only be cut to the most that we wait."""
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
        self._configuration = configuration
        self._endpoint = configuration.cloud.resource_manager
        self._tokens = tokens
        self._observe = observe
        self._monotonic = monotonic
        self._time_limit = time_limit
        self._blocked: dict[str, float] = {}
        self._session: ClientSession | None = None

    async def list(self, service: str, path: str, query: str) -> list[dict[str, object]]:
        """Return the objects of all pages; ``service`` names the call to whom counts calls. Raises Unavailable."""
        found: list[dict[str, object]] = []
        url: str | None = f"{self._endpoint}{path}?{query}"
        subscription = "/".join(path.split("/", 3)[:3])
        for _ in range(_MAX_PAGES):
            page = await self._page(service, url, subscription)
            found += _objects(page.get("value"))
            following = page.get("nextLink")
            if not following:
                return found
            if not isinstance(following, str) or not following.startswith(f"{self._endpoint}/"):
                raise _unavailable(service, "named a next page elsewhere")
            url = following
        raise _unavailable(service, f"has more than {_MAX_PAGES} pages")

    async def aclose(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        await self._tokens.aclose()

    async def _page(self, service: str, url: str, subscription: str) -> Mapping[str, object]:
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

    async def _ask(self, url: str, token: str) -> _Answer:
        """Send one request."""
        from aiohttp import ClientConnectionError, ClientError

        session = self._session = self._session or self._open()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Accept-Encoding": "identity"}
        try:
            async with session.get(
                url, headers=headers, allow_redirects=False, proxy=self._configuration.proxy
            ) as response:
                body = await _bounded(response)
                return _read(response.status, body, response.headers.get("Retry-After"))
        except TimeoutError:
            return _Answer(CallOutcome.TIMED_OUT)
        except ClientConnectionError:
            return _Answer(CallOutcome.UNREACHABLE)
        except (ClientError, ValueError):
            return _Answer(CallOutcome.FAILED)

    def _open(self) -> ClientSession:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        bundle = self._configuration.ca_bundle
        context = ssl.create_default_context(cafile=None if bundle is None else str(bundle))
        return ClientSession(
            connector=TCPConnector(ssl=context, limit=_CONNECTIONS),
            timeout=ClientTimeout(total=self._time_limit),
            cookie_jar=DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """How a request ended."""

    outcome: CallOutcome
    status: int = 0
    page: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    pause: float = _WAIT
    """Seconds that Azure asks to wait."""


async def _bounded(response: ClientResponse) -> bytes:
    """Read a body, and one byte more than is allowed at most."""
    body = bytearray()
    while len(body) <= _LIMIT and (more := await response.content.read(_LIMIT + 1 - len(body))):
        body += more
    return bytes(body)


def _read(status: int, body: bytes, retry_after: str | None) -> _Answer:
    match status:
        case HTTPStatus.OK:
            page = _object(body) if len(body) <= _LIMIT else None
            return _Answer(CallOutcome.FAILED if page is None else CallOutcome.OK, status, page or {})
        case HTTPStatus.NOT_FOUND:  # the subscription, the group or the scale set: nothing is in it
            return _Answer(CallOutcome.OK, status)
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return _Answer(CallOutcome.REFUSED, status)
        case HTTPStatus.TOO_MANY_REQUESTS:
            return _Answer(CallOutcome.THROTTLED, status, pause=_pause(retry_after))
        case _:
            return _Answer(CallOutcome.FAILED, status)


def _pause(retry_after: str | None) -> float:
    """Read Retry-After (RFC 9110 §10.2.3); Azure gives seconds."""
    if retry_after is None or not retry_after.isascii() or not retry_after.isdigit():
        return _WAIT
    return min(max(1.0, float(retry_after[:_DIGITS])), _MAX_WAIT)


def _object(body: bytes) -> JsonObject | None:
    try:
        return strict_json.parse_object(body, max_size=None, floats=True)
    except ParseError:
        return None


def _objects(value: object) -> list[dict[str, object]]:
    """Take the objects of a list; whatever else stands there is nothing that we know."""
    found = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, object]", one) for one in found if isinstance(one, dict)]


def _unavailable(service: str, what: str, *, remedy: str = _REMEDY, retry_after: float = _WAIT) -> Unavailable:
    detail = f"Azure's Resource Manager ({service}) {what}"
    return Unavailable(Reason.PLATFORM_UNAVAILABLE, detail, remedy=remedy, retry_after=retry_after)
