"""The webhook's one resource: an API server POSTs an AdmissionReview and gets its answer.

Promises: every request gets an answer within ``MAX_WAIT``, whatever it holds; what is no AdmissionReview of v1 is a 400
that says so; no object, no patch and no token is logged, nor kept. Where facts cannot be had, what concerns the
configuration of machines is refused with 503, for its creator to try again, and the rest passes.
Leaves to others: connections (``nodeattest_serving.listener``), the verdict (``decide``).
Source: k8s.io/api admission/v1; apiserver pkg/admission/plugin/webhook/mutating (dispatcher.go).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview, Operation
from nodeattest_controller.controllers.bootstrap_config.decide import (
    AdmissionOutcome,
    Allow,
    Change,
    Refuse,
    Renderer,
    Verdict,
    decide,
    needs_machines,
    needs_names,
    needs_no_facts,
    refuse_unnamed,
)
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader, RenderFacts
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import RefusalReporter
from nodeattest_controller.controllers.bootstrap_config.subject import Subject, subject_of
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.objects import text
from nodeattest_kube.client import ApiError
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_serving.replies import Reply

__all__ = ["PATH", "AdmissionHandler"]

PATH: Final = "/mutate-bootstrap-config"
MAX_WAIT: Final = 4.0
"""Seconds for all reads of one review; the API server gives us five (``timeoutSeconds`` in manifests/webhook)."""
MOST_HELD: Final = 64 << 20
"""Bytes of bodies in memory at one time: sixteen of the largest, some thousands of usual ones."""
_LARGE: Final = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
_RETRY_AFTER: Final = 2
"""Seconds."""
_UNREADABLE: Final = "cannot read the object's Cluster and policy: {}; try again"

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Unable:
    """Facts could not be had."""

    why: str
    outcome: AdmissionOutcome = AdmissionOutcome.UNAVAILABLE


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
        max_wait: float = MAX_WAIT,
    ) -> None:
        """``clock`` is monotonic seconds."""
        self._reader = reader
        self._renderer = renderer
        self._metrics = metrics
        self._clock = clock
        self._reporter = reporter
        self._max_wait = max_wait
        self._held = 0

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        """Answer an API server."""
        began = self._clock()
        refused = _misdirected(request)
        if refused is not None:
            return refused
        try:
            body = await self._body(request)
        except _TooMuchError as error:
            return _text_reply(error.status, str(error))
        try:
            question = admission_review.parse(body)
        except Denied as denied:
            _LOG.warning(
                "not an AdmissionReview", extra=fields(client=client, expected=denied.expected, got=denied.got)
            )
            self._metrics.admission("", AdmissionOutcome.MALFORMED, self._clock() - began)
            return _text_reply(HTTPStatus.BAD_REQUEST, str(denied))
        del body
        verdict = await self._verdict(question)
        self._metrics.admission(question.kind, verdict.outcome, self._clock() - began)
        return Reply(status=HTTPStatus.OK, body=_answer(question, verdict))

    async def _verdict(self, question: AdmissionReview) -> Verdict | _Unable:
        """Decide, and log it unless nothing happened."""
        verdict = await self._evaluate(question)
        if verdict.outcome not in {AdmissionOutcome.UNCONCERNED, AdmissionOutcome.UNCHANGED}:
            _LOG.log(
                _level_of(question, verdict), "bootstrap configuration", extra=fields(**_reported(question, verdict))
            )
        return verdict

    async def _evaluate(self, question: AdmissionReview) -> Verdict | _Unable:
        if question.operation is None:
            return Allow(AdmissionOutcome.UNCONCERNED)
        subject, before = _subject(question, new=True), None
        if question.operation is Operation.UPDATE:
            before = _subject(question, new=False)
        if subject is None:
            return Allow(AdmissionOutcome.UNCONCERNED)
        settled = needs_no_facts(subject, before, self._renderer)
        if settled is not None:
            return settled
        try:
            async with asyncio.timeout(self._max_wait):
                return await self._informed(subject, before, report=not question.dry_run)
        except (ApiError, Unavailable) as error:
            why = str(error)
        except TimeoutError:
            why = f"the API server did not answer within {self._max_wait:g} s"
        if before is not None and subject.cluster == before.cluster and not subject.changes(before):
            return Allow(AdmissionOutcome.LEFT)  # nothing that a machine is made of changes
        return _Unable(_UNREADABLE.format(why))

    async def _informed(self, subject: Subject, before: Subject | None, *, report: bool) -> Verdict:
        facts = await self._reader.of(subject)
        # A paused cluster is being moved: clusterctl makes its objects anew, as they are.
        if facts is None or facts.paused:
            return Allow(AdmissionOutcome.UNCONCERNED)
        verdict = await self._decided(subject, before, facts)
        if report:
            self._reporter.observe(subject, verdict, text(facts.cluster, "metadata", "name"), facts.policy_object)
        return verdict

    async def _decided(self, subject: Subject, before: Subject | None, facts: RenderFacts) -> Verdict:
        if isinstance(facts.policy, Denied):
            if before is not None and not subject.changes(before):
                return Allow(AdmissionOutcome.LEFT, (f"left without attestation: {facts.policy}",))
            return Refuse(facts.policy)
        policy, cluster = facts.policy, facts.cluster
        unnamed = needs_names(subject, before, policy=policy, cluster=cluster, renderer=self._renderer)
        if unnamed and not await self._reader.makes_machines(subject):
            return refuse_unnamed(subject, policy)
        asked = policy.enforce and needs_machines(subject, before, self._renderer)
        return decide(
            subject,
            before,
            policy=policy,
            cluster=cluster,
            has_machines=asked and await self._reader.has_machines(cluster),
            renderer=self._renderer,
        )

    async def _body(self, request: web.BaseRequest) -> bytes:
        """Read the body within what all bodies may take; the connection's time limit bounds how long it takes."""
        kept = bytearray()
        try:
            async for chunk in request.content.iter_any():
                kept += chunk
                self._held += len(chunk)
                if len(kept) > admission_review.MAX_BODY:
                    raise _TooMuchError(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {admission_review.MAX_BODY} bytes"
                    )
                if self._held > MOST_HELD:
                    raise _TooMuchError(
                        HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at one time; try again"
                    )
        finally:
            self._held -= len(kept)
        return bytes(kept)


class _TooMuchError(Exception):
    """A body that is not taken."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


def _level_of(question: AdmissionReview, verdict: Verdict | _Unable) -> int:
    """Choose the level: a topology's controller makes dry runs of each object, again and again."""
    if question.dry_run:
        return logging.DEBUG
    return logging.WARNING if isinstance(verdict, Refuse | _Unable) else logging.INFO


def _misdirected(request: web.BaseRequest) -> Reply | None:
    """Refuse what is no question to us, before its body is read."""
    if request.raw_path.partition("?")[0] != PATH:
        return _text_reply(HTTPStatus.NOT_FOUND, f"expected {PATH}")
    if request.method != "POST":
        return _text_reply(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST", {"Allow": "POST"})
    if request.content_type != "application/json" or request.headers.get("Content-Encoding", "identity") != "identity":
        return _text_reply(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected Content-Type application/json")
    return None


def _subject(question: AdmissionReview, *, new: bool) -> Subject | None:
    whole = question.target if new else question.before
    return subject_of(whole, group=question.group, kind=question.kind, namespace=question.namespace, name=question.name)


def _answer(question: AdmissionReview, verdict: Verdict | _Unable) -> bytes:
    match verdict:
        case Allow():
            return admission_review.allowed(question.uid, warnings=verdict.warnings)
        case Change():
            return admission_review.allowed(question.uid, verdict.patch, verdict.warnings)
        case Refuse():
            return admission_review.refused(
                question.uid, HTTPStatus.FORBIDDEN, verdict.denied.reason, str(verdict.denied)
            )
        case _Unable():
            status = HTTPStatus.SERVICE_UNAVAILABLE
            return admission_review.refused(
                question.uid, status, "ServiceUnavailable", verdict.why, retry_after=_RETRY_AFTER
            )


def _reported(question: AdmissionReview, verdict: Verdict | _Unable) -> dict[str, object]:
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
        case _Unable():
            reported["error"] = verdict.why
        case Change():
            reported["changed"] = [str(operation["path"]) for operation in verdict.patch]
        case Allow():
            reported["warnings"] = list(verdict.warnings)
    return reported


def _text_reply(status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> Reply:
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.value, "message": message}
    return Reply(status=status, body=json.dumps(said).encode(), headers=headers or {})
