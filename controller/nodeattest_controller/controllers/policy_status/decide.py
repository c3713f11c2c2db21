"""What a policy's status says: whether it lets anybody in, which Clusters it rules, and which it shares. Pure.

Promises: the same objects give the same status in every replica; an equal status is not written again.
Leaves to others: reading policies (``model.policy``, ``validate``), writing (``reconciler``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Final

from nodeattest_controller.model.policy import REFUSED_CONFIGURATIONS, ruling_policy, selecting
from nodeattest_controller.model.webhook_configuration import EXPECTED, WebhookCalls, label_command, needs_webhook
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity, with_condition
from nodeattest_kube.store import BATCH, in_batches
from nodeattest_parsing.objects import condition, items, mapping, moment, number, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied

READY: Final = "Ready"
_DISABLED: Final = (
    "the namespace's label says disabled, so the webhook renders nothing here: machines join by configuration that "
    "nodeattest render wrote, or not at all"
)
_UNSEEN: Final = "whether API servers call the webhook for this namespace is not known: {}"
_PASSED_OVER: Final = "the webhook is called, but {}: while it does not answer, new machines join without attestation"
UNRENDERED: Final = "unrenderedControlPlanes"
"""Member of the status."""
MAX_CONFLICTS: Final = 32
"""Clusters that a status names; the CRD's maxItems."""
MAX_RIVALS: Final = 8
"""Policies that it names beside each."""
SHOWN: Final = 4
"""Of both, in a message."""
REFUSAL_ENDS: Final = timedelta(minutes=40)
"""After its last refusal an owner counts as no longer refused: controllers of Cluster API try again within 1000 s
(controller-runtime's longest back-off), and an entry's time is up to five minutes old."""


class PolicyReason(StrEnum):
    """The condition's reason."""

    VALID = "Valid"
    SELECTS_NOTHING = "SelectsNothing"
    INVALID = "Invalid"
    CONFLICT = "Conflict"
    NAMESPACE_NOT_LABELLED = "NamespaceNotLabelled"
    NAMESPACE_NOT_READ = "NamespaceNotRead"
    WEBHOOK_NOT_CALLED = "WebhookNotCalled"
    WEBHOOK_NOT_READ = "WebhookNotRead"
    RENDERING_DISABLED = "RenderingDisabled"


class RenderingState(StrEnum):
    """What is known of the webhook's rendering in a namespace."""

    NO_MATTER = "NoMatter"
    """The controller has no webhook, or it is called."""
    NOT_LABELLED = "NotLabelled"
    UNKNOWN = "Unknown"
    """The namespace could not be read."""
    DISABLED = "Disabled"
    """Somebody decided so, by the label."""
    NOT_CALLED = "NotCalled"
    """By its configuration, or without one."""
    NOT_READ = "NotRead"
    """The configuration could not be read, or what is in it could not be evaluated."""
    PASSED_OVER = "PassedOver"
    """It is called, and while it does not answer, API servers go on without it."""


@dataclass(frozen=True, slots=True)
class NamespaceRendering:
    """The state, and why."""

    state: RenderingState = RenderingState.NO_MATTER
    why: str = ""
    """Of ``NOT_CALLED``, ``NOT_READ`` and ``PASSED_OVER``."""


_CALLED: Final = NamespaceRendering()


_OF_STATE: Final = {
    RenderingState.DISABLED: (PolicyReason.RENDERING_DISABLED, _DISABLED),
    RenderingState.NOT_READ: (PolicyReason.WEBHOOK_NOT_READ, _UNSEEN),
    RenderingState.PASSED_OVER: (PolicyReason.VALID, _PASSED_OVER),
}
"""What is said of a valid policy beside whom it admits."""
_IN_FORCE: Final = frozenset(
    {
        PolicyReason.VALID,
        PolicyReason.SELECTS_NOTHING,
        PolicyReason.RENDERING_DISABLED,
        PolicyReason.WEBHOOK_NOT_READ,
    }
)
"""Reasons with which the condition is True: the last two say what was decided, or not looked at."""


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """A Cluster that several policies select; all by name."""

    name: str
    rivals: tuple[str, ...]
    """The other policies."""
    ruling: str = ""
    """The policy that goes on, because the cluster's machines joined under it; empty: none, and no node joins."""
    is_flawed: bool = False
    """Whether that policy is Invalid, and no node joins, therefore."""


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """What is to be said of one policy."""

    why: PolicyReason
    message: str
    clusters: int
    """How many Clusters it rules alone."""
    conflicts: tuple[SharedCluster, ...]
    """Clusters that others select, too."""
    unrendered: tuple[str, ...] | None = None
    """Clusters whose control plane is not rendered, or cannot be read, by name; None: not known, or of no matter."""

    @property
    def condition(self) -> Condition:
        """Whether the policy lets anybody in where it selects a Cluster."""
        status = ConditionStatus.TRUE if self.why in _IN_FORCE else ConditionStatus.FALSE
        if self.why is PolicyReason.NAMESPACE_NOT_READ:
            status = ConditionStatus.UNKNOWN
        return Condition(READY, status, self.why, self.message, Severity.ERROR)


async def evaluate(
    policies: Sequence[JsonObject],
    clusters: Sequence[JsonObject],
    flaw_of: Callable[[JsonObject], Denied | None],
    machines_under: Callable[[JsonObject, str], int],
    *,
    rendering: NamespaceRendering = _CALLED,
    unrendered: Mapping[str, str] | None = None,
) -> Mapping[str, PolicyFinding]:
    """Evaluate the policies of one namespace, beside its Clusters, in slices: each is compared with each; by name.

    ``machines_under`` counts the machines of a Cluster that joined under a policy. ``rendering``: in the namespace;
    where it is not known, a policy that said that the label is missing goes on saying so. ``unrendered``: Clusters
    whose control plane is not rendered, with why it could not be read; None: not known.
    """
    flaws: dict[str, Denied | None] = {}
    async for policy in in_batches(policies, 1):
        flaws[text(policy, "metadata", "name")] = flaw_of(policy)
    ruled = dict.fromkeys(flaws, 0)
    shared: dict[str, list[SharedCluster]] = {name: [] for name in ruled}
    left: dict[str, list[str]] = {name: [] for name in ruled}
    in_order = sorted(clusters, key=lambda one: text(one, "metadata", "name"))
    async for cluster in in_batches(in_order, max(1, BATCH // max(1, len(policies)))):
        beside = selecting(cluster, policies)
        chosen = sorted(text(policy, "metadata", "name") for policy in beside)
        if text(cluster, "metadata", "name") in (unrendered or ()):
            for name in chosen:
                left[name].append(text(cluster, "metadata", "name"))
        if len(chosen) == 1:
            ruled[chosen[0]] += 1
            continue
        ruling = ruling_policy(beside, partial(machines_under, cluster))
        is_flawed = flaws.get(ruling) is not None
        for name in chosen:
            rivals = tuple(other for other in chosen if other != name)
            shared[name].append(SharedCluster(text(cluster, "metadata", "name"), rivals, ruling, is_flawed))
    found: dict[str, PolicyFinding] = {}
    async for policy in in_batches(policies, 1):
        name = text(policy, "metadata", "name")
        needed = rendering if needs_webhook(policy) else _CALLED
        lacking = tuple(left[name]) if unrendered is not None and needs_webhook(policy) else None
        made = _finding(policy, flaws[name], ruled[name], tuple(shared[name]), needed)
        found[name] = _with_unrendered(made, lacking, unrendered or {})
    return found


def rendering_of(calls: WebhookCalls) -> NamespaceRendering:
    """Say what the webhook's configuration makes of a namespace that has the label."""
    if calls.why_not:
        return NamespaceRendering(RenderingState.NOT_CALLED, calls.why_not)
    if calls.why_unknown:
        return NamespaceRendering(RenderingState.NOT_READ, calls.why_unknown)
    if calls.weakness:
        return NamespaceRendering(RenderingState.PASSED_OVER, calls.weakness)
    return _CALLED


def status_patch(policy: JsonObject, finding: PolicyFinding, now: datetime) -> JsonObject | None:
    """Make the merge patch of ``/status`` after which the policy says so; None when it does already."""
    conflicts: list[JsonValue] = [
        {
            "cluster": shared.name,
            "policies": [*shared.rivals[:MAX_RIVALS]],
            **({"ruling": shared.ruling} if shared.ruling and not shared.is_flawed else {}),
        }
        for shared in finding.conflicts[:MAX_CONFLICTS]
    ]
    wanted: JsonObject = {
        "observedGeneration": number(policy, "metadata", "generation") or 0,
        "clusters": finding.clusters,
        "conflicts": conflicts,
        UNRENDERED: None if finding.unrendered is None else len(finding.unrendered),
    }
    known = mapping(policy, "status")
    refused = items(policy, "status", REFUSED_CONFIGURATIONS)
    if refused:
        wanted[REFUSED_CONFIGURATIONS] = [one for one in refused if _repeated(one, now)]
    status: JsonObject = {name: value for name, value in wanted.items() if known.get(name) != value}
    reported = with_condition(policy, finding.condition, now)
    status.update(mapping(reported or {}, "status"))
    if not status:
        return None
    return {"metadata": {"resourceVersion": text(policy, "metadata", "resourceVersion")}, "status": status}


def refusals_end(policy: JsonObject, now: datetime) -> float | None:
    """Return the seconds until the first refused configuration counts as over; None where there is none."""
    times = [moment(text(one, "time")) or now for one in items(policy, "status", REFUSED_CONFIGURATIONS)]
    return max(0.0, (min(times) + REFUSAL_ENDS - now).total_seconds()) if times else None


def _repeated(refused: JsonObject, now: datetime) -> bool:
    """Tell whether a refusal may go on: its owner would have tried again by now."""
    last = moment(text(refused, "time"))
    return last is not None and now - last < REFUSAL_ENDS


def _with_unrendered(
    finding: PolicyFinding, clusters: tuple[str, ...] | None, errors: Mapping[str, str]
) -> PolicyFinding:
    """Add whose control planes are not rendered, or cannot be read, with what to do where nothing worse is said."""
    message = finding.message
    if finding.why is PolicyReason.VALID:
        unread = [name for name in clusters or () if errors.get(name)]
        seen = [name for name in clusters or () if name not in unread]
        if seen:
            message += (
                f"; the KubeadmControlPlane of {_some(seen)} is not rendered ({len(seen)} in all): its new "
                "machines join without attestation, or not at all; clusterctl alpha rollout restart "
                "kubeadmcontrolplane/NAME"
            )
        if unread:
            reasons = ", ".join(sorted({errors[name] for name in unread}))
            message += (
                f"; the KubeadmControlPlane of {_some(unread)} cannot be read ({reasons}; {len(unread)} in all): it "
                "counts as not rendered; see that it is as small as others"
            )
    return replace(finding, message=message, unrendered=clusters)


def _finding(
    policy: JsonObject,
    flaw: Denied | None,
    clusters: int,
    conflicts: tuple[SharedCluster, ...],
    rendering: NamespaceRendering,
) -> PolicyFinding:
    why, message = PolicyReason.VALID, _admits(policy)
    if not clusters:
        why, message = (
            PolicyReason.SELECTS_NOTHING,
            f"no Cluster of this namespace has the labels of clusterSelector; {message}",
        )
    why, message = _of_rendering(policy, rendering, (why, message))
    if conflicts:
        why, message = PolicyReason.CONFLICT, _quarrel(conflicts)
    if flaw is not None:
        why, message = PolicyReason.INVALID, f"no node joins: expected {flaw.expected}, got {flaw.got}; {flaw.remedy}"
    return PolicyFinding(why, message, clusters, conflicts)


def _of_rendering(
    policy: JsonObject, rendering: NamespaceRendering, otherwise: tuple[PolicyReason, str]
) -> tuple[PolicyReason, str]:
    """Say what the webhook does not do in the namespace, or that nobody could look; else ``otherwise``."""
    namespace, state = text(policy, "metadata", "namespace"), rendering.state
    if state is RenderingState.UNKNOWN and _said_unlabelled(policy):
        state = RenderingState.NOT_LABELLED
    match state:
        case RenderingState.NOT_LABELLED:
            return PolicyReason.NAMESPACE_NOT_LABELLED, _not_rendered(namespace)
        case RenderingState.UNKNOWN:
            return PolicyReason.NAMESPACE_NOT_READ, _not_read(namespace)
        case RenderingState.NOT_CALLED:
            return PolicyReason.WEBHOOK_NOT_CALLED, _not_called(rendering.why)
        case _ if otherwise[0] is not PolicyReason.VALID:
            return otherwise
        case RenderingState.DISABLED | RenderingState.NOT_READ | RenderingState.PASSED_OVER:
            reason, message = _OF_STATE[state]
            return reason, f"{otherwise[1]}; {message.format(rendering.why)}"
        case RenderingState.NO_MATTER:
            return otherwise


def _not_called(why: str) -> str:
    return (
        "new machines join without attestation, or not at all: expected a webhook that API servers call for "
        f"bootstrap configuration of this namespace; got none: {why}; kubectl apply -k manifests/webhook"
    )


def _admits(policy: JsonObject) -> str:
    named = ", ".join(strings(policy, "spec", "authorizedAttestors")) or "nobody: authorizedAttestors is empty"
    audit = text(policy, "spec", "enforcement") == "Audit"
    return f"admits {named}" + ("; Audit: what hardening would change is reported and left" if audit else "")


def _not_rendered(namespace: str) -> str:
    return (
        f"new machines join without attestation, or not at all: expected {EXPECTED}, got one without; "
        f"{label_command(namespace)}"
    )


def _said_unlabelled(policy: JsonObject) -> bool:
    """Tell whether a policy's status says that the label is missing."""
    stored = condition(items(policy, "status", "conditions"), READY)
    return stored is not None and stored.get("reason") == PolicyReason.NAMESPACE_NOT_LABELLED


def _not_read(namespace: str) -> str:
    return (
        f"it is not known whether new machines are rendered: the controller could not read the namespace {namespace}, "
        "and tries again; its log has the error"
    )


def _quarrel(conflicts: Sequence[SharedCluster]) -> str:
    shown = "; ".join(_shared(shared) for shared in conflicts[:SHOWN])
    more = f" and {len(conflicts) - SHOWN} more" if len(conflicts) > SHOWN else ""
    return (
        f"another policy selects the same Clusters: {shown}{more}; "
        "narrow the clusterSelectors so that one policy remains"
    )


def _shared(shared: SharedCluster) -> str:
    what = f"{shared.ruling} goes on, its machines joined under it" if shared.ruling else "no node joins"
    if shared.is_flawed:
        what = f"no node joins, because its machines joined under {shared.ruling}, which is {PolicyReason.INVALID}"
    return f"{shared.name} (also {_some(shared.rivals)}): {what}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
