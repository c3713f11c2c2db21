"""The node's side of a cloud's metadata service: one request, one bounded answer, asked again while it is busy.

Failures are ``Unavailable`` and show no header or body: tokens travel in both.
Source: AWS "Use IMDSv2", Azure "Instance Metadata Service" (errors), Google "View and query VM metadata".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR, socket
from threading import Event, Timer
from time import monotonic, sleep
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from nodeattest_providers.config_fields import Section
from nodeattest_providers.errors import Unavailable, platform_unavailable
from nodeattest_providers.node_interface import Attestor, JsonValue

_DOCUMENTED: Final = "http://169.254.169.254"
"""Where every cloud's metadata service is; no name server is trusted with it."""
_HTTP_PORT: Final = 80
TIMEOUT: Final = 2.0
"""Seconds for a whole request; the service answers within milliseconds or is not there."""
LIMIT: Final = 64 * 1024
"""Bytes of an answer; attested documents have about 8 KiB."""
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_OK: Final = 200
_BUSY: Final = frozenset({410, 429, 500, 502, 503, 504})
"""Statuses of a service that throttles, fails or restarts; Azure's says 410 (Gone) while it is updated."""
_PAUSES: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt."""
_PAUSE_BUDGET: Final = 20.0
"""Seconds of pauses for all requests together, so that all of them fit the agent's default timeout."""
_CHECK: Final = "check that this machine is an instance of that cloud and that nothing blocks its metadata service"
_WAIT: Final = (
    "try again in a few minutes; if this stays, see which programs of this machine ask the metadata service often, and "
    "the cloud's status page"
)


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """What came back, whatever the status."""

    status: int
    body: bytes = field(repr=False)


class MetadataService:
    """Asks one metadata service."""

    def __init__(
        self,
        origin: str | None,
        *,
        name: str,
        timeout: float = TIMEOUT,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        parts = urlsplit(origin or _DOCUMENTED)
        self._host, self._port = parts.hostname or "", parts.port or _HTTP_PORT
        self._name = name
        self._timeout = timeout
        self._sleep = sleep
        self._pauses_left = _PAUSE_BUDGET
        self._attempts = 0

    def ask(self, method: str, path: str, headers: Mapping[str, str] = _NO_HEADERS) -> MetadataResponse:
        """Send a request, again while the service is busy; raises Unavailable when no whole answer came."""
        answer, self._attempts = self._ask_once(method, path, headers), 1
        for pause in _PAUSES:
            if answer.status not in _BUSY or pause > self._pauses_left:
                break
            self._pauses_left -= pause
            self._sleep(pause)
            answer = self._ask_once(method, path, headers)
            self._attempts += 1
        return answer

    def _ask_once(self, method: str, path: str, headers: Mapping[str, str]) -> MetadataResponse:
        from http.client import HTTPConnection, HTTPException, IncompleteRead

        connection = HTTPConnection(self._host, self._port, timeout=self._timeout)
        late, end, begun = Event(), None, monotonic()
        try:
            connection.connect()
            left = self._timeout - (monotonic() - begun)
            end = Timer(max(left, 0.0), _cut, (connection.sock, late))
            end.daemon = True
            end.start()
            connection.request(method, path, headers={"Connection": "close", **headers})
            response = connection.getresponse()
            body = response.read(LIMIT + 1)
            if response.length and len(body) <= LIMIT:
                raise IncompleteRead(body)
            if late.is_set():
                raise TimeoutError
        except (OSError, HTTPException, ValueError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise self._unavailable(f"did not answer within {self._timeout:g} s") from None
            if isinstance(error, OSError):
                raise self._unavailable(f"cannot be reached: {error.strerror or type(error).__name__}") from None
            raise self._unavailable(f"gave no HTTP answer ({type(error).__name__})") from None
        finally:
            if end is not None:
                end.cancel()
            connection.close()
        if len(body) > LIMIT:
            raise self._unavailable(f"gave more than {LIMIT} bytes")
        return MetadataResponse(response.status, body)

    def get(self, path: str, headers: Mapping[str, str] = _NO_HEADERS) -> bytes:
        answer = self.ask("GET", path, headers)
        if answer.status != _OK:
            raise self.refused(path, answer.status)
        return answer.body

    def refused(self, path: str, status: int) -> Unavailable:
        """Say that the service answered with another status than 200; a query may hold a nonce, and is left out."""
        answered = f"answered {path.partition('?')[0]} with status {status}"
        if status in _BUSY:
            return self._unavailable(f"is busy or unavailable: it {answered} at attempt {self._attempts}", _WAIT)
        return self._unavailable(answered)

    def _unavailable(self, what: str, remedy: str = _CHECK) -> Unavailable:
        return platform_unavailable(f"{self._name} at {self._host}:{self._port} {what}", remedy=remedy)


def _cut(connection: socket, late: Event) -> None:
    """End a request whose time is over: a service that drips would go on for ever, each step of it in time."""
    late.set()
    with suppress(OSError):  # it was closed meanwhile
        connection.shutdown(SHUT_RDWR)


class MetadataAttestor(Attestor):
    """The attestor of a cloud, whose metadata service proves the machine. Its one setting is ``metadataEndpoint``."""

    versions: tuple[int, ...] = (1,)
    service_name: str

    def __init__(self, settings: Mapping[str, JsonValue], *, sleep: Callable[[float], None] = sleep) -> None:
        section = Section(settings, self.provider, ("metadataEndpoint",))
        origin = section.origin("metadataEndpoint", ("http",))
        self._service = MetadataService(origin, name=self.service_name, sleep=sleep)

    def _unusable(self, what: str) -> Unavailable:
        return platform_unavailable(
            f"{self.service_name} gave {what}",
            remedy="try again; if this comes back, check what answers at the metadata service's address",
        )
