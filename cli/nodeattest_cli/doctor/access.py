"""Rights: whether the controller has each right that the shipped manifests give, in both clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread, readable
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_cli.doctor.shipped_rights import ShippedRight
from nodeattest_controller import manifests
from nodeattest_controller.model.objects import mapping, text

__all__ = [
    "IDS",
    "SECRET_LIMIT",
    "SECRET_LIMIT_RESOURCES",
    "look",
    "management_folders",
    "workload_folders",
]

IDS: Final = ("management-rights", "challenge-secrets-policy", "workload-rights")
SECRET_LIMIT: Final = "nodeattest-challenge-secrets"
"""Name of the ValidatingAdmissionPolicy of manifests/challenge-secrets, and of its binding."""
SECRET_LIMIT_RESOURCES: Final[Mapping[str, str]] = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
"""Both, by kind."""
_SAME: Final[Mapping[str, tuple[str, ...]]] = {
    "ValidatingAdmissionPolicy": ("failurePolicy", "matchConditions", "variables", "validations"),
    "ValidatingAdmissionPolicyBinding": ("policyName", "validationActions"),
}
"""Fields that an installation has no reason to change."""


def management_folders(facts: HealthFacts) -> list[str]:
    """Name the folders of manifests whose rights the controller needs in the management cluster."""
    folders = ["rbac"]
    folders += ["challenge-secrets"] if facts.creates_secrets() else []
    folders += ["webhook"] if isinstance(facts.management.webhook, dict) else []
    return folders


def workload_folders(facts: HealthFacts) -> list[str]:
    """Name those of a workload cluster, by the controllers that run and by what policies say."""
    policies = facts.management.policies
    acts = any(mapping(one, "spec", "onFailure") for one in readable(policies))
    wanted = {
        "workload-rbac": True,
        "workload-hardening": facts.runs("hardening"),
        "workload-bootstrap-token": facts.runs("bootstrap-token"),
        "workload-discovery": facts.runs("bootstrap-signer") or facts.runs("token-cleaner"),
        "workload-on-failure": acts,
    }
    return [folder for folder, needed in wanted.items() if needed]


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Report the rights that are missing."""
    account = f"the ServiceAccount node-attestation-controller of {facts.namespace}"
    yield _finding("management-rights", facts.management.reviews, account)
    if facts.creates_secrets():
        yield _secret_limit(facts)
    for key, workload in facts.workloads.items():
        if workload.unreached is None:
            yield _finding("workload-rights", workload.reviews, "the user of the cluster's kubeconfig", key)


def _secret_limit(facts: HealthFacts) -> HealthFinding:
    """Compare what limits the Secrets that the controller may create with this release."""
    wrong: list[str] = []
    unread: list[str] = []
    for shipped in manifests.objects("challenge-secrets"):
        kind = text(shipped, "kind")
        found = facts.management.secret_limits.get(kind) if kind in SECRET_LIMIT_RESOURCES else {}
        match found:
            case None:
                wrong.append(f"there is no {kind} {SECRET_LIMIT}")
            case Unread():
                unread.append(found.why)
            case _:
                spec, wanted = mapping(found, "spec"), mapping(shipped, "spec")
                fields = _SAME.get(kind, ())
                wrong += [f"{kind}: {field} is another" for field in fields if spec.get(field) != wanted.get(field)]
    severity = HealthSeverity.ERROR if wrong else HealthSeverity.UNKNOWN if unread else HealthSeverity.OK
    return HealthFinding(
        id="challenge-secrets-policy",
        severity=severity,
        expected="the ValidatingAdmissionPolicy of this release limits the Secrets that the controller may create",
        found="; ".join([*wrong, *unread]) or "the same",
        remedy="apply manifests/challenge-secrets" if wrong else "let this user read it" if unread else "",
    )


def _finding(name: str, reviews: Mapping[ShippedRight, bool] | Unread, whose: str, cluster: str = "") -> HealthFinding:
    expected = f"{whose} has every right of the manifests"
    if isinstance(reviews, Unread):
        severity, found, remedy = HealthSeverity.UNKNOWN, reviews.why, "let this user create SubjectAccessReviews"
        if cluster:
            remedy = f"let this user read the Secret {cluster.rpartition('/')[2]}-kubeconfig"
    else:
        lacking = sorted(right for right, allowed in reviews.items() if not allowed)
        severity = HealthSeverity.ERROR if lacking else HealthSeverity.OK
        found = f"may not: {listed(map(str, lacking))}" if lacking else f"{len(reviews)} rights"
        remedy = f"apply {_folders(lacking)}" if lacking else ""
    return HealthFinding(id=name, severity=severity, expected=expected, found=found, remedy=remedy, cluster=cluster)


def _folders(rights: Iterable[ShippedRight]) -> str:
    return listed(dict.fromkeys(f"manifests/{right.folder}" for right in rights))
