"""Who serves each cluster: the leader's Lease, or the Leases by which replicas share the clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread, readable
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity
from nodeattest_cli.doctor.renewals import holders, is_renewed
from nodeattest_controller.model.objects import text
from nodeattest_controller.runtime.shard_manager import GROUP_IDENTITY
from nodeattest_kube.jsontypes import JsonObject, key_of
from nodeattest_kube.shard_leases import MemberLease, ShardGroup, ShardLease

__all__ = ["IDS", "look"]

IDS: Final = ("controller-leader", "cluster-served", "cluster-reachable")
_RUNBOOK: Final = "docs/runbooks/NodeAttestationNobodyServes.md"


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at the Leases, then at each protected cluster."""
    leases = facts.management.leases
    yield _leader(facts, leases)
    if not isinstance(leases, Unread) and _is_shared(facts):
        for cluster in facts.protected():
            yield _served(facts, key_of(cluster))
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


def _is_shared(facts: HealthFacts) -> bool:
    """Tell whether replicas share the clusters: a member renews its own Lease."""
    group = ShardGroup(facts.namespace, facts.lease_name)
    read = ((group.read(lease), lease) for lease in holders(facts))
    return any(isinstance(one, MemberLease) and not one.ended and is_renewed(facts, lease) for one, lease in read)


def _leader(facts: HealthFacts, leases: object) -> HealthFinding:
    expected = f"a replica holds and renews the Lease {facts.namespace}/{facts.lease_name}"
    remedy = ""
    if isinstance(leases, Unread):
        severity, found, remedy = HealthSeverity.UNKNOWN, leases.why, f"let this user list Leases in {facts.namespace}"
    else:
        own = [one for one in holders(facts) if text(one, "metadata", "name") == facts.lease_name]
        members = len(holders(facts)) - len(own)
        if _is_shared(facts):
            severity, found = HealthSeverity.OK, f"{members} replicas share the clusters"
        elif not own:
            severity, found, remedy = HealthSeverity.ERROR, "there is no such Lease", _RUNBOOK
        elif is_renewed(facts, own[0]):
            severity, found = HealthSeverity.OK, f"{text(own[0], 'spec', 'holderIdentity')} does"
        else:
            severity, found, remedy = HealthSeverity.ERROR, _last(own[0]), _RUNBOOK
    return HealthFinding(id="controller-leader", severity=severity, expected=expected, found=found, remedy=remedy)


def _last(lease: JsonObject) -> str:
    holder, at = text(lease, "spec", "holderIdentity"), text(lease, "spec", "renewTime")
    since = f" since {at}" if at else ""
    who = "the group" if holder == GROUP_IDENTITY else holder
    return f"{who} has not renewed it{since}" if holder else f"nobody holds it{since}"


def _served(facts: HealthFacts, key: str) -> HealthFinding:
    """Find who has a cluster's shard, and whether that replica is alive."""
    leases = facts.management.leases
    group = ShardGroup(facts.namespace, facts.lease_name)
    everything = [group.read(one) for one in readable(leases)]
    holder = next((one.holder for one in everything if isinstance(one, ShardLease) and one.shard == key), "")
    alive = any(
        isinstance(one, MemberLease) and one.identity == holder and not one.ended and is_renewed(facts, one.found)
        for one in everything
    )
    found = f"{holder} does" if alive else f"{holder} has it and is gone" if holder else "nobody does"
    return HealthFinding(
        id="cluster-served",
        severity=HealthSeverity.OK if alive else HealthSeverity.ERROR,
        expected="a replica that is alive serves the cluster",
        found=found,
        remedy="" if alive else _RUNBOOK,
        cluster=key,
    )
