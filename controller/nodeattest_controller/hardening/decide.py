"""What is to be done about the side doors of a cluster, and what is to be said of them. Pure: facts in, decision out.

Promises: nothing is ever removed but the two bindings that kubeadm makes, as it makes them; bootstrap's first, the
rotation's only when no bootstrap token can get in any more and every Node is attested; under ``Audit`` nothing at all.
"Closed" is said only where RBAC grants nothing, the API server itself, asked, lets nobody pass, and nothing is left
that could not be verified. A certificate that was issued past attestation outweighs everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_controller.hardening.doors import KUBEADM_BOOTSTRAP, KUBEADM_ROTATION, Door, Grant, Who
from nodeattest_controller.hardening.standing import Census
from nodeattest_controller.model.machine_record import CLUSTER_RECORD
from nodeattest_controller.model.objects import condition, flag, items, mapping, rfc3339, text
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_kube.jsontypes import JsonObject

__all__ = [
    "BESIDES",
    "CLOSED_REASONS",
    "CONDITION",
    "REVIEWED",
    "RUNBOOK",
    "Decision",
    "Facts",
    "Finding",
    "Passes",
    "Unverified",
    "Why",
    "block_not_verified",
    "decide",
    "is_initialized",
    "not_initialized",
    "record_incomplete",
    "unverified",
    "waiting_for_cluster_info",
    "with_certificates",
]

CONDITION: Final = "SideDoorsClosed"
REVIEWED: Final = "attestation.cluster.x-k8s.io/in-tree-certificates-reviewed"
"""Annotation of the Cluster: an operator's word, by its time, that earlier certificates were dealt with."""
RUNBOOK: Final = "docs/in-tree-certificates.md"
BESIDES: Final = "; besides: "
"""Parts what is said of certificates from the rest of a message."""
_NAMED: Final = 10
"""Bindings that a message names."""

Passes = frozenset[tuple[Who, Door]]
"""What the API server, asked, lets pass."""


class Why(StrEnum):
    """The condition's reason."""

    CLOSED = "Closed"
    OPEN = "Open"
    """kubeadm's binding for bootstrap tokens is there, and comes back as fast as it is deleted."""
    CLOSED_FOR_BOOTSTRAP = "ClosedForBootstrap"
    """No bootstrap token passes; nodes that joined before may still renew."""
    FOREIGN_BINDING = "ForeignBinding"
    FOREIGN_AUTHORIZER = "ForeignAuthorizer"
    """Somebody passes, and no binding says so."""
    AUDIT = "Audit"
    CANNOT_VERIFY = "CannotVerify"
    NOT_INITIALIZED = "NotInitialized"
    WAITING_FOR_CLUSTER_INFO = "WaitingForClusterInfo"
    """kubeadm has not made all its bindings yet."""
    BLOCK_NOT_VERIFIED = "BlockNotVerified"
    """The API server does not yet refuse what ``approval_block`` blocks."""
    RECORD_INCOMPLETE = "RecordIncomplete"
    """Certificates may have been issued that nobody recorded."""
    CERTIFICATES_ISSUED = "CertificatesIssued"
    """The in-tree signer's approval was used, for what no attestation covers."""


CLOSED_REASONS: Final = frozenset({Why.CLOSED, Why.CLOSED_FOR_BOOTSTRAP})
"""Reasons that say that no bootstrap token gets in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was found in the workload cluster."""

    grants: tuple[Grant, ...]
    passes: Passes
    census: Census
    enforce: bool
    """False: the policy says ``Audit``."""
    born: datetime | None = None
    """When the cluster's API server first started."""
    unverified: Unverified | None = None
    """What keeps an ``Enforce``d cluster from being called closed though nothing is open."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """Why it cannot be said that the automatic approval is, and was, closed."""

    reason: Why
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said of a cluster."""

    status: ConditionStatus
    reason: Why
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do first, and what to say once that is done."""

    remove: tuple[Grant, ...]
    finding: Finding


def decide(facts: Facts) -> Decision:
    """Decide; what is removed is looked for again afterwards, so that nothing is said that was not seen."""
    wanted = _removable(facts)
    if not facts.enforce and (facts.grants or facts.passes):
        return Decision((), _audit(facts, wanted))
    foreign = [grant for grant in facts.grants if not grant.is_kubeadms]
    unexplained = _unexplained(facts)
    if foreign:
        finding = Finding(ConditionStatus.FALSE, Why.FOREIGN_BINDING, _foreign(foreign, facts.census))
    elif any(Who.BOOTSTRAPPERS in grant.to for grant in facts.grants):
        finding = Finding(
            ConditionStatus.FALSE, Why.OPEN, f"bootstrap tokens get the in-tree signer's approval by {_listed(wanted)}"
        )
    elif unexplained:
        finding = Finding(ConditionStatus.FALSE, Why.FOREIGN_AUTHORIZER, _authorizer(unexplained))
    elif facts.grants:
        finding = Finding(ConditionStatus.FALSE, Why.CLOSED_FOR_BOOTSTRAP, _rotation(facts.census))
    else:
        finding = Finding(ConditionStatus.TRUE, Why.CLOSED, _closed(facts.census))
    if facts.enforce and facts.unverified is not None and finding.reason in CLOSED_REASONS:
        finding = Finding(ConditionStatus.UNKNOWN, facts.unverified.reason, facts.unverified.message)
    return Decision(wanted, finding)


def with_certificates(finding: Finding, certificates: str) -> Finding:
    """Put what was issued past attestation before everything else that can be said."""
    if not certificates:
        return finding
    return Finding(ConditionStatus.FALSE, Why.CERTIFICATES_ISSUED, f"{certificates}{BESIDES}{finding.message}")


def waiting_for_cluster_info() -> Unverified:
    """Say what is waited for: kubeadm creates it after its bindings.

    Source: kubernetes cmd/kubeadm/app/cmd/phases/init/bootstraptoken.go (runBootstrapToken).
    """
    return Unverified(
        Why.WAITING_FOR_CLUSTER_INFO,
        "ConfigMap kube-public/cluster-info does not exist yet: kubeadm creates it after the bindings by which the "
        "in-tree signer approves by itself, so they may still appear",
    )


def block_not_verified() -> Unverified:
    """Say that the API server was asked and did not refuse."""
    return Unverified(
        Why.BLOCK_NOT_VERIFIED,
        "the API server does not refuse requests of bootstrap tokens for the in-tree signer yet: if this lasts, see "
        "whether the admission plugin ValidatingAdmissionPolicy is enabled there",
    )


def record_incomplete(since: datetime) -> Unverified:
    """Say that certificates may have been issued unseen, and what makes an end of it."""
    return Unverified(
        Why.RECORD_INCOMPLETE,
        f"certificates that the in-tree signer issued after {rfc3339(since)} are not all on record, because the "
        "requests were not watched for more than the hour that they are kept: compare the Nodes with the Machines "
        f"({RUNBOOK}), then annotate the Cluster with {REVIEWED}=<time>",
    )


def is_initialized(cluster: JsonObject) -> bool:
    """Tell whether the control plane has come up once, so that kubeadm has made its bindings.

    Source: cluster-api api/core/v1beta2/cluster_types.go (status.initialization.controlPlaneInitialized, condition
    ControlPlaneInitialized) and api/core/v1beta1/cluster_types.go (status.controlPlaneReady, the same condition).
    A ClusterRecord is written for a cluster that is there; where it does not answer yet, the look says so.
    """
    if text(cluster, "kind") == CLUSTER_RECORD:
        return True
    status = mapping(cluster, "status")
    if flag(status, "initialization", "controlPlaneInitialized") or flag(status, "controlPlaneReady"):
        return True
    known = items(status, "conditions") + items(status, "v1beta2", "conditions")
    found = condition(known, "ControlPlaneInitialized")
    return found is not None and found.get("status") == "True"


def not_initialized() -> Finding:
    """Say that there is nothing to close yet."""
    return Finding(ConditionStatus.UNKNOWN, Why.NOT_INITIALIZED, "the control plane is not initialized yet")


def unverified(what: str) -> Finding:
    """Say that nobody knows."""
    return Finding(ConditionStatus.UNKNOWN, Why.CANNOT_VERIFY, what)


def _removable(facts: Facts) -> tuple[Grant, ...]:
    kubeadms = {grant.name: grant for grant in facts.grants if grant.is_kubeadms}
    bootstrap, rotation = kubeadms.get(KUBEADM_BOOTSTRAP), kubeadms.get(KUBEADM_ROTATION)
    if bootstrap is not None:
        return (bootstrap,)
    let_in = any(Who.BOOTSTRAPPERS in grant.to for grant in facts.grants)
    let_in = let_in or any(who is Who.BOOTSTRAPPERS for who, _door in facts.passes)
    if rotation is None or let_in or not facts.census.is_complete:
        return ()
    return (rotation,)


def _unexplained(facts: Facts) -> list[tuple[Who, Door]]:
    explained = {(who, door) for grant in facts.grants for who in grant.to for door in grant.doors}
    return sorted(facts.passes - explained)


def _audit(facts: Facts, wanted: tuple[Grant, ...]) -> Finding:
    """Say what Enforce would do; the rest is as it would be said then."""
    would = (
        f"Enforce would delete ClusterRoleBinding {wanted[0].name}" if wanted else "Enforce would delete nothing now"
    )
    open_by = _listed(facts.grants) if facts.grants else _authorizer(_unexplained(facts))
    counted = "" if facts.census.is_complete else f"; {facts.census}"
    return Finding(ConditionStatus.FALSE, Why.AUDIT, f"the policy says Audit; {would}; open by {open_by}{counted}")


def _foreign(foreign: list[Grant], census: Census) -> str:
    names = " ".join(grant.name for grant in foreign[:_NAMED])
    remedy = (
        f"not made by kubeadm, so never deleted here: see who needs it, then kubectl delete clusterrolebinding {names}"
    )
    if any(Who.NODES in grant.to for grant in foreign) and not census.is_complete:
        remedy += f"; before that, adopt what renews by it (nodeattest machines adopt): {census}"
    return f"the in-tree signer approves by itself by {_listed(tuple(foreign))}; {remedy}"


def _authorizer(passes: list[tuple[Who, Door]]) -> str:
    who = ", ".join(f"{who}: create {door}" for who, door in passes)
    return (
        f"the API server lets the in-tree signer approve by itself ({who}), and no ClusterRoleBinding says so: look at "
        "its --authorization-mode, its authorization webhook and its ABAC policy"
    )


def _rotation(census: Census) -> str:
    return (
        f"no bootstrap token gets the in-tree signer's approval; nodes may still renew by {KUBEADM_ROTATION}, which "
        f"goes when every Node is in the ledger: {census}; nodeattest machines adopt says what to do"
    )


def _closed(census: Census) -> str:
    said = "neither bootstrap tokens nor nodes get the in-tree signer's approval"
    if census.unattested:
        said += f"; {census}: they end with their certificates unless adopted (nodeattest machines adopt)"
    return said


def _listed(grants: tuple[Grant, ...]) -> str:
    more = f" and {len(grants) - _NAMED} more" if len(grants) > _NAMED else ""
    return ", ".join(str(grant) for grant in grants[:_NAMED]) + more
