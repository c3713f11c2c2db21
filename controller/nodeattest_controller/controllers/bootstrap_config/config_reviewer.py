"""Reviews KubeadmConfigs and KubeadmControlPlanes: reads facts where these matter, and decides (``decide``).

If facts cannot be read, a change of machines' configuration is not decided, so that its creator tries again.
Everything else passes.
"""

from __future__ import annotations

from typing import Final

from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview
from nodeattest_controller.controllers.bootstrap_config.decide import (
    LEFT_WITHOUT,
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
from nodeattest_controller.controllers.bootstrap_config.verdict import UNCONCERNED, AdmissionOutcome, Verdict
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied

PATH: Final = "/mutate-bootstrap-config"


class ConfigReviewer:
    """Reviews bootstrap configurations."""

    def __init__(self, reader: FactReader, renderer: PolicyRenderer, reporter: RefusalReporter) -> None:
        self._reader = reader
        self._renderer = renderer
        self._reporter = reporter

    def review(self, question: AdmissionReview) -> Verdict | None:
        """Decide without facts; None where they are needed."""
        subject = _subject(question, question.target)
        if question.operation is None or subject is None:
            return UNCONCERNED
        return needs_no_facts(subject, _before(question))

    async def review_with_facts(self, question: AdmissionReview, client: str) -> Verdict:
        """Decide on what ``review`` did not; raises ``ApiError`` and ``Unavailable``. ``client``: the caller's address.

        A paused cluster is being moved: clusterctl creates its objects again, as they are.
        """
        subject, before = _subject(question, question.target), _before(question)
        facts = await self._reader.of(subject) if subject is not None else None
        if subject is None or facts is None or facts.paused:
            return UNCONCERNED
        verdict = await self._decide(subject, before, facts)
        if not question.dry_run:
            name = text(facts.cluster, "metadata", "name")
            self._reporter.observe(subject, verdict, name, facts.policy_object, client=client)
        return verdict

    def without_facts(self, question: AdmissionReview, error: str) -> Verdict:
        """Decide where the facts cannot be read: an update passes that changes nothing a machine is made of."""
        subject, before = _subject(question, question.target), _before(question)
        unavailable = Verdict(AdmissionOutcome.UNAVAILABLE, unread=error)
        if subject is None or before is None or subject.cluster != before.cluster or subject.changes(before):
            return unavailable
        return Verdict(AdmissionOutcome.LEFT)

    async def _decide(self, subject: Subject, before: Subject | None, facts: RenderFacts) -> Verdict:
        policy, cluster, renderer = facts.policy, facts.cluster, self._renderer
        if isinstance(policy, Denied):
            if before is not None and not subject.changes(before):
                return Verdict(AdmissionOutcome.LEFT, (LEFT_WITHOUT,), policy)
            return Verdict(AdmissionOutcome.DENIED, denied=policy)
        unnamed = needs_names(subject, before, policy=policy, cluster=cluster, renderer=renderer)
        if unnamed and not await self._reader.makes_machines(subject):
            return refuse_unnamed(subject, policy)
        matters = policy.enforce and needs_machines(subject, before)
        has_machines = matters and await self._reader.has_machines(cluster)
        return decide(subject, before, policy=policy, cluster=cluster, has_machines=has_machines, renderer=renderer)


def _subject(question: AdmissionReview, whole: JsonObject) -> Subject | None:
    return subject_of(whole, group=question.group, kind=question.kind, namespace=question.namespace, name=question.name)


def _before(question: AdmissionReview) -> Subject | None:
    return _subject(question, question.before) if question.before is not None else None
