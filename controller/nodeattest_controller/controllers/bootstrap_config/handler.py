"""The webhook's resources: an API server POSTs an AdmissionReview and gets its answer.

Every request gets an answer within ``MAX_WAIT`` of its head. At most ``MAX_REVIEWS`` are worked on at one time, and
what they cost in memory is bounded from the first byte of a request to the last one of its answer. One client leaves
the others their share of both. No object, patch or token is logged or kept. Callers that were not verified are told
nothing of a policy but what is in their own request.
Out of scope: connections and client certificates (``nodeattest_serving.listener``), the verdicts (the reviewers).
Source: k8s.io/api admission/v1; apiserver pkg/admission/plugin/webhook/mutating (dispatcher.go).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_controller.controllers.bootstrap_config import admission_review, config_reviewer, policy_reviewer
from nodeattest_controller.controllers.bootstrap_config.admission_review import MAX_MESSAGE, AdmissionReview
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import ReadReview, Reviewer
from nodeattest_controller.controllers.bootstrap_config.decide import (
    AdmissionOutcome,
    Allow,
    Change,
    Refuse,
    Unable,
    Verdict,
)
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader
from nodeattest_controller.controllers.bootstrap_config.policy_reviewer import PolicyReviewer
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import RefusalReporter
from nodeattest_controller.controllers.bootstrap_config.renderer import PolicyRenderer
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_identity.addon.sidecar.fair_semaphore import FairSemaphore
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_parsing.values import one_line
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_serving.replies import Reply
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
_PLACE_WAIT: Final = 2.0
"""Seconds that a review waits for its turn; counted in ``MAX_WAIT``."""
_LINES, _LINE_RATE = 20, 1 / 10
"""Log lines about malformed reviews of all clients at once, and a second after that; metrics count all of them."""
_RETRY_AFTER: Final = 2
"""Seconds."""
_UNREADABLE_TO_ALL: Final = "cannot read the object's Cluster and policy; try again"
_BUSY: Final = "too many reviews at one time; try again"
_SLOW: Final = "expected the review's body within {:g} s"
_POLICY_SAYS_WHY: Final = (
    "its cluster's policy does not allow it: see the policy's status, Events of the machine's owner, and the "
    "controller's log"
)
"""What a caller that was not verified is told where the reason would name a policy, or quote it."""

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
        labelled = PolicyReviewer(reader.namespace, is_unlabelled=False)
        unlabelled = PolicyReviewer(reader.namespace, is_unlabelled=True)
        self._reviewers: Mapping[str, Reviewer] = {
            config_reviewer.PATH: config_reviewer.ConfigReviewer(reader, renderer, reporter, max_wait=max_wait),
            policy_reviewer.PATH: labelled,
            policy_reviewer.UNLABELLED_PATH: unlabelled,
        }
        self._metrics = metrics
        self._clock = clock
        self._max_wait = max_wait
        self._verifies_clients = verifies_clients
        self._client_names = frozenset(client_names)
        self._lines = RateLimiter(burst=_LINES, per_second=_LINE_RATE, clock=clock)
        self._held = Counter[str]()
        """Bytes, by client."""
        wait = min(_PLACE_WAIT, max_wait)
        self._places = FairSemaphore(
            limit=MAX_REVIEWS, limit_of_peer=MAX_REVIEWS_OF_CLIENT, max_waiting=_MAX_WAITING, timeout=wait
        )
        self._reading = FairSemaphore(limit=1, max_waiting=_MAX_WAITING, timeout=wait)
        """Whose turn it is to have a large review read."""

    @property
    def held(self) -> int:
        """Bytes that requests cost now."""
        return self._held.total()

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        """Answer an API server."""
        if self._client_names and not is_api_server(request.transport, self._client_names):
            return _text_reply(HTTPStatus.FORBIDDEN, "expected the client certificate of an API server")
        reviewer = self._reviewers.get(request.raw_path.partition("?")[0])
        if reviewer is None:
            return _text_reply(HTTPStatus.NOT_FOUND, f"expected {' or '.join(self._reviewers)}")
        misdirected = _misdirected(request)
        if misdirected is not None:
            return misdirected
        hold = _Hold(self._held, client)
        try:
            reply = await self._answer(reviewer, request, client, hold)
        except _RefusedError as refused:
            hold.release()
            return _text_reply(refused.status, str(refused))
        except BaseException:  # nobody is left to be answered
            hold.release()
            raise
        return replace(reply, written=hold.release)

    async def _answer(self, reviewer: Reviewer, request: web.BaseRequest, client: str, hold: _Hold) -> Reply:
        deadline = asyncio.get_running_loop().time() + self._max_wait
        try:
            async with asyncio.timeout_at(deadline):
                body = await _read_body(request, hold)
        except TimeoutError:
            raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, _SLOW.format(self._max_wait)) from None
        try:
            async with AsyncExitStack() as place:
                async with asyncio.timeout_at(deadline):
                    await place.enter_async_context(self._places.acquire(client))
                return await self._review(reviewer, body, client, hold, deadline)
        except (Unavailable, TimeoutError):
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, _BUSY) from None

    async def _review(self, reviewer: Reviewer, body: bytes, client: str, hold: _Hold, deadline: float) -> Reply:
        began = self._clock()
        try:
            async with asyncio.timeout_at(deadline):
                review = await self._read(reviewer, body, client, hold)
        except Denied as denied:
            if self._lines.take(""):
                what = fields(client=client, expected=denied.expected, got=denied.got)
                log.warning("not an AdmissionReview", extra=what)
            self._metrics.admission("", AdmissionOutcome.MALFORMED, self._clock() - began)
            return _text_reply(HTTPStatus.BAD_REQUEST, str(denied))
        verdict = await review.verdict(client, deadline)
        _log_verdict(reviewer, review.question, verdict)
        self._metrics.admission(review.question.kind, verdict.outcome, self._clock() - began)
        answer = _answer(review.question, verdict, tells_everything=self._verifies_clients)
        hold.resize(len(answer))
        return Reply(status=HTTPStatus.OK, body=answer)

    async def _read(self, reviewer: Reviewer, body: bytes, client: str, hold: _Hold) -> ReadReview:
        """Read a review; large ones one at a time, and they get at most half of the event loop's time."""
        if len(body) <= _SMALL:
            hold.resize(admission_review.cost(body))
            return reviewer.read(body)
        async with self._reading.acquire(client):
            began = time.monotonic()
            hold.resize(admission_review.cost(body))
            review = reviewer.read(body)
            await asyncio.sleep(time.monotonic() - began)
            return review


def is_api_server(transport: asyncio.BaseTransport | None, names: Collection[str]) -> bool:
    """Whether a client's verified certificate has one of these common names; of no names, any."""
    name = common_name(transport)
    return name is not None and (not names or name in names)


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
        if self._held[self._client] > MAX_HELD - self._held.total():  # a client leaves as much as it has
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at one time; try again")

    def release(self) -> None:
        """Hold nothing more."""
        self._held[self._client] -= self._size
        self._size = 0
        if not self._held[self._client]:
            del self._held[self._client]


class _RefusedError(Exception):
    """A request that is not reviewed."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


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


def _log_verdict(reviewer: Reviewer, question: AdmissionReview, verdict: Verdict | Unable) -> None:
    """Log a verdict, unless nothing happened; a topology's controller makes dry runs again and again."""
    if verdict.outcome in {AdmissionOutcome.UNCONCERNED, AdmissionOutcome.UNCHANGED}:
        return
    is_bad = verdict.outcome in {AdmissionOutcome.DENIED, AdmissionOutcome.UNAVAILABLE}
    level = logging.DEBUG if question.dry_run else logging.WARNING if is_bad else logging.INFO
    log.log(level, reviewer.log_message, extra=fields(**_reported(question, verdict)))


def _misdirected(request: web.BaseRequest) -> Reply | None:
    """Refuse what is no question to us, before its body is read."""
    if request.method != "POST":
        return _text_reply(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST", {"Allow": "POST"})
    if request.content_type != "application/json" or request.headers.get("Content-Encoding", "identity") != "identity":
        return _text_reply(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected Content-Type application/json")
    return None


def _answer(question: AdmissionReview, verdict: Verdict | Unable, *, tells_everything: bool) -> bytes:
    match verdict:
        case Allow():
            return admission_review.allowed(question.uid, warnings=_warnings(verdict, tells_everything))
        case Change():
            return admission_review.allowed(question.uid, verdict.patch)
        case Refuse(denied):
            message = _explain(denied, verdict.public, tells_everything)
            return admission_review.refused(question.uid, HTTPStatus.FORBIDDEN, denied.reason, message)
        case Unable(why):
            status, message = HTTPStatus.SERVICE_UNAVAILABLE, why if tells_everything else _UNREADABLE_TO_ALL
            return admission_review.refused(
                question.uid, status, "ServiceUnavailable", message, retry_after=_RETRY_AFTER
            )


def _warnings(verdict: Allow, tells_everything: bool) -> tuple[str, ...]:
    if verdict.because is None:
        return verdict.warnings
    *others, last = verdict.warnings
    return (*others, f"{last} {_explain(verdict.because, verdict.public, tells_everything)}")


def _explain(denied: Denied, public: str, tells_everything: bool) -> str:
    """Write a refusal for the caller; what contradicts the rendering is in the caller's own object."""
    if tells_everything or denied.reason is Reason.BOOTSTRAP_CONFIG_REFUSED:
        return str(denied)
    return f"{denied.reason}: {public or _POLICY_SAYS_WHY}"


def _reported(question: AdmissionReview, verdict: Verdict | Unable) -> dict[str, object]:
    reported: dict[str, object] = {
        "outcome": verdict.outcome,
        "kind": question.kind,
        "object": f"{question.namespace}/{question.name}",
        "operation": question.operation,
    }
    if question.dry_run:
        reported["dry_run"] = True
    match verdict:
        case Refuse():
            reported["reason"], reported["error"] = verdict.denied.reason, str(verdict.denied)
        case Unable():
            reported["error"] = verdict.why
        case Change():
            reported["changed"] = [str(operation["path"]) for operation in verdict.patch]
        case Allow():
            reported["warnings"] = list(_warnings(verdict, tells_everything=True))
    return reported


def _text_reply(status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> Reply:
    said = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": status.value,
        "message": one_line(message, MAX_MESSAGE),
    }
    return Reply(status=status, body=json.dumps(said).encode(), headers=headers or {})
