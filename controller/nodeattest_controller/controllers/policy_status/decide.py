"""Decides a policy's status: whether it admits anybody, which Clusters it rules, and which it shares. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Final

from nodeattest_controller.model.policy import ruling_policy, selecting
from nodeattest_controller.model.webhook_configuration import (
    EXPECTED,
    WebhookCalls,
    is_decided,
    is_disabled,
    label_command,
    needs_webhook,
)
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity, with_condition
from nodeattest_kube.store import BATCH, in_batches
from nodeattest_parsing.objects import mapping, number, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied

READY: Final = "Ready"
MAX_CONFLICTS: Final = 32
"""Clusters that a status names; the CRD's maxItems."""
MAX_RIVALS: Final = 8
"""Policies that it names beside each."""
_MAX_LISTED: Final = 4
"""Of both, in a message."""


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


_AMISS: Final = frozenset(
    {PolicyReason.NAMESPACE_NOT_LABELLED, PolicyReason.NAMESPACE_NOT_READ, PolicyReason.WEBHOOK_NOT_CALLED}
)
"""Reasons of a rendering for which a policy is not Ready; others are told beside what the policy admits."""
_NOT_READY: Final = frozenset({PolicyReason.INVALID, PolicyReason.CONFLICT, *_AMISS})


@dataclass(frozen=True, slots=True)
class Rendering:
    """Whether the webhook renders what is created in a namespace."""

    reason: PolicyReason = PolicyReason.VALID
    message: str = ""
    """Empty: the controller has no webhook, or it is called."""


CALLED: Final = Rendering()
_NOT_RENDERED: Final = "new machines join without attestation, or not at all"


def rendering_of(name: str, namespace: JsonObject | None, calls: WebhookCalls | None = None) -> Rendering:
    """Evaluate a Namespace, None where it may not be read, and where it has the label the webhook's configuration."""
    reason, message = PolicyReason.VALID, ""
    if namespace is None:
        reason = PolicyReason.NAMESPACE_NOT_READ
        message = (
            f"it is not known whether new machines are rendered: the controller could not read the namespace {name}, "
            "and tries again; its log has the error"
        )
    elif not is_decided(namespace):
        reason = PolicyReason.NAMESPACE_NOT_LABELLED
        message = f"{_NOT_RENDERED}: expected {EXPECTED}, got one without; {label_command(name)}"
    elif is_disabled(namespace):
        reason = PolicyReason.RENDERING_DISABLED
        message = (
            "the namespace's label says disabled, so the webhook renders nothing here: machines join by configuration "
            "that nodeattest render wrote, or not at all"
        )
    elif calls is not None and calls.why_not:
        reason = PolicyReason.WEBHOOK_NOT_CALLED
        message = (
            f"{_NOT_RENDERED}: expected a webhook that API servers call for bootstrap configuration of this namespace; "
            f"got none: {calls.why_not}; kubectl apply -k manifests/webhook"
        )
    elif calls is not None and calls.why_unknown:
        reason = PolicyReason.WEBHOOK_NOT_READ
        message = f"whether API servers call the webhook for this namespace is not known: {calls.why_unknown}"
    elif calls is not None and calls.weakness:
        message = f"the webhook is called, but {calls.weakness}: while it does not answer, new machines join without"
        message += " attestation"
    return Rendering(reason, message)


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """A Cluster that several policies select; all by name."""

    name: str
    rivals: tuple[str, ...]
    ruling: str
    """The policy that goes on, because the cluster's machines joined under it; empty: none, and no node joins."""
    meaning: str


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """The evaluation of one policy."""

    why: PolicyReason
    message: str
    clusters: int
    conflicts: tuple[SharedCluster, ...]

    @property
    def condition(self) -> Condition:
        """Whether the policy lets anybody in where it selects a Cluster."""
        status = ConditionStatus.FALSE if self.why in _NOT_READY else ConditionStatus.TRUE
        if self.why is PolicyReason.NAMESPACE_NOT_READ:
            status = ConditionStatus.UNKNOWN
        return Condition(READY, status, self.why, self.message, Severity.ERROR)


async def evaluate(
    policies: Sequence[JsonObject],
    clusters: Sequence[JsonObject],
    flaw_of: Callable[[JsonObject], Denied | None],
    machines_under: Callable[[JsonObject, str], int],
    rendering: Rendering = CALLED,
) -> Mapping[str, PolicyFinding]:
    """Evaluate the policies of one namespace, beside its Clusters, in slices: each is compared with each; by name.

    ``machines_under`` counts the machines of a Cluster that joined under a policy.
    """
    flaws: dict[str, Denied | None] = {}
    async for policy in in_batches(policies, 1):
        flaws[text(policy, "metadata", "name")] = flaw_of(policy)
    ruled = dict.fromkeys(flaws, 0)
    shared: dict[str, list[SharedCluster]] = {name: [] for name in ruled}
    in_order = sorted(clusters, key=lambda one: text(one, "metadata", "name"))
    async for cluster in in_batches(in_order, max(1, BATCH // max(1, len(policies)))):
        selected_by = selecting(cluster, policies)
        names = sorted(text(policy, "metadata", "name") for policy in selected_by)
        if len(names) == 1:
            ruled[names[0]] += 1
            continue
        ruling = ruling_policy(selected_by, partial(machines_under, cluster))
        meaning = f"{ruling} goes on, its machines joined under it" if ruling else "no node joins"
        if flaws.get(ruling) is not None:
            meaning = f"no node joins, because its machines joined under {ruling}, which is {PolicyReason.INVALID}"
            ruling = ""
        for name in names:
            rivals = tuple(other for other in names if other != name)
            shared[name].append(SharedCluster(text(cluster, "metadata", "name"), rivals, ruling, meaning))
    found: dict[str, PolicyFinding] = {}
    async for policy in in_batches(policies, 1):
        name = text(policy, "metadata", "name")
        needed = rendering if needs_webhook(policy) else CALLED
        found[name] = _finding(policy, flaws[name], ruled[name], tuple(shared[name]), needed)
    return found


def status_patch(policy: JsonObject, finding: PolicyFinding, now: datetime) -> JsonObject | None:
    """Make the merge patch of ``/status`` for a finding; None where the status has it already."""
    conflicts: list[JsonValue] = [
        {
            "cluster": shared.name,
            "policies": [*shared.rivals[:MAX_RIVALS]],
            **({"ruling": shared.ruling} if shared.ruling else {}),
        }
        for shared in finding.conflicts[:MAX_CONFLICTS]
    ]
    wanted: JsonObject = {
        "observedGeneration": number(policy, "metadata", "generation") or 0,
        "clusters": finding.clusters,
        "conflicts": conflicts,
    }
    known = mapping(policy, "status")
    status: JsonObject = {name: value for name, value in wanted.items() if known.get(name) != value}
    reported = with_condition(policy, finding.condition, now)
    status.update(mapping(reported or {}, "status"))
    if not status:
        return None
    return {"metadata": {"resourceVersion": text(policy, "metadata", "resourceVersion")}, "status": status}


def _finding(
    policy: JsonObject,
    flaw: Denied | None,
    clusters: int,
    conflicts: tuple[SharedCluster, ...],
    rendering: Rendering,
) -> PolicyFinding:
    why, message = PolicyReason.VALID, _admits(policy)
    if flaw is not None:
        why, message = PolicyReason.INVALID, f"no node joins: expected {flaw.expected}, got {flaw.got}; {flaw.remedy}"
    elif conflicts:
        why, message = PolicyReason.CONFLICT, _conflict(conflicts)
    elif rendering.reason in _AMISS:
        why, message = rendering.reason, rendering.message
    elif not clusters:
        why = PolicyReason.SELECTS_NOTHING
        message = f"no Cluster of this namespace has the labels of clusterSelector; {message}"
    elif rendering.message:
        why, message = rendering.reason, f"{message}; {rendering.message}"
    return PolicyFinding(why, message, clusters, conflicts)


def _admits(policy: JsonObject) -> str:
    named = ", ".join(strings(policy, "spec", "authorizedAttestors")) or "nobody: authorizedAttestors is empty"
    audit = text(policy, "spec", "enforcement") == "Audit"
    return f"admits {named}" + ("; Audit: what hardening would change is reported and left" if audit else "")


def _conflict(conflicts: Sequence[SharedCluster]) -> str:
    shown = "; ".join(f"{one.name} (also {_some(one.rivals)}): {one.meaning}" for one in conflicts[:_MAX_LISTED])
    more = f" and {len(conflicts) - _MAX_LISTED} more" if len(conflicts) > _MAX_LISTED else ""
    return (
        f"another policy selects the same Clusters: {shown}{more}; "
        "narrow the clusterSelectors so that one policy remains"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")
