"""The webhook's resources: an API server POSTs an AdmissionReview and gets its answer.

Every request gets an answer within ``MAX_WAIT`` of its head. At most ``MAX_REVIEWS`` are worked on at one time, and
what they cost in memory is bounded from the first byte of a request to the last one of its answer. One client leaves
the others their share of both. No object, patch or token is logged or kept. Callers that were not verified are told
nothing of a policy but what is in their own request.
Out of scope: connections and client certificates (``nodeattest_serving.http_server``), the verdicts (the reviewers).
Source: k8s.io/api admission/v1; apiserver pkg/admission/plugin/webhook/mutating (dispatcher.go).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_controller.controllers.bootstrap_config import admission_review, config_reviewer, policy_reviewer
from nodeattest_controller.controllers.bootstrap_config.admission_review import MAX_MESSAGE, AdmissionReview
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import ConfigReviewer
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import RefusalReporter
from nodeattest_controller.controllers.bootstrap_config.renderer import PolicyRenderer
from nodeattest_controller.controllers.bootstrap_config.verdict import UNCONCERNED, AdmissionOutcome, Verdict
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_identity.addon.sidecar.fair_semaphore import FairSemaphore
from nodeattest_kube.errors import ApiError
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.values import one_line
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_serving.http_server import Reply
from nodeattest_serving.tls import common_name

MAX_WAIT: Final = 4.0
"""Seconds for one review: its body, its turns and all its reads; the API server gives us five (``timeoutSeconds`` in
manifests/webhook)."""
MAX_HELD: Final = 64 << 20
"""Bytes that requests cost at one time: nine of the largest in ASCII, some thousands of usual ones."""
MAX_REVIEWS: Final = 16
MAX_REVIEWS_OF_CLIENT: Final = MAX_REVIEWS // 2
_MAX_WAITING: Final = 128
"""Each connection has one request."""
_SMALL: Final = 32 << 10
"""Bytes of a review that is read in a few milliseconds; usual ones have 10 KiB."""
_LINES, _LINE_RATE = 20, 1 / 10
"""Log lines about malformed reviews of all clients at once, and a second after that; metrics count all of them."""
_PATHS: Final = (config_reviewer.PATH, policy_reviewer.PATH, policy_reviewer.UNLABELLED_PATH)

log = logging.getLogger(__name__)


class AdmissionHandler:
    """Answers ``POST`` of AdmissionReviews."""

    def __init__(
        self,
        reader: FactReader,
        renderer: PolicyRenderer,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        reporter: RefusalReporter,
        verifies_clients: bool = False,
        client_names: Collection[str] = (),
        max_wait: float = MAX_WAIT,
    ) -> None:
        """``clock`` is monotonic seconds.

        ``verifies_clients``: each caller has shown a certificate. ``client_names``: its common name; empty: any.
        """
        self._configs = ConfigReviewer(reader, renderer, reporter)
        self._namespace = reader.namespace
        self._metrics = metrics
        self._clock = clock
        self._max_wait = max_wait
        self._verifies_clients = verifies_clients
        self._client_names = frozenset(client_names)
        self._lines = RateLimiter(burst=_LINES, per_second=_LINE_RATE, clock=clock)
        self._held = Counter[str]()
        """Bytes, by client."""
        self._places = FairSemaphore(
            limit=MAX_REVIEWS, limit_of_peer=MAX_REVIEWS_OF_CLIENT, max_waiting=_MAX_WAITING, timeout=max_wait
        )
        self._reading = FairSemaphore(limit=1, max_waiting=_MAX_WAITING, timeout=max_wait)
        """Whose turn it is to have a large review read."""

    @property
    def held(self) -> int:
        """Bytes that requests cost now."""
        return self._held.total()

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        """Answer an API server."""
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
        except BaseException:  # nobody is left to be answered
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
                        verdict = await self._configs.review_with_facts(question, client)
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

        Large ones are read one at a time, and get at most half of the event loop's time.
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
        if path == config_reviewer.PATH:
            return question, self._configs.review(question)
        if self._namespace not in {None, question.namespace}:  # another controller serves it
            return question, UNCONCERNED
        is_unlabelled, sections = path == policy_reviewer.UNLABELLED_PATH, len(body) <= policy_reviewer.MAX_SECTIONS
        return question, policy_reviewer.review(question, is_unlabelled=is_unlabelled, sections=sections)


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
    """What one request costs of the memory for all."""

    def __init__(self, held: Counter[str], client: str) -> None:
        self._held = held
        self._client = client
        self._size = 0

    def resize(self, size: int) -> None:
        """Hold so many bytes from now on; raises ``_RefusedError``."""
        self._held[self._client] += size - self._size
        self._size = size
        if not self._held[self._client]:
            del self._held[self._client]
        elif size and self._held[self._client] > MAX_HELD - self._held.total():  # a client leaves as much as it has
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at one time; try again")


async def _read_body(request: web.BaseRequest, hold: _Hold) -> bytes:
    """Read the body within what all may cost."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        hold.resize(len(body))
        if len(body) > admission_review.MAX_BODY:
            message = f"expected at most {admission_review.MAX_BODY} bytes"
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    return bytes(body)


def _log_verdict(path: str, question: AdmissionReview, verdict: Verdict) -> None:
    """Log a verdict, unless nothing happened; a topology's controller makes dry runs again and again."""
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
    message = "bootstrap configuration" if path == config_reviewer.PATH else "policy review"
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
