"""Versions: Kubernetes of both clusters, Cluster API, and the controller that runs. Pure.

The controller's version is what it wrote on its Lease itself; the Deployment says only what ought to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_cli.doctor.renewals import is_renewed, leader_leases
from nodeattest_cli.doctor.supported_versions import CONTRACTS, NEWEST_TESTED, OLDEST, OLDEST_MANAGEMENT, minor_version
from nodeattest_controller.model.lease_annotations import HOLDER_ANNOTATION, VERSION_ANNOTATION
from nodeattest_controller.model.objects import text
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers import __version__

__all__ = ["IDS", "look", "running_versions"]

IDS: Final = ("management-version", "workload-version", "cluster-api-version", "controller-version")
_PAGE: Final = "docs/versions.md"


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Compare each version with what this release supports."""
    has_cluster_api = facts.management.cluster_api != ""
    yield _kubernetes("management-version", facts.management.version, OLDEST_MANAGEMENT if has_cluster_api else OLDEST)
    for key, workload in facts.workloads.items():
        if workload.unreached is None:
            yield _kubernetes("workload-version", workload.version, OLDEST, key)
    yield _cluster_api(facts)
    yield _controller(facts)


def running_versions(facts: HealthFacts) -> list[str]:
    """Return the versions that replicas wrote on the Leases which they hold; unique, in order.

    Where any is renewed, those that are not are of replicas that have ended. What an earlier holder wrote is no version
    of this one, which may be a release that writes none. It is empty then.
    """
    held = [lease for lease in leader_leases(facts) if text(lease, "spec", "holderIdentity")]
    renewed = [lease for lease in held if is_renewed(facts, lease)]
    return sorted({_version_of_holder(lease) for lease in renewed or held})


def _version_of_holder(lease: JsonObject) -> str:
    written_by = text(lease, "metadata", "annotations", HOLDER_ANNOTATION)
    is_holders = written_by == text(lease, "spec", "holderIdentity")
    return text(lease, "metadata", "annotations", VERSION_ANNOTATION) if is_holders else ""


def _kubernetes(name: str, version: str | Unread, oldest: tuple[int, int], cluster: str = "") -> HealthFinding:
    """Compare a server's version with the oldest supported and the newest tested one."""
    expected = f"Kubernetes {_minor(oldest)} to {_minor(NEWEST_TESTED)} ({_PAGE})"
    if isinstance(version, Unread):
        severity, found, remedy = HealthSeverity.UNKNOWN, version.why, "let this user read /version"
        return HealthFinding(id=name, severity=severity, expected=expected, found=found, remedy=remedy, cluster=cluster)
    minor = minor_version(version)
    severity, remedy = HealthSeverity.OK, ""
    if minor is None:
        severity, remedy = HealthSeverity.UNKNOWN, f"compare its version with {_PAGE}"
    elif minor < oldest:
        severity = HealthSeverity.WARNING if minor >= OLDEST else HealthSeverity.ERROR
        remedy = f"upgrade the cluster to Kubernetes {_minor(oldest)} or newer"
    elif minor > NEWEST_TESTED:
        severity, remedy = HealthSeverity.WARNING, "see whether a newer release of nodeattest was tested with it"
    return HealthFinding(
        id=name, severity=severity, expected=expected, found=version or "no version", remedy=remedy, cluster=cluster
    )


def _cluster_api(facts: HealthFacts) -> HealthFinding:
    version = facts.management.cluster_api
    expected = f"Cluster API {' or '.join(CONTRACTS)}, or none where machines are MachineRecords"
    if isinstance(version, Unread):
        severity, found, remedy = HealthSeverity.UNKNOWN, version.why, "let this user read /apis/cluster.x-k8s.io"
    elif version and version not in CONTRACTS:
        severity, found = HealthSeverity.ERROR, f"{version} is preferred"
        remedy = f"see whether a newer release of nodeattest supports it: {_PAGE}"
    else:
        severity, found, remedy = HealthSeverity.OK, version or "none", ""
    return HealthFinding(id="cluster-api-version", severity=severity, expected=expected, found=found, remedy=remedy)


def _controller(facts: HealthFacts) -> HealthFinding:
    """Compare what runs with this program; who holds no Lease, or wrote no version, is older than this check."""
    expected = f"the controller's version is this program's, {__version__}: so are its wire versions"
    leases = facts.management.leases
    running = running_versions(facts)
    if isinstance(leases, Unread):
        severity, found, remedy = HealthSeverity.UNKNOWN, leases.why, "let this user list Leases there"
    elif not any(running):
        severity, found = HealthSeverity.WARNING, f"no holder of a Lease in {facts.namespace} says its version"
        remedy = (
            "if a controller runs, it is older: compare node-attestation-controller --version with nodeattest version"
        )
    elif running != [__version__]:
        severity, found = HealthSeverity.WARNING, listed(one or "one that says no version" for one in running)
        remedy = "take the nodeattest of the controller's release, or upgrade the controller (docs/upgrade.md)"
    else:
        severity, found, remedy = HealthSeverity.OK, __version__, ""
    return HealthFinding(id="controller-version", severity=severity, expected=expected, found=found, remedy=remedy)


def _minor(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
