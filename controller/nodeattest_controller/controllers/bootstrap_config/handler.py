"""The webhook's resources: an API server POSTs an AdmissionReview and gets its answer.

Promises: every request gets an answer within ``MAX_WAIT`` of its head, whatever it holds and however slowly its body
comes; what is no AdmissionReview of v1 is a 400 that says so; no object, no patch and no token is logged, nor kept.
At most ``MOST_REVIEWS`` are worked on at one time, and what they cost in memory is bounded from the first byte of a
request to the last one of its answer; of both, and of the thread that reads large reviews, one client leaves the others
their share. Callers that were not verified are told nothing of a policy but what is in their own request.
Leaves to others: connections and client certificates (``nodeattest_serving.listener``), the verdicts
(``config_reviewer``, ``policy_reviewer``).
Source: k8s.io/api admission/v1; apiserver pkg/admission/plugin/webhook/mutating (dispatcher.go).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from nodeattest_controller.controllers.bootstrap_config import admission_review, config_reviewer, policy_reviewer
from nodeattest_controller.controllers.bootstrap_config.admission_review import MAX_MESSAGE, AdmissionReview
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import ReadReview, Reviewer
from nodeattest_controller.controllers.bootstrap_config.decide import (
    AdmissionOutcome,
    Allow,
    Change,
    Refuse,
    Renderer,
    Unable,
    Verdict,
)
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader
from nodeattest_controller.controllers.bootstrap_config.policy_reviewer import PolicyReviewer
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import RefusalReporter
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_identity.addon.sidecar.fair_semaphore import FairSemaphore
from nodeattest_kube.fair_queue import RateLimiter
from nodeattest_parsing.values import one_line
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_serving.connection_slots import ProvenClients
from nodeattest_serving.replies import Reply
from nodeattest_serving.tls import common_name

MAX_WAIT: Final = 4.0
"""Seconds for one review: its body, its turns and all its reads; the API server gives us five (``timeoutSeconds`` in
manifests/webhook)."""
MOST_HELD: Final = 64 << 20
"""Bytes that requests cost at one time: nine of the largest in ASCII, some thousands of usual ones."""
MOST_HELD_OF_CLIENT: Final = MOST_HELD // 2
"""Of one client; and of all clients together that have not sent a valid review yet."""
MOST_REVIEWS: Final = 16
MOST_REVIEWS_OF_CLIENT: Final = MOST_REVIEWS // 2
_MOST_WAITING: Final = 128
"""Each connection has one request."""
P = ParamSpec("P")
T = TypeVar("T")
_SMALL: Final = 32 << 10
"""Bytes of a review that is read in the event loop, in a few milliseconds; usual ones have 10 KiB."""
_PLACE_WAIT: Final = 2.0
"""Seconds that a review waits for its turn, and for the thread; counted in ``MAX_WAIT``."""
_LARGE: Final = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
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

_LOG: Final = logging.getLogger(__name__)


class AdmissionHandler:
    """Answers ``POST`` of AdmissionReviews."""

    def __init__(
        self,
        reader: FactReader,
        renderer: Renderer,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        reporter: RefusalReporter,
        verifies_clients: bool = False,
        client_names: Collection[str] = (),
        proven: ProvenClients | None = None,
        max_wait: float = MAX_WAIT,
    ) -> None:
        """``clock`` is monotonic seconds.

        ``verifies_clients``: each caller has shown a certificate. ``client_names``: its common name; empty: any.
        ``proven``: gets the address of each caller that sends an AdmissionReview.
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
        self._proven = ProvenClients(clock=clock) if proven is None else proven
        self._lines = RateLimiter(burst=_LINES, per_second=_LINE_RATE, clock=clock)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reviews")
        self._held = Counter[str]()
        """Bytes, by client."""
        wait = min(_PLACE_WAIT, max_wait)
        self._places = FairSemaphore(
            limit=MOST_REVIEWS, limit_of_peer=MOST_REVIEWS_OF_CLIENT, max_waiting=_MOST_WAITING, timeout=wait
        )
        self._reading = FairSemaphore(limit=1, max_waiting=_MOST_WAITING, timeout=wait)
        """Whose turn the thread is: clients take turns there, too."""

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
        refused = _misdirected(request)
        if refused is not None:
            return refused
        hold = _Hold(self._held, client, self._proven)
        deadline = asyncio.get_running_loop().time() + self._max_wait
        try:
            async with asyncio.timeout_at(deadline):
                body = await _read_body(request, hold)
        except TimeoutError:
            hold.release()
            return _text_reply(HTTPStatus.REQUEST_TIMEOUT, _SLOW.format(self._max_wait))
        except _TooMuchError as error:
            hold.release()
            return _text_reply(error.status, str(error))
        except BaseException:  # nobody is left to be answered
            hold.release()
            raise
        return await self._in_turn(reviewer, body, client, hold, deadline)

    async def _in_turn(self, reviewer: Reviewer, body: bytearray, client: str, hold: _Hold, deadline: float) -> Reply:
        try:
            async with AsyncExitStack() as place:
                async with asyncio.timeout_at(deadline):
                    await place.enter_async_context(self._places.acquire(client))
                reply = await self._review(reviewer, body, client, hold, deadline)
        except _TooMuchError as error:
            reply = _text_reply(error.status, str(error))
        except (Unavailable, TimeoutError):
            reply = _text_reply(HTTPStatus.SERVICE_UNAVAILABLE, _BUSY)
        except BaseException:  # nobody is left to be answered
            hold.release()
            raise
        return replace(reply, written=hold.release)

    async def _review(self, reviewer: Reviewer, body: bytearray, client: str, hold: _Hold, deadline: float) -> Reply:
        began = self._clock()
        content = bytes(body)
        body.clear()
        try:
            async with asyncio.timeout_at(deadline), self._turn_to_read(content, client):
                hold.resize(await self._apart(content, hold, admission_review.cost, content))
                seen = await self._apart(content, hold, reviewer.read, content)
        except Denied as denied:
            if self._lines.take(""):
                what = fields(client=client, expected=denied.expected, got=denied.got)
                _LOG.warning("not an AdmissionReview", extra=what)
            self._metrics.admission("", AdmissionOutcome.MALFORMED, self._clock() - began)
            return _text_reply(HTTPStatus.BAD_REQUEST, str(denied))
        del content
        self._proven.add(client)
        question = seen.question
        verdict = await _logged(reviewer, seen, client, deadline)
        self._metrics.admission(question.kind, verdict.outcome, self._clock() - began)
        answer = _answer(question, verdict, tells_everything=self._verifies_clients)
        hold.resize(len(answer))
        return Reply(status=HTTPStatus.OK, body=answer)

    def _turn_to_read(self, content: bytes, client: str) -> AbstractAsyncContextManager[None]:
        return nullcontext() if len(content) <= _SMALL else self._reading.acquire(client)

    async def _apart(self, content: bytes, hold: _Hold, work: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
        """Call what takes time with a large review in a thread: one at a time, so that it delays nobody much.

        A thread cannot be cancelled: what it holds counts until it is done, also where the deadline was before.
        """
        if len(content) <= _SMALL:
            return work(*values, **named)
        call = self._thread.submit(work, *values, **named)
        hold.keep_until_done(call)
        return await asyncio.wrap_future(call)


def is_api_server(transport: asyncio.BaseTransport | None, names: Collection[str]) -> bool:
    """Whether a client's verified certificate has one of these common names; of no names, any."""
    name = common_name(transport)
    return name is not None and (not names or name in names)


class _Hold:
    """What one request costs of the memory for all."""

    def __init__(self, held: Counter[str], client: str, proven: ProvenClients) -> None:
        self._held = held
        self._client = client
        self._proven = proven
        self._size = 0
        self._calls = 0
        """Under way in the thread."""
        self._released = False

    def keep_until_done(self, call: Future[T]) -> None:
        """Hold on while a thread has the body, whatever is released meanwhile."""
        loop = asyncio.get_running_loop()
        self._calls += 1

        def done(_call: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody counts
                loop.call_soon_threadsafe(self._end_call)

        call.add_done_callback(done)

    def _end_call(self) -> None:
        self._calls -= 1
        if self._released:
            self.release()

    def resize(self, size: int) -> None:
        """Hold so many bytes from now on; raises ``_TooMuchError``."""
        self._held[self._client] += size - self._size
        self._size = size
        peers = {self._client}
        if self._client not in self._proven:
            peers = {client for client in self._held if client not in self._proven}
        if sum(self._held[client] for client in peers) > MOST_HELD_OF_CLIENT or self._held.total() > MOST_HELD:
            raise _TooMuchError(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at one time; try again")

    def release(self) -> None:
        """Hold nothing more, as soon as no thread has the body."""
        self._released = True
        if self._calls:
            return
        self._held[self._client] -= self._size
        self._size = 0
        if not self._held[self._client]:
            del self._held[self._client]


class _TooMuchError(Exception):
    """A body that is not taken."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


async def _read_body(request: web.BaseRequest, hold: _Hold) -> bytearray:
    """Read the body within what all may cost."""
    kept = bytearray()
    async for chunk in request.content.iter_any():
        kept += chunk
        hold.resize(len(kept))
        if len(kept) > admission_review.MAX_BODY:
            raise _TooMuchError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {admission_review.MAX_BODY} bytes"
            )
    return kept


async def _logged(reviewer: Reviewer, seen: ReadReview, client: str, deadline: float) -> Verdict | Unable:
    """Decide, and log it unless nothing happened."""
    question, verdict = seen.question, await seen.verdict(client, deadline)
    if verdict.outcome not in {AdmissionOutcome.UNCONCERNED, AdmissionOutcome.UNCHANGED}:
        more = fields(**_reported(question, verdict))
        _LOG.log(_level_of(question, verdict), reviewer.log_message, extra=more)
    return verdict


def _level_of(question: AdmissionReview, verdict: Verdict | Unable) -> int:
    """Choose the level: a topology's controller makes dry runs of each object, again and again."""
    if question.dry_run:
        return logging.DEBUG
    wrong = verdict.outcome in {AdmissionOutcome.DENIED, AdmissionOutcome.UNAVAILABLE}
    return logging.WARNING if wrong else logging.INFO


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
