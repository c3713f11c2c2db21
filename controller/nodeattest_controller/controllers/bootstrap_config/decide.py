"""Decides what becomes of a bootstrap configuration on its way into the API server. Pure.

Machines that exist are never touched. A control plane's spec changes only when it has no machine yet, or when the
update asks for new machines anyway. The configuration of a control plane's machine never changes, because its control
plane would replace a machine whose configuration differs from its own spec, forever. What was rendered stays so: an
update that takes our parts out (a tool that applies what it has in git) gets them put back as they were. No update is
refused for what it does not change.
Source: cluster-api controlplane/kubeadm/internal/filters.go; docs/decisions.md.
"""

from __future__ import annotations

from typing import Final

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.renderer import PolicyRenderer
from nodeattest_controller.controllers.bootstrap_config.subject import Subject
from nodeattest_controller.controllers.bootstrap_config.verdict import (
    UNCHANGED,
    UNCONCERNED,
    AdmissionOutcome,
    Verdict,
)
from nodeattest_controller.model.identity_rules import POOL_REMEDY
from nodeattest_controller.model.policy import Policy
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

LEFT_WITHOUT: Final = "left without attestation:"
_WOULD_REFUSE: Final = "its cluster's policy would refuse this if it enforced:"


def needs_no_facts(subject: Subject, before: Subject | None) -> Verdict | None:
    """Let pass what need not be asked about, so that most updates cost the API server nothing and hang on nothing.

    1. It is being deleted. 2. It was not rendered and it is too late for that: machines are made of it. 3. It is
    rendered, and the update changes nothing of the configuration, or only what the bootstrap provider writes there.
    """
    # 1
    if subject.deleting:
        return UNCONCERNED
    if before is None or subject.joins_pool(before):
        return None
    changes_nothing = subject.is_providers_own(subject.changes(before)) and not subject.asks_for_machines(before)
    # 2
    if not before.is_rendered:
        return UNCONCERNED if subject.settled and changes_nothing else None
    # 3
    return UNCHANGED if subject.is_rendered and changes_nothing else None


def needs_machines(subject: Subject, before: Subject | None) -> bool:
    """Return whether it matters if the control plane has machines: where nothing else allows to change its spec."""
    if not subject.is_control_plane or before is None or before.is_rendered:
        return False
    return not _makes_machines(subject, before)


def needs_names(
    subject: Subject, before: Subject | None, *, policy: Policy, cluster: JsonObject, renderer: PolicyRenderer
) -> bool:
    """Return whether instances of a MachinePool have no node name unless its infrastructure provider makes Machines."""
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
    return _refuse(policy, denied)


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
        return UNCHANGED
    if subject.made_by_control_plane or not policy.enforce:
        return _untouched(subject, policy)
    if before is not None and before.is_rendered:
        return _keep_rendered(subject, before, rendered, policy=policy, cluster=cluster, renderer=renderer)
    has_machines = has_machines if subject.is_control_plane else subject.settled
    if before is None or not has_machines or (subject.is_control_plane and _makes_machines(subject, before)):
        return _render(subject, rendered)
    return Verdict(AdmissionOutcome.LEFT, (_too_late(subject),))


def _not_renderable(subject: Subject, before: Subject | None, policy: Policy, denied: Denied) -> Verdict:
    """Refuse a configuration in which the agent has no place, unless the update has nothing to do with that."""
    if policy.enforce and subject.made_by_control_plane:
        return _untouched(subject, policy)
    innocent = before is not None and subject.is_providers_own(subject.changes(before))
    if policy.enforce and innocent and not subject.joins_pool(before):  # one that joins a pool has no machine yet
        return Verdict(AdmissionOutcome.LEFT, (LEFT_WITHOUT,), denied)
    return _refuse(policy, denied)


def _untouched(subject: Subject, policy: Policy) -> Verdict:
    """Say what it means that it is not rendered."""
    if subject.is_rendered:  # by another version of us
        return UNCHANGED
    if policy.enforce:
        return Verdict(AdmissionOutcome.LEFT, (_by_control_plane(subject),))
    return Verdict(AdmissionOutcome.AUDITED, (_would_render(subject),))


def _makes_machines(subject: Subject, before: Subject) -> bool:
    """Return whether an update of a control plane makes new machines by itself."""
    return subject.asks_for_machines(before) or bool(subject.changes(before))


def _keep_rendered(
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
        return _render(subject, rendered)
    # 2
    ours = admission_review.paths(subject.spec, rendered)
    if subject.is_rendered and not admission_review.touch_each_other(ours, subject.changes(before)):
        return UNCHANGED
    # 3
    try:
        earlier = renderer.render(before, policy, cluster)
    except Denied:
        earlier = before.spec  # what was rendered once is not to be refused for it now
    if not admission_review.paths(earlier, rendered):
        return _render(subject, before.spec)
    # 4
    return _render(subject, rendered)


def _render(subject: Subject, spec: JsonObject) -> Verdict:
    patch = admission_review.patch(subject.whole, subject.with_spec(spec))
    return Verdict(AdmissionOutcome.RENDERED, patch=patch)


def _refuse(policy: Policy, denied: Denied) -> Verdict:
    """Refuse; under ``Audit``, warn."""
    if policy.enforce:
        return Verdict(AdmissionOutcome.DENIED, denied=denied)
    return Verdict(AdmissionOutcome.AUDITED, (_WOULD_REFUSE,), denied)


def _would_render(subject: Subject) -> str:
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
    what, remedy = "bootstrap data", "give its owner a new one to have it rendered"
    if subject.is_control_plane:
        what, remedy = "machines", "clusterctl alpha rollout restart renders it and replaces them"
    return f"{subject.kind} {subject.name} has {what} from before its policy and stays as it is; {remedy}"
