"""Reviews bootstrap configurations: reads them, gathers facts where these matter, and decides (``decide``).

If facts cannot be read, a change of machines' configuration is not decided, so that its creator tries again.
Everything else passes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview, Operation
from nodeattest_controller.controllers.bootstrap_config.decide import (
    LEFT_WITHOUT,
    AdmissionOutcome,
    Allow,
    Refuse,
    Unable,
    Verdict,
    decide,
    needs_machines,
    needs_names,
    needs_no_facts,
    refuse_unnamed,
)
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader, RenderFacts
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import RefusalReporter
from nodeattest_controller.controllers.bootstrap_config.renderer import PolicyRenderer
from nodeattest_controller.controllers.bootstrap_config.subject import Subject, subject_of
from nodeattest_kube.errors import ApiError
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable


@dataclass(frozen=True, slots=True)
class ReadReview:
    """A review that was read."""

    question: AdmissionReview
    settled: Verdict | None
    """The verdict, if it needs no facts."""

    async def verdict(self, client: str, deadline: float) -> Verdict | Unable:
        """Decide, before a time of the event loop's clock; ``client``: the caller's address."""
        del client, deadline
        return self.settled or Allow(AdmissionOutcome.UNCONCERNED)


class Reviewer(ABC):
    """Reads the reviews of one path."""

    log_message: ClassVar[str]
    """What its verdicts are logged as."""

    @abstractmethod
    def read(self, content: bytes) -> ReadReview:
        """Read a review; raises ``Denied``. It may be called in a thread."""


PATH: Final = "/mutate-bootstrap-config"
_UNREADABLE: Final = "cannot read the object's Cluster and policy: {}; try again"


class ConfigReviewer(Reviewer):
    """Reads reviews of KubeadmConfigs and KubeadmControlPlanes."""

    log_message: ClassVar[str] = "bootstrap configuration"

    def __init__(
        self, reader: FactReader, renderer: PolicyRenderer, reporter: RefusalReporter, *, max_wait: float
    ) -> None:
        self.reader = reader
        self.renderer = renderer
        self.reporter = reporter
        self.max_wait = max_wait
        """Seconds of a review, for messages."""

    def read(self, content: bytes) -> ReadReview:
        """Read a review, and decide where no facts are needed; raises ``Denied``."""
        question = admission_review.parse(content)
        subject = _subject(question, question.target) if question.operation is not None else None
        if subject is None:
            return ReadReview(question, Allow(AdmissionOutcome.UNCONCERNED))
        before = _subject(question, question.before) if question.operation is Operation.UPDATE else None
        return _ConfigReview(question, needs_no_facts(subject, before, self.renderer), self, subject, before)


@dataclass(frozen=True, slots=True)
class _ConfigReview(ReadReview):
    """One of an object that may be rendered."""

    reviewer: ConfigReviewer
    subject: Subject
    before: Subject | None

    async def verdict(self, client: str, deadline: float) -> Verdict | Unable:
        """Decide, with facts where they are needed."""
        if self.settled is not None:
            return self.settled
        subject, before = self.subject, self.before
        try:
            async with asyncio.timeout_at(deadline):
                return await self._informed(subject, before, reported_by=None if self.question.dry_run else client)
        except (ApiError, Unavailable) as error:
            why = str(error)
        except TimeoutError:
            why = f"the API server did not answer within {self.reviewer.max_wait:g} s"
        if before is not None and subject.cluster == before.cluster and not subject.changes(before):
            return Allow(AdmissionOutcome.LEFT)  # nothing that a machine is made of changes
        return Unable(_UNREADABLE.format(why))

    async def _informed(self, subject: Subject, before: Subject | None, *, reported_by: str | None) -> Verdict:
        facts = await self.reviewer.reader.of(subject)
        # A paused cluster is being moved: clusterctl makes its objects anew, as they are.
        if facts is None or facts.paused:
            return Allow(AdmissionOutcome.UNCONCERNED)
        verdict = await self._decided(subject, before, facts)
        if reported_by is not None:
            name = text(facts.cluster, "metadata", "name")
            self.reviewer.reporter.observe(subject, verdict, name, facts.policy_object, client=reported_by)
        return verdict

    async def _decided(self, subject: Subject, before: Subject | None, facts: RenderFacts) -> Verdict:
        if isinstance(facts.policy, Denied):
            if before is not None and not subject.changes(before):
                return Allow(AdmissionOutcome.LEFT, (LEFT_WITHOUT,), facts.policy)
            return Refuse(facts.policy)
        policy, cluster = facts.policy, facts.cluster
        unnamed = needs_names(subject, before, policy=policy, cluster=cluster, renderer=self.reviewer.renderer)
        if unnamed and not await self.reviewer.reader.makes_machines(subject):
            return refuse_unnamed(subject, policy)
        asked = policy.enforce and needs_machines(subject, before, self.reviewer.renderer)
        return decide(
            subject,
            before,
            policy=policy,
            cluster=cluster,
            has_machines=asked and await self.reviewer.reader.has_machines(cluster),
            renderer=self.reviewer.renderer,
        )


def _subject(question: AdmissionReview, whole: JsonObject) -> Subject | None:
    return subject_of(whole, group=question.group, kind=question.kind, namespace=question.namespace, name=question.name)
