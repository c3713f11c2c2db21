"""Rights: whether the controller has each right that the shipped manifests give, in both clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread, readable
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_cli.doctor.shipped_rights import ShippedRight
from nodeattest_controller.model.objects import mapping
from nodeattest_kube.shard_leases import ShardGroup

__all__ = ["IDS", "look", "management_folders", "workload_folders"]

IDS: Final = ("management-rights", "workload-rights")


def management_folders(facts: HealthFacts) -> list[str]:
    """Name the folders of manifests whose rights the controller needs in the management cluster."""
    leases = facts.management.leases
    group = ShardGroup(facts.namespace, facts.lease_name)
    shared = any(group.read(one) is not None for one in readable(leases))
    folders = ["rbac"]
    folders += ["webhook"] if isinstance(facts.management.webhook, dict) else []
    return folders + (["sharding"] if shared or (facts.argument("--shard-clusters") or "false") != "false" else [])


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
    for key, workload in facts.workloads.items():
        if workload.unreached is None:
            yield _finding("workload-rights", workload.reviews, "the user of the cluster's kubeconfig", key)


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
