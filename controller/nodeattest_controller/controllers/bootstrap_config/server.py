"""The webhook of one replica, which listens whether it leads or not: API servers call any replica.

Every request is answered within ``MAX_WAIT``. Work at one time and the memory of all requests are bounded, and one
client leaves the others a share of both. No object, patch or token is logged or kept. Callers that were not verified
learn nothing of a policy. An expired certificate makes the replica unhealthy.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web
from cryptography import x509

from nodeattest_controller.controllers.bootstrap_config import admission_review, decide
from nodeattest_controller.controllers.bootstrap_config.admission_review import (
    MAX_MESSAGE,
    UNCONCERNED,
    AdmissionOutcome,
    AdmissionReview,
    Verdict,
)
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH, ConfigReviewer, FactReader
from nodeattest_controller.controllers.bootstrap_config.render import render_for_policy
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import COMPONENT, Settings
from nodeattest_kube.addresses import parse_network
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.values import one_line
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_serving.bounded_server import ConnectionLimits, SettingsError, UnauthenticatedLimits
from nodeattest_serving.fair_semaphore import FairSemaphore
from nodeattest_serving.http_server import Reply
from nodeattest_serving.program import Listener
from nodeattest_serving.tls import ServingCertificate, common_name

MAX_WAIT: Final = 4.0
"""Seconds for one review: its body, its turns and all its reads; API servers wait for five (``timeoutSeconds``)."""
MAX_HELD: Final = 64 << 20
"""Bytes of all requests at one time: nine of the largest in ASCII, some thousands of usual ones."""
MAX_REVIEWS: Final = 16
MAX_REVIEWS_OF_CLIENT: Final = MAX_REVIEWS // 2
_MAX_WAITING: Final = 128
"""Each connection has one request."""
_SMALL: Final = 32 << 10
"""Bytes of a review that is read in a few milliseconds; usual ones have 10 KiB."""
_LINES, _LINE_RATE = 20, 1 / 10
"""Log lines about malformed reviews of all clients at once, and a second after that; metrics count all of them."""
_PATHS: Final = (PATH, decide.POLICY_PATH, decide.UNLABELLED_PATH)

log = logging.getLogger(__name__)


class AdmissionHandler:
    """Answers ``POST`` of AdmissionReviews."""

    def __init__(
        self,
        reader: FactReader,
        render: decide.Render,
        metrics: Metrics,
        events: EventRecorder,
        *,
        clock: Callable[[], float],
        verifies_clients: bool = False,
        client_names: Collection[str] = (),
        max_wait: float = MAX_WAIT,
    ) -> None:
        """``clock`` is monotonic seconds.

        ``verifies_clients``: each caller has shown a certificate. ``client_names``: its common name; empty: any.
        """
        self._configs = ConfigReviewer(reader, render, events, clock)
        self._namespace = reader.namespace
        self._metrics = metrics
        self._clock = clock
        self._max_wait = max_wait
        self._verifies_clients = verifies_clients
        self._client_names = frozenset(client_names)
        self._lines = RateLimiter(burst=_LINES, per_second=_LINE_RATE, clock=clock)
        self._held = Counter[str]()
        self._places = FairSemaphore(
            limit=MAX_REVIEWS, limit_of_peer=MAX_REVIEWS_OF_CLIENT, max_waiting=_MAX_WAITING, timeout=max_wait
        )
        self._reading = FairSemaphore(limit=1, max_waiting=_MAX_WAITING, timeout=max_wait)
        """Whose turn it is to have a large review read."""

    @property
    def held(self) -> int:
        return self._held.total()

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        path = request.raw_path.partition("?")[0]
        encoding = request.headers.get("Content-Encoding", "identity")
        if self._client_names and not is_api_server(request.transport, self._client_names):
            return _text_reply(HTTPStatus.FORBIDDEN, "expected the client certificate of an API server")
        if path not in _PATHS:
            return _text_reply(HTTPStatus.NOT_FOUND, f"expected {' or '.join(_PATHS)}")
        if request.method != "POST":
            return replace(_text_reply(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST"), headers={"Allow": "POST"})
        if request.content_type != "application/json" or encoding != "identity":
            return _text_reply(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected Content-Type application/json")
        hold = _Hold(self._held, client)
        try:
            reply = await self._answer(path, request, client, hold)
        except _RefusedError as refused:
            hold.resize(0)
            return _text_reply(refused.status, str(refused))
        except BaseException:  # the client is gone
            hold.resize(0)
            raise
        return replace(reply, written=lambda: hold.resize(0))

    async def _answer(self, path: str, request: web.BaseRequest, client: str, hold: _Hold) -> Reply:
        body: bytes | None = None
        question: AdmissionReview | None = None
        began = self._clock()
        try:
            async with asyncio.timeout(self._max_wait):
                body = await _read_body(request, hold)
                async with self._places.acquire(client):
                    began = self._clock()
                    question, verdict = await self._read(path, body, client, hold)
                    if verdict is None:
                        verdict = await self._configs.review_with_facts(question)
        except (ApiError, Unavailable, TimeoutError) as error:
            if body is None:
                message = f"expected the review's body within {self._max_wait:g} s"
                raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, message) from None
            if question is None:
                message = "too many reviews at one time; try again"
                raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, message) from None
            slow = f"the API server did not answer within {self._max_wait:g} s"
            verdict = self._configs.without_facts(question, slow if isinstance(error, TimeoutError) else str(error))
        except Denied as denied:
            if self._lines.take(""):
                what = fields(client=client, expected=denied.expected, got=denied.got)
                log.warning("not an AdmissionReview", extra=what)
            self._metrics.admission("", AdmissionOutcome.MALFORMED, self._clock() - began)
            raise _RefusedError(HTTPStatus.BAD_REQUEST, str(denied)) from None
        _log_verdict(path, question, verdict)
        self._metrics.admission(question.kind, verdict.outcome, self._clock() - began)
        answer = admission_review.answer(question.uid, verdict, is_verified=self._verifies_clients)
        hold.resize(len(answer))
        return Reply(status=HTTPStatus.OK, body=answer)

    async def _read(self, path: str, body: bytes, client: str, hold: _Hold) -> tuple[AdmissionReview, Verdict | None]:
        """Read a review, and decide it if it needs no facts; raises ``Denied``.

        Large reviews are read one at a time, and get at most half of the event loop's time.
        """
        if len(body) <= _SMALL:
            return self._review(path, body, hold)
        async with self._reading.acquire(client):
            began = time.monotonic()
            review = self._review(path, body, hold)
            await asyncio.sleep(time.monotonic() - began)
            return review

    def _review(self, path: str, body: bytes, hold: _Hold) -> tuple[AdmissionReview, Verdict | None]:
        hold.resize(admission_review.cost(body))
        question = admission_review.parse(body)
        if path == PATH:
            return question, self._configs.review(question)
        if self._namespace not in {None, question.namespace}:  # another controller serves it
            return question, UNCONCERNED
        is_unlabelled = path == decide.UNLABELLED_PATH
        return question, decide.review_policy(
            question, is_unlabelled=is_unlabelled, sections=len(body) <= decide.MAX_SECTIONS
        )


def is_api_server(transport: asyncio.BaseTransport | None, names: Collection[str]) -> bool:
    """Return whether a client's verified certificate has one of these common names; of no names, any."""
    name = common_name(transport)
    return name is not None and (not names or name in names)


class _RefusedError(Exception):
    """A request that is not reviewed."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Hold:
    """The share of one request in the memory of all."""

    def __init__(self, held: Counter[str], client: str) -> None:
        self._held = held
        self._client = client
        self._size = 0

    def resize(self, size: int) -> None:
        """Hold this many bytes from now on; raises ``_RefusedError``."""
        self._held[self._client] += size - self._size
        self._size = size
        if not self._held[self._client]:
            del self._held[self._client]
        elif size and self._held[self._client] > MAX_HELD - self._held.total():  # a client leaves as much as it has
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at one time; try again")


async def _read_body(request: web.BaseRequest, hold: _Hold) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        hold.resize(len(body))
        if len(body) > admission_review.MAX_BODY:
            message = f"expected at most {admission_review.MAX_BODY} bytes"
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    return bytes(body)


def _log_verdict(path: str, question: AdmissionReview, verdict: Verdict) -> None:
    """Log a verdict, unless nothing happened; dry runs, which a topology's controller repeats, at level debug."""
    if verdict.outcome in {AdmissionOutcome.UNCONCERNED, AdmissionOutcome.UNCHANGED}:
        return
    reported: dict[str, object] = {
        "outcome": verdict.outcome,
        "kind": question.kind,
        "object": f"{question.namespace}/{question.name}",
        "operation": question.operation,
        "dry_run": question.dry_run,
    }
    if verdict.denied is not None:
        reported["reason"] = verdict.denied.reason
    if not verdict.passes:
        reported["error"] = verdict.message(is_verified=True)
    elif verdict.patch:
        reported["changed"] = [str(operation["path"]) for operation in verdict.patch]
    else:
        reported["warnings"] = list(verdict.all_warnings(is_verified=True))
    level = logging.DEBUG if question.dry_run else logging.INFO if verdict.passes else logging.WARNING
    message = "bootstrap configuration" if path == PATH else "policy review"
    log.log(level, message, extra=fields(**reported))


def _text_reply(status: HTTPStatus, message: str) -> Reply:
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": status.value,
        "message": one_line(message, MAX_MESSAGE),
    }
    return Reply(status=status, body=json.dumps(document).encode())


class FileCertificate:
    """``tls.crt`` and ``tls.key`` of a folder."""

    def __init__(self, folder: Path, client_ca: Path | None = None, *, now: Callable[[], datetime]) -> None:
        """Read the files; raises the listener's ``SettingsError``."""
        self._certificate = folder / "tls.crt"
        self._now = now
        self.context: Final = ServingCertificate(self._certificate, folder / "tls.key", client_ca).context

    def trouble(self) -> str | None:
        """Return what is wrong with the certificate, or None."""
        try:
            certificate = x509.load_pem_x509_certificate(self._certificate.read_bytes())
        except OSError as error:
            return f"{self._certificate} cannot be read: {error.strerror}"
        except X509_ERRORS:
            return f"{self._certificate} holds no certificate in PEM"
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if begin <= self._now() < end:
            return None
        times = f"from {begin:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}"
        return f"{self._certificate} is valid {times}: check why its issuer does not renew it"


_LIMITS: Final = ConnectionLimits(connections=128, connections_of_client=128, connection_seconds=5.0)
"""All API servers may come from one address (kube-proxy), and each review is a connection; API servers wait for five
seconds."""
_MOST_UNAUTHENTICATED: Final = 128
"""Connections, and handshakes that begin in a second: 1.6 s for one of each of 200 addresses."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that listens."""

    port: int
    unhealthy: Callable[[], str | None]
    """Returns why API servers cannot call it, or None."""


@asynccontextmanager
async def serve_webhook(settings: Settings, client: ApiClient, metrics: Metrics) -> AsyncGenerator[Webhook | None]:
    """Serve controller ``bootstrap-config`` for the length of the block; None if it is off.

    Raises ``SettingsError`` if the address or the files cannot be used.
    """
    if settings.webhook_address is None or not settings.has_webhook:
        yield None
        return
    client_ca, names = settings.webhook_client_ca_file, settings.webhook_client_names
    # A recorder of its own: anybody may call the webhook, and must not use up the limits of Events about machines.
    events = EventRecorder(client, component=COMPONENT, instance=settings.identity, now=_now)
    handler = AdmissionHandler(
        FactReader(client, namespace=settings.watch_namespace, now=_now),
        render_for_policy,
        metrics,
        events,
        clock=time.monotonic,
        verifies_clients=client_ca is not None,
        client_names=names,
    )
    unauthenticated = UnauthenticatedLimits(
        is_unauthenticated=lambda transport: not is_api_server(transport, names),
        connections=_MOST_UNAUTHENTICATED,
        handshakes=_MOST_UNAUTHENTICATED,
    )
    try:
        certificate = FileCertificate(Path(settings.webhook_cert_dir or ""), client_ca, now=_now)
        listener = Listener(
            handler.handle,
            settings.webhook_address,
            certificate.context,
            _LIMITS,
            unauthenticated=None if client_ca is None else unauthenticated,
            allowed=tuple(map(parse_network, settings.webhook_allowed_cidrs)),
        )
        await listener.start()
    except SettingsError as error:
        raise SettingsError(f"webhook: {error}") from None
    try:
        yield Webhook(listener.port, certificate.trouble)
    finally:
        await listener.stop()
        await events.drain()


def _now() -> datetime:
    return datetime.now(UTC)
