"""What reads and decides the reviews of one path. Interfaces.

Reviews of bootstrap configurations: reads them, gathers facts where these matter, and decides.

Promises: where facts cannot be had, what concerns the configuration of machines is not decided, for its creator to try
again, and the rest passes.
Leaves to others: the verdict (``decide``), telling users of a refusal (``refusal_reporter``).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview, Operation
from nodeattest_controller.controllers.bootstrap_config.decide import (
    LEFT_WITHOUT,
    AdmissionOutcome,
    Allow,
    Refuse,
    Renderer,
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
from nodeattest_controller.controllers.bootstrap_config.subject import Subject, subject_of
from nodeattest_controller.model.objects import text
from nodeattest_kube.errors import ApiError
from nodeattest_providers.errors import Denied, Unavailable


class ReadReview(Protocol):
    """A review that was read and is not decided yet."""

    @property
    def question(self) -> AdmissionReview:
        """What the API server asks."""
        ...

    async def verdict(self, client: str, deadline: float) -> Verdict | Unable:
        """Decide, before a time of the event loop's clock; ``client``: the caller's address."""
        ...


class Reviewer(Protocol):
    """Reads the reviews of one path."""

    log_message: ClassVar[str]
    """What its verdicts are logged as."""

    def read(self, content: bytes) -> ReadReview:
        """Read a review; raises ``Denied``. It may be called in a thread."""
        ...


PATH: Final = "/mutate-bootstrap-config"
_UNREADABLE: Final = "cannot read the object's Cluster and policy: {}; try again"


class ConfigReviewer:
    """Reads reviews of KubeadmConfigs and KubeadmControlPlanes."""

    log_message: ClassVar[str] = "bootstrap configuration"

    def __init__(self, reader: FactReader, renderer: Renderer, reporter: RefusalReporter, *, max_wait: float) -> None:
        self.reader = reader
        self.renderer = renderer
        self.reporter = reporter
        self.max_wait = max_wait
        """Seconds of a review, for messages."""

    def read(self, content: bytes) -> _ConfigReview:
        """Read a review, and decide where no facts are needed; raises ``Denied``."""
        question = admission_review.parse(content)
        subject, before = None, None
        if question.operation is not None:
            subject = _subject(question, new=True)
        if question.operation is Operation.UPDATE:
            before = _subject(question, new=False)
        settled = None if subject is None else needs_no_facts(subject, before, self.renderer)
        return _ConfigReview(self, question, subject, before, settled)


@dataclass(frozen=True, slots=True)
class _ConfigReview:
    """One that was read."""

    reviewer: ConfigReviewer
    question: AdmissionReview
    subject: Subject | None
    """None: nothing that we change."""
    before: Subject | None
    settled: Verdict | None
    """What needs no facts."""

    async def verdict(self, client: str, deadline: float) -> Verdict | Unable:
        """Decide, with facts where they are needed."""
        question, subject, before = self.question, self.subject, self.before
        if subject is None:
            return Allow(AdmissionOutcome.UNCONCERNED)
        if self.settled is not None:
            return self.settled
        try:
            async with asyncio.timeout_at(deadline):
                return await self._informed(subject, before, reported_by=None if question.dry_run else client)
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


def _subject(question: AdmissionReview, *, new: bool) -> Subject | None:
    whole = question.target if new else question.before
    return subject_of(whole, group=question.group, kind=question.kind, namespace=question.namespace, name=question.name)
