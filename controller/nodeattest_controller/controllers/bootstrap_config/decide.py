"""Decides what happens to a bootstrap configuration or policy on its way into the API server. Pure.

Existing machines are never touched, nor the configuration of a control plane's machine: the control plane would replace
it. A rendered object stays rendered. No update is refused for what it does not change.
Source: cluster-api controllers/external/util.go, internal/controllers/machine/machine_controller_phases.go,
controlplane/kubeadm/internal/filters.go, bootstrap/kubeadm/internal/controllers/kubeadmconfig_controller.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.admission_review import (
    UNCHANGED,
    UNCONCERNED,
    AdmissionOutcome,
    AdmissionReview,
    JsonPointer,
    Verdict,
    patch,
    paths,
    touch_each_other,
)
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import DROP_IN, MARK
from nodeattest_controller.model.kubeadm_config import has_bootstrap_data
from nodeattest_controller.model.machine_view import CLUSTER_LABEL, CONTROL_PLANE_LABEL, PAUSED_ANNOTATION
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.model.webhook_configuration import EXPECTED, label_command, needs_webhook
from nodeattest_controller.verification.verifiers import flaw_of
from nodeattest_parsing.objects import dig, items, mapping, number, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

_CONTROL_PLANE: Final = "KubeadmControlPlane"
_GROUPS: Final = {"KubeadmConfig": "bootstrap.cluster.x-k8s.io", _CONTROL_PLANE: "controlplane.cluster.x-k8s.io"}
_CLUSTER_GROUP: Final = "cluster.x-k8s.io"
_ROLLOUT: Final[tuple[JsonPointer, ...]] = (
    ("version",),
    ("machineTemplate",),
    ("rolloutAfter",),
    ("rolloutBefore",),
    ("rollout", "after"),
    ("rollout", "before"),
)
"""Fields of a control plane's spec with which its user asks for new machines (v1beta1; v1beta2)."""
_BY_PROVIDER: Final[tuple[JsonPointer, ...]] = (("joinConfiguration", "discovery"), ("clusterConfiguration",))
"""What the kubeadm bootstrap provider itself writes into a configuration: the token, what the Cluster says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A KubeadmConfig or KubeadmControlPlane."""

    kind: str
    namespace: str
    name: str
    whole: JsonObject = field(repr=False)

    @property
    def is_control_plane(self) -> bool:
        return self.kind == _CONTROL_PLANE

    @property
    def place(self) -> JsonPointer:
        return ("spec", "kubeadmConfigSpec") if self.is_control_plane else ("spec",)

    @property
    def spec(self) -> JsonObject:
        """The bootstrap configuration: a KubeadmConfigSpec in either kind."""
        return mapping(self.whole, *self.place)

    @property
    def is_rendered(self) -> bool:
        """Whether any version of nodeattest rendered it, by our file and command."""
        commands = strings(self.spec, "preKubeadmCommands")
        return any(command.endswith(MARK) for command in commands) or any(
            text(file, "path") == DROP_IN for file in items(self.spec, "files")
        )

    @property
    def cluster(self) -> str:
        """The name of its Cluster by label or owner; empty if it has neither yet."""
        return text(self.whole, "metadata", "labels", CLUSTER_LABEL) or self.owner("Cluster")

    @property
    def pool(self) -> str:
        return self.owner("MachinePool")

    @property
    def made_by_control_plane(self) -> bool:
        """Whether a control plane made it and replaces its machine if it differs from the control plane's spec."""
        owners = items(self.whole, "metadata", "ownerReferences")
        owned = any(owner.get("kind") == _CONTROL_PLANE for owner in owners)
        return not self.is_control_plane and (owned or CONTROL_PLANE_LABEL in mapping(self.whole, "metadata", "labels"))

    @property
    def settled(self) -> bool:
        """Whether a change comes too late: a control plane has machines, or a configuration has bootstrap data.

        The bootstrap provider writes the data, then the token into the spec and the Secret's name into the status.
        """
        if self.is_control_plane:
            return bool(number(self.whole, "status", "replicas"))
        token = text(self.spec, "joinConfiguration", "discovery", "bootstrapToken", "token")
        return has_bootstrap_data(self.whole) or bool(token)

    @property
    def paused(self) -> bool:
        return PAUSED_ANNOTATION in mapping(self.whole, "metadata", "annotations")

    @property
    def deleting(self) -> bool:
        return "deletionTimestamp" in mapping(self.whole, "metadata")

    def asks_for_machines(self, before: Subject) -> bool:
        """Return whether a user asks for new machines by an update of a control plane."""
        old, new = mapping(before.whole, "spec"), mapping(self.whole, "spec")
        return self.is_control_plane and any(dig(old, *field) != dig(new, *field) for field in _ROLLOUT)

    def changes(self, before: Subject) -> frozenset[JsonPointer]:
        """Return the paths that an update changes in the bootstrap configuration."""
        if self.is_control_plane:
            return paths(before.spec, self.spec)
        # The bootstrap provider adds a joinConfiguration for the token if there is none.
        return paths({"joinConfiguration": {}, **before.spec}, {"joinConfiguration": {}, **self.spec})

    def is_providers_own(self, changes: frozenset[JsonPointer]) -> bool:
        """Return whether nothing changed but what the bootstrap provider writes."""
        own = () if self.is_control_plane else _BY_PROVIDER
        return all(any(path[: len(each)] == each for each in own) for path in changes)

    def with_spec(self, spec: JsonObject) -> JsonObject:
        if not self.is_control_plane:
            return {**self.whole, "spec": spec}
        return {**self.whole, "spec": {**mapping(self.whole, "spec"), "kubeadmConfigSpec": spec}}

    def is_control_plane_of(self, cluster: JsonObject) -> bool:
        """Return whether a Cluster refers to this control plane, which may lack its label yet."""
        reference = mapping(cluster, "spec", "controlPlaneRef")
        return self.is_control_plane and (reference.get("kind"), reference.get("name")) == (self.kind, self.name)

    def owner(self, kind: str) -> str:
        """Return the name of the owner of a kind of Cluster API; empty if there is none."""
        for owner in items(self.whole, "metadata", "ownerReferences"):
            if owner.get("kind") == kind and text(owner, "apiVersion").partition("/")[0] == _CLUSTER_GROUP:
                return text(owner, "name")
        return ""


def subject_of(whole: JsonObject, *, group: str, kind: str, namespace: str, name: str) -> Subject | None:
    """Return the subject; None for a kind that is not rendered."""
    if _GROUPS.get(kind) != group:
        return None
    name = name or text(whole, "metadata", "name") or text(whole, "metadata", "generateName")
    return Subject(kind=kind, namespace=namespace, name=name, whole=whole)


Render = Callable[[Subject, Policy, JsonObject], JsonObject]
"""Renders the agent into a subject's bootstrap configuration for a policy and a Cluster; raises ``Denied``."""
LEFT_WITHOUT: Final = "left without attestation:"
_WOULD_REFUSE: Final = "its cluster's policy would refuse this if it enforced:"


def needs_no_facts(subject: Subject, before: Subject | None) -> Verdict | None:
    """Return the verdict that needs no read of the API server; None if facts are needed.

    1. The object is being deleted. 2. It is not rendered, and it is too late. 3. It is rendered, and nothing of the
    configuration changes but what the bootstrap provider writes.
    """
    # 1
    if subject.deleting:
        return UNCONCERNED
    if before is None:
        return None
    changes_nothing = subject.is_providers_own(subject.changes(before)) and not subject.asks_for_machines(before)
    # 2
    if not before.is_rendered:
        return UNCONCERNED if subject.settled and changes_nothing else None
    # 3
    return UNCHANGED if subject.is_rendered and changes_nothing else None


def needs_machines(subject: Subject, before: Subject | None) -> bool:
    if not subject.is_control_plane or before is None or before.is_rendered:
        return False
    return not _makes_machines(subject, before)


def decide(
    subject: Subject,
    before: Subject | None,
    *,
    policy: Policy,
    cluster: JsonObject,
    has_machines: bool,
    render: Render,
) -> Verdict:
    """Decide on an object of a cluster that a policy selects; ``before`` is None at a creation.

    ``has_machines``: whether the control plane has any; used only if ``needs_machines``.
    """
    try:
        rendered = render(subject, policy, cluster)
    except Denied as denied:
        return _not_renderable(subject, before, policy, denied)
    if not paths(subject.spec, rendered):
        return UNCHANGED
    if subject.made_by_control_plane or not policy.enforce:
        return _untouched(subject, policy)
    if before is not None and before.is_rendered:
        try:
            earlier = render(before, policy, cluster)
        except Denied:
            earlier = before.spec  # it was rendered once, so it is not refused now
        return _keep_rendered(subject, before, rendered, earlier)
    has_machines = has_machines if subject.is_control_plane else subject.settled
    if before is None or not has_machines or (subject.is_control_plane and _makes_machines(subject, before)):
        return _render(subject, rendered)
    return Verdict(AdmissionOutcome.LEFT, (_too_late(subject),))


def _not_renderable(subject: Subject, before: Subject | None, policy: Policy, denied: Denied) -> Verdict:
    """Refuse a configuration in which the agent has no place, unless the update has nothing to do with that."""
    if policy.enforce and subject.made_by_control_plane:
        return _untouched(subject, policy)
    is_innocent = before is not None and subject.is_providers_own(subject.changes(before))
    joins_pool = before is not None and subject.pool not in {"", before.pool}
    if policy.enforce and is_innocent and not joins_pool:  # what a pool takes has no machine yet
        return Verdict(AdmissionOutcome.LEFT, (LEFT_WITHOUT,), denied)
    return _refuse(policy, denied)


def _untouched(subject: Subject, policy: Policy) -> Verdict:
    if subject.is_rendered:  # by another version of us
        return UNCHANGED
    if policy.enforce:
        return Verdict(AdmissionOutcome.LEFT, (_by_control_plane(subject),))
    return Verdict(AdmissionOutcome.AUDITED, (_would_render(subject),))


def _makes_machines(subject: Subject, before: Subject) -> bool:
    """Return whether an update of a control plane makes new machines by itself."""
    return subject.asks_for_machines(before) or bool(subject.changes(before))


def _keep_rendered(subject: Subject, before: Subject, rendered: JsonObject, earlier: JsonObject) -> Verdict:
    """Keep rendered what any version of nodeattest rendered; ``earlier``: what is rendered now for the state before.

    1. New machines get what is rendered now. 2. An update that does not touch our parts passes. 3. An update that
    differs in our parts only is reverted. 4. Any other update is rendered.
    """
    # 1
    if subject.asks_for_machines(before):
        return _render(subject, rendered)
    # 2
    ours = paths(subject.spec, rendered)
    if subject.is_rendered and not touch_each_other(ours, subject.changes(before)):
        return UNCHANGED
    # 3
    if not paths(earlier, rendered):
        return _render(subject, before.spec)
    # 4
    return _render(subject, rendered)


def _render(subject: Subject, spec: JsonObject) -> Verdict:
    return Verdict(AdmissionOutcome.RENDERED, patch=patch(subject.whole, subject.with_spec(spec)))


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


POLICY_PATH: Final = "/validate-policy"
UNLABELLED_PATH: Final = "/validate-policy-of-unlabelled-namespace"
"""API servers call this path for a namespace without the webhook's label, so the webhook need not read it."""
MAX_SECTIONS: Final = 32 << 10
"""Bytes of a review whose providers' sections are checked. Providers cache the certificates of a section, and whoever
reaches the port can send one."""
_KIND: Final = ("attestation.cluster.x-k8s.io", "NodeAttestationPolicy")


def review_policy(question: AdmissionReview, *, is_unlabelled: bool = False, sections: bool = True) -> Verdict:
    """Decide on a NodeAttestationPolicy; ``sections``: whether providers check their sections.

    1. Only a new spec of a policy that is not being deleted is reviewed. 2. A policy that becomes invalid is refused.
    3. So is one that starts to enforce where nothing is rendered; one that enforced before passes with a warning.
    Other policies that select the same Clusters are named in the policy's status, by ``policy_status``.
    """
    after, before = question.target, question.before
    # 1
    concerns = (question.group, question.kind) == _KIND and question.operation is not None
    unchanged = before is not None and before.get("spec") == after.get("spec")
    if not concerns or unchanged or "deletionTimestamp" in mapping(after, "metadata"):
        return UNCONCERNED
    # 2
    flaw = flaw_of(after, sections=sections)
    if flaw is not None and (before is None or flaw_of(before, sections=sections) is None):
        return Verdict(AdmissionOutcome.DENIED, denied=flaw, public=_explain(flaw))
    # 3
    warnings: tuple[str, ...] = ()
    if is_unlabelled and needs_webhook(after):
        remedy = label_command(question.namespace)
        unlabelled = Denied(Reason.POLICY_INVALID, expected=EXPECTED, got="one without", remedy=remedy)
        if not needs_webhook(before):
            return Verdict(AdmissionOutcome.DENIED, denied=unlabelled, public=_explain(unlabelled))
        warnings = (f"new machines join without attestation, or not at all: {_explain(unlabelled)}",)
    if flaw is None:
        return Verdict(AdmissionOutcome.ACCEPTED, warnings)
    return Verdict(AdmissionOutcome.LEFT, (*warnings, "left as it was before:"), flaw, public=_explain(flaw))


def _explain(flaw: Denied) -> str:
    """Describe what is wrong with the caller's own object, without the reason."""
    return f"expected {flaw.expected}, got {flaw.got}; {flaw.remedy}"
