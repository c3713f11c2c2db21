"""The result of a simulation: a row for each machine with a certificate, and what sums them up. Pure.

Promises: each machine of the clusters that a changed policy selects, before or after, is in one row; the sums are of
the rows. Clusters that no changed policy touches are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_cli.policy_simulate.evaluate import (
    InfraAnnotations,
    Outcome,
    RenewalForecast,
    Ruling,
    Simulator,
    find_ruling,
)
from nodeattest_cli.policy_simulate.fleet import Fleet
from nodeattest_controller.model.objects import rfc3339, text
from nodeattest_controller.model.policy import Policy, selecting, selects
from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["ClusterChange", "Row", "Scope", "SimulationReport", "simulate"]


_ORDER: Final = {Outcome.REFUSED: 0, Outcome.UNKNOWN: 1, Outcome.PASSES: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is simulated."""

    changed: Mapping[str, JsonObject]
    """The policies that are not applied yet, by name."""
    cluster: str | None
    only_known: bool
    """Whether machines that were not listed, by a selector of labels, are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One machine with a valid certificate."""

    cluster: str
    machine: str
    attestation: str
    node: str
    provider: str
    expires: datetime
    policy: str
    """The one that would rule; empty where none would."""
    policy_now: str
    verdict: RenewalForecast
    refused_now: bool
    """Whether the policy in force refuses the same."""

    def to_json(self) -> JsonObject:
        """Return the entry of ``machines``."""
        return {
            "cluster": self.cluster,
            "machine": self.machine,
            "attestation": self.attestation,
            "node": self.node,
            "provider": self.provider,
            "expires": rfc3339(self.expires),
            "policy": self.policy or None,
            "policyInForce": self.policy_now or None,
            "outcome": self.verdict.outcome,
            "reason": self.verdict.reason or None,
            "rule": self.verdict.rule or None,
            "message": self.verdict.message or None,
            "refusedInForce": self.refused_now,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChange:
    """A cluster that comes under another policy, or that several would select."""

    cluster: str
    before: str
    after: str
    selecting: tuple[str, ...]
    """The policies that would select it."""
    machines: int

    def __str__(self) -> str:
        count = "1 machine" if self.machines == 1 else f"{self.machines} machines"
        before, after = self.before or "no policy", self.after or "no policy"
        several = f"; {' and '.join(self.selecting)} would select it (Conflict)" if len(self.selecting) > 1 else ""
        change = f"would be ruled by {after}, now by {before}" if before != after else f"stays under {before}"
        return f"cluster {self.cluster} ({count}) {change}{several}"

    def to_json(self) -> JsonObject:
        """Return the entry of ``clusterChanges``."""
        return {
            "cluster": self.cluster,
            "policy": self.after or None,
            "policyInForce": self.before or None,
            "selectedBy": [*self.selecting],
            "machines": self.machines,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """The result."""

    rows: tuple[Row, ...]
    changes: tuple[ClusterChange, ...]
    clusters: int
    without_certificate: int
    """Machines of these clusters that have no valid certificate, so that nothing is renewed."""

    def count(self, outcome: Outcome) -> int:
        """Count machines."""
        return sum(row.verdict.outcome is outcome for row in self.rows)

    @property
    def reasons(self) -> list[tuple[Outcome, str, str, int]]:
        """Outcome, reason, rule and how many machines, those refused first, then the most."""
        verdicts = (row.verdict for row in self.rows if row.verdict.outcome is not Outcome.PASSES)
        counted = Counter((one.outcome, one.reason, one.rule) for one in verdicts)
        ordered = sorted(counted.items(), key=lambda entry: (_ORDER[entry[0][0]], -entry[1], entry[0]))
        return [(outcome, reason, rule, count) for (outcome, reason, rule), count in ordered]

    def to_json(self) -> JsonObject:
        """Return the whole report."""
        machines: list[JsonValue] = [row.to_json() for row in self.rows]
        reasons: list[JsonValue] = [
            {"outcome": outcome, "reason": reason or None, "rule": rule, "machines": count}
            for outcome, reason, rule, count in self.reasons
        ]
        changes: list[JsonValue] = [one.to_json() for one in self.changes]
        return {
            "machines": machines,
            "total": len(self.rows),
            **{str(outcome): self.count(outcome) for outcome in Outcome},
            "reasons": reasons,
            "clusterChanges": changes,
            "withoutCertificate": self.without_certificate,
        }


def simulate(fleet: Fleet, scope: Scope, infra: InfraAnnotations, now: datetime) -> SimulationReport:
    """Evaluate every machine with a valid certificate under the policies as they are and as they would be."""
    policies = list({**fleet.policies, **scope.changed}.values())
    touched = {
        name: cluster
        for name, cluster in sorted(fleet.clusters.items())
        if scope.cluster in {None, name} and _is_touched(cluster, fleet.policies, scope.changed)
    }
    counts = fleet.count_under(now)
    before = {name: _ruling(name, one, list(fleet.policies.values()), counts) for name, one in touched.items()}
    after = {name: _ruling(name, one, policies, counts) for name, one in touched.items()}
    simulator, rows = Simulator(infra, now), list[Row]()
    for attestation in fleet.attestations:
        name, newest = attestation.cluster_name, attestation.live(now)
        machine = fleet.machine_of(attestation)
        if name not in touched or newest is None or (scope.only_known and machine is None):
            continue
        verdict, was = (simulator.evaluate(attestation, machine, touched[name], one[name]) for one in (after, before))
        rows.append(
            Row(
                cluster=name,
                machine=machine.name if machine is not None else "",
                attestation=attestation.name,
                node=attestation.node_name,
                provider=attestation.provider,
                expires=newest.not_after,
                policy=_name(after[name]),
                policy_now=_name(before[name]),
                verdict=verdict,
                refused_now=was.outcome is Outcome.REFUSED and was.reason == verdict.reason,
            )
        )
    by_cluster = Counter(row.cluster for row in rows)
    changes = [
        ClusterChange(
            cluster=name,
            before=_name(before[name]),
            after=_name(after[name]),
            selecting=tuple(sorted(text(one, "metadata", "name") for one in selecting(cluster, policies))),
            machines=by_cluster[name],
        )
        for name, cluster in touched.items()
    ]
    return SimulationReport(
        rows=tuple(sorted(rows, key=lambda row: (_ORDER[row.verdict.outcome], row.cluster, row.node))),
        changes=tuple(change for change in changes if change.before != change.after or len(change.selecting) > 1),
        clusters=len(touched),
        without_certificate=_without_certificate(fleet, touched, now),
    )


def _ruling(
    name: str, cluster: JsonObject, policies: Sequence[JsonObject], counts: Mapping[tuple[str, str], int]
) -> Ruling:
    return find_ruling(cluster, policies, lambda policy: counts.get((name, policy), 0))


def _is_touched(cluster: JsonObject, now: Mapping[str, JsonObject], changed: Mapping[str, JsonObject]) -> bool:
    present = [now[name] for name in changed if name in now]
    return any(selects(policy, cluster) for policy in (*present, *changed.values()))


def _without_certificate(fleet: Fleet, touched: Collection[str], now: datetime) -> int:
    known = {(one.cluster_name, one.provider_id) for one in fleet.attestations if one.live(now) is not None}
    return sum(key[0] in touched and key not in known for key in fleet.machines)


def _name(ruling: Ruling) -> str:
    return ruling.name if isinstance(ruling, Policy) else ""
