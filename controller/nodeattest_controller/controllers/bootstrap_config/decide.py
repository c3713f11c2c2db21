"""What becomes of a bootstrap configuration on its way into the API server. Pure.

Machines that exist are never touched. A control plane's spec changes only when it has no machine yet, or when the
update asks for new machines anyway. The configuration of a control plane's machine never changes, because its control
plane would replace a machine whose configuration differs from its own spec, forever. What was rendered stays so: an
update that takes our parts out (a tool that applies what it has in git) gets them put back as they were. No update is
refused for what it does not change.
Source: cluster-api controlplane/kubeadm/internal/filters.go; docs/decisions.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.renderer import PolicyRenderer
from nodeattest_controller.controllers.bootstrap_config.subject import Kind, Subject
from nodeattest_controller.model.identity_rules import POOL_REMEDY
from nodeattest_controller.model.policy import Policy
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

LEFT_WITHOUT: Final = "left without attestation:"
_WOULD_REFUSE: Final = "its cluster's policy would refuse this if it enforced:"


class AdmissionOutcome(StrEnum):
    """What became of an object; a metric's label."""

    UNCONCERNED = "unconcerned"
    """Not of a cluster, of one that no policy selects, of a paused one; or nothing about it changes."""
    RENDERED = "rendered"
    UNCHANGED = "unchanged"
    """It is rendered already."""
    LEFT = "left"
    """It is not rendered, and machines of it exist; or a policy that was wrong before, and is not worse."""
    AUDITED = "audited"
    ACCEPTED = "accepted"
    """A policy in which nothing is wrong."""
    DENIED = "denied"
    UNAVAILABLE = "unavailable"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Allow:
    """Let it pass as it is."""

    outcome: AdmissionOutcome
    warnings: tuple[str, ...] = ()
    """That name no object but the one in question: whoever asks is told them."""
    because: Denied | None = None
    """Ends the last warning; who is told how much of it, ``handler`` decides."""
    public: str = ""
    """What callers that were not verified are told in place of it; empty: what they always are."""


@dataclass(frozen=True, slots=True)
class Change:
    """Let it pass, rendered."""

    patch: list[JsonObject] = field(repr=False)
    outcome: AdmissionOutcome = AdmissionOutcome.RENDERED


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not let it pass."""

    denied: Denied
    outcome: AdmissionOutcome = AdmissionOutcome.DENIED
    public: str = ""
    """As ``Allow.public``."""


@dataclass(frozen=True, slots=True)
class Unable:
    """Facts could not be had."""

    why: str
    outcome: AdmissionOutcome = AdmissionOutcome.UNAVAILABLE


Verdict = Allow | Change | Refuse


def needs_no_facts(subject: Subject, before: Subject | None, renderer: PolicyRenderer) -> Allow | None:
    """Let pass what need not be asked about, so that most updates cost the API server nothing and hang on nothing.

    1. It is going away. 2. It was not rendered and it is too late for that: machines are made of it. 3. It is rendered,
    and the update changes nothing of the configuration, or only what the bootstrap provider writes there.
    """
    # 1
    if subject.deleting:
        return Allow(AdmissionOutcome.UNCONCERNED)
    if before is None or subject.joins_pool(before):
        return None
    changes = subject.changes(before)
    # 2
    if not renderer.is_rendered(before.spec):
        own = subject.is_providers_own(changes) and not subject.asks_for_machines(before)
        return Allow(AdmissionOutcome.UNCONCERNED) if subject.settled and own else None
    # 3
    own = subject.is_providers_own(changes) and renderer.is_rendered(subject.spec)
    return Allow(AdmissionOutcome.UNCHANGED) if own and not subject.asks_for_machines(before) else None


def needs_machines(subject: Subject, before: Subject | None, renderer: PolicyRenderer) -> bool:
    """Return whether it matters if the control plane has machines: where nothing else allows to change its spec."""
    if subject.kind is not Kind.CONTROL_PLANE or before is None or renderer.is_rendered(before.spec):
        return False
    return not _wanted(subject, before)


def needs_names(
    subject: Subject, before: Subject | None, *, policy: Policy, cluster: JsonObject, renderer: PolicyRenderer
) -> bool:
    """Tell whether instances of a MachinePool have no node name unless its infrastructure provider makes Machines."""
    if not subject.joins_pool(before):
        return False
    try:
        return not renderer.proves_names(subject, policy, cluster)
    except Denied:
        return False  # rendering refuses for the same reason


def refuse_unnamed(subject: Subject, policy: Policy) -> Verdict:
    """Refuse the configuration of a MachinePool whose instances could never join."""
    denied = Denied(
        Reason.BOOTSTRAP_CONFIG_REFUSED,
        expected=f"instances of MachinePool {subject.pool} that have Machines, or whose provider proves a node name",
        got="neither: no infrastructureMachineKind in the pool's infrastructure, and no name by its policy",
        remedy=POOL_REMEDY,
    )
    if policy.enforce:
        return Refuse(denied)
    return Allow(AdmissionOutcome.AUDITED, (_WOULD_REFUSE,), denied)


def decide(
    subject: Subject,
    before: Subject | None,
    *,
    policy: Policy,
    cluster: JsonObject,
    has_machines: bool,
    renderer: PolicyRenderer,
) -> Verdict:
    """Decide on an object of a cluster that a policy selects.

    ``before``: the object as it is; None at a creation. ``has_machines``: the control plane's, if ``needs_machines``.
    """
    try:
        rendered = renderer.render(subject, policy, cluster)
    except Denied as denied:
        return _not_renderable(subject, before, policy, denied)
    if not admission_review.paths(subject.spec, rendered):
        return Allow(AdmissionOutcome.UNCHANGED)
    if subject.made_by_control_plane or not policy.enforce:
        return _untouched(subject, policy, renderer)
    if before is not None and renderer.is_rendered(before.spec):
        return _kept(subject, before, rendered, policy=policy, cluster=cluster, renderer=renderer)
    if before is not None and _has_machines(subject, before, has_machines=has_machines):
        return Allow(AdmissionOutcome.LEFT, (_too_late(subject),))
    return _change(subject, rendered)


def _untouched(subject: Subject, policy: Policy, renderer: PolicyRenderer) -> Verdict:
    """Say what it means that it is not rendered."""
    if renderer.is_rendered(subject.spec):  # by another version of us
        return Allow(AdmissionOutcome.UNCHANGED)
    if not policy.enforce:
        return Allow(AdmissionOutcome.AUDITED, (_would(subject),))
    return Allow(AdmissionOutcome.LEFT, (_by_control_plane(subject),))


def _has_machines(subject: Subject, before: Subject, *, has_machines: bool) -> bool:
    """Return whether there are machines that a change would come too late for, or replace."""
    return subject.settled if subject.kind is Kind.CONFIG else has_machines and not _wanted(subject, before)


def _wanted(subject: Subject, before: Subject) -> bool:
    """Return whether an update of a control plane makes new machines by itself."""
    return subject.asks_for_machines(before) or bool(subject.changes(before))


def _kept(
    subject: Subject,
    before: Subject,
    rendered: JsonObject,
    *,
    policy: Policy,
    cluster: JsonObject,
    renderer: PolicyRenderer,
) -> Verdict:
    """Keep rendered what was, by whatever version of us.

    1. New machines are wanted: they get what is rendered now. 2. The update leaves our parts alone: so do we. 3. It
    differs from what is there in our parts only: these are put back as they were. 4. It changes more.
    """
    # 1
    if subject.asks_for_machines(before):
        return _change(subject, rendered)
    # 2
    ours = admission_review.paths(subject.spec, rendered)
    if renderer.is_rendered(subject.spec) and not admission_review.touch_each_other(ours, subject.changes(before)):
        return Allow(AdmissionOutcome.UNCHANGED)
    # 3
    try:
        earlier = renderer.render(before, policy, cluster)
    except Denied:
        earlier = before.spec  # what was rendered once is not to be refused for it now
    if not admission_review.paths(earlier, rendered):
        return _change(subject, before.spec)
    # 4
    return _change(subject, rendered)


def _change(subject: Subject, spec: JsonObject) -> Verdict:
    return Change(admission_review.patch(subject.whole, subject.with_spec(spec)))


def _not_renderable(subject: Subject, before: Subject | None, policy: Policy, denied: Denied) -> Verdict:
    """Refuse a configuration in which the agent has no place, unless the update has nothing to do with that."""
    if not policy.enforce:
        return Allow(AdmissionOutcome.AUDITED, (_WOULD_REFUSE,), denied)
    if subject.made_by_control_plane:
        return Allow(AdmissionOutcome.LEFT, (_by_control_plane(subject),))
    innocent = before is not None and subject.is_providers_own(subject.changes(before))
    innocent = innocent and not subject.joins_pool(before)  # what no machine was made of yet is not left as it is
    return Allow(AdmissionOutcome.LEFT, (LEFT_WITHOUT,), denied) if innocent else Refuse(denied)


def _would(subject: Subject) -> str:
    return (
        f"its cluster's policy is Audit: {subject.kind} {subject.name} is not rendered, its machines join without "
        "attestation; set enforcement to Enforce"
    )


def _by_control_plane(subject: Subject) -> str:
    return (
        f"{subject.kind} {subject.name} is a control plane's and its KubeadmControlPlane is not rendered, so this "
        "machine joins without attestation, or not at all once hardening closed kubeadm's auto-approval; roll the "
        "control plane out: clusterctl alpha rollout restart"
    )


def _too_late(subject: Subject) -> str:
    if subject.kind is Kind.CONTROL_PLANE:
        return (
            f"{subject.kind} {subject.name} has machines from before its policy and stays as it is; "
            "clusterctl alpha rollout restart renders it and replaces them"
        )
    return (
        f"{subject.kind} {subject.name} has bootstrap data from before its policy and stays as it is; "
        "give its owner a new one to have it rendered"
    )
