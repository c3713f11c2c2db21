"""Whether a replica leads, by its Lease, and whether each workload cluster answers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity
from nodeattest_cli.doctor.renewals import is_renewed, leader_leases
from nodeattest_controller.model.objects import text
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["IDS", "look"]

IDS: Final = ("controller-leader", "cluster-reachable")
_RUNBOOK: Final = "docs/runbooks.md#nodeattestationnobodyserves"


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at the Lease, then at each workload cluster."""
    leases = facts.management.leases
    yield _leader(facts, leases)
    for key, workload in facts.workloads.items():
        unreached = workload.unreached
        yield HealthFinding(
            id="cluster-reachable",
            severity=HealthSeverity.OK if unreached is None else HealthSeverity.UNKNOWN,
            expected="the workload cluster answers",
            found="it does" if unreached is None else unreached.why,
            remedy="" if unreached is None else "docs/troubleshoot.md, A cluster does not connect",
            cluster=key,
        )


def _leader(facts: HealthFacts, leases: object) -> HealthFinding:
    expected = f"a replica holds and renews the Lease {facts.namespace}/{facts.lease_name}"
    remedy = ""
    if isinstance(leases, Unread):
        severity, found, remedy = HealthSeverity.UNKNOWN, leases.why, f"let this user list Leases in {facts.namespace}"
    else:
        own = leader_leases(facts)
        if not own:
            severity, found, remedy = HealthSeverity.ERROR, "there is no such Lease", _RUNBOOK
        elif is_renewed(facts, own[0]):
            severity, found = HealthSeverity.OK, f"{text(own[0], 'spec', 'holderIdentity')} does"
        else:
            severity, found, remedy = HealthSeverity.ERROR, _last(own[0]), _RUNBOOK
    return HealthFinding(id="controller-leader", severity=severity, expected=expected, found=found, remedy=remedy)


def _last(lease: JsonObject) -> str:
    holder, at = text(lease, "spec", "holderIdentity"), text(lease, "spec", "renewTime")
    since = f" since {at}" if at else ""
    return f"{holder} has not renewed it{since}" if holder else f"nobody holds it{since}"
