"""Findings of ``nodeattest doctor``: the table of all ids, and what one is made of. Pure.

Ids and the JSON form are stable (docs/monitor.md#doctor). A finding holds what objects say: the printer escapes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from nodeattest_cli.output import ExitCode
from nodeattest_controller.runtime.workload_client import BOOTSTRAP_BINDING
from nodeattest_parsing.values import JsonObject

OLDEST: Final = (1, 31)
OLDEST_MANAGEMENT: Final = (1, 33)
"""The oldest Kubernetes on which Cluster API 1.14 runs. A management cluster without Cluster API needs ``OLDEST``."""
NEWEST_TESTED: Final = (1, 37)
CONTRACTS: Final = ("v1beta1", "v1beta2")
"""Of Cluster API."""
_VERSIONS: Final = "docs/install.md#versions"


class Row(NamedTuple):
    """What a finding expects, and what to do where it is not so."""

    expected: str
    remedy: str


TABLE: Final = {
    "management-version": Row(f"a supported version of Kubernetes ({_VERSIONS})", f"see {_VERSIONS}"),
    "workload-version": Row(f"a supported version of Kubernetes ({_VERSIONS})", f"see {_VERSIONS}"),
    "cluster-api-version": Row(
        f"Cluster API {' or '.join(CONTRACTS)}, or none where machines are MachineRecords",
        f"use a release of nodeattest that supports it: {_VERSIONS}",
    ),
    "controller-version": Row(
        "the controller's version is this program's, and so are its wire versions",
        "use the nodeattest of the controller's release, or upgrade the controller (docs/operate.md#upgrade)",
    ),
    "definitions": Row(
        "the CustomResourceDefinitions of this release are served",
        "kubectl apply -k manifests/crd of this release, unless the controller is of another release",
    ),
    "controller-leader": Row(
        "a replica holds and renews the controller's Lease", "docs/runbooks.md#nodeattestationnobodyserves"
    ),
    "management-rights": Row(
        "the controller's ServiceAccount has every right of the manifests", "apply the manifests of this release"
    ),
    "challenge-secrets-policy": Row(
        "the ValidatingAdmissionPolicy of this release limits the Secrets that the controller may create",
        "apply manifests/challenge-secrets",
    ),
    "webhook-answers": Row(
        "the webhook renders a KubeadmConfig in a dry run, in each namespace with a policy that enforces",
        "docs/runbooks.md#nodeattestationwebhookerrors",
    ),
    "policies": Row(
        "the controller accepts every policy",
        "correct what the condition Ready says; without it, see whether a controller runs",
    ),
    "clusters-without-policy": Row(
        "there are Clusters; those that no policy selects are not protected", "set --namespace or --all-namespaces"
    ),
    "cluster-reachable": Row(
        "the workload cluster answers, and its clock is right",
        "docs/monitor.md#a-node-does-not-join, A cluster does not connect; for clocks: NTP",
    ),
    "cluster-conditions": Row(
        "the controller serves the cluster, and automatic approval of node certificates is blocked",
        "docs/operate.md#automatic-approval and docs/scale.md#how-to-divide-clusters",
    ),
    "workload-rights": Row(
        "the user of the cluster's kubeconfig has every right of the manifests", "apply the manifests of this release"
    ),
    "bootstrap-tokens": Row(
        "bootstrap tokens may create CertificateSigningRequests",
        f"the controller creates the ClusterRoleBinding {BOOTSTRAP_BINDING} when it connects: see its log, and apply "
        "manifests/workload-rbac",
    ),
    "bootstrap-data": Row(
        "the bootstrap configuration of each machine that is about to join starts the agent",
        "use nodeattest render or the webhook (docs/bootstrap-config.md), then create the machines again",
    ),
    "machines": Row(
        "every machine is attested or about to be, and none is refused",
        "nodeattest machines list --not-attested; nodeattest explain machine/NAME; docs/operate.md#adoption",
    ),
}
"""By id, in the order of the output."""
NOT_READ: Final = Row("this user can read it", "let this user read it (docs/monitor.md#doctor, Rights)")


class HealthSeverity(StrEnum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    UNKNOWN = "unknown"
    """It could not be checked: ``found`` says why."""
    WARNING = "warning"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check found: as bad as the worst list that is not empty; ``ok`` where all are."""

    ok: str = ""
    errors: Sequence[str] = ()
    unknown: Sequence[str] = ()
    warnings: Sequence[str] = ()
    remedy: str = ""
    """In place of the table's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """One thing that was checked."""

    id: str
    severity: HealthSeverity
    expected: str
    found: str
    remedy: str = ""
    cluster: str = ""
    """``namespace/name`` of the workload cluster; empty: the management cluster, or all."""

    @classmethod
    def make(cls, name: str, result: CheckResult, cluster: str = "", row: Row | None = None) -> HealthFinding:
        """Make a finding of a check's result by the table's row."""
        lists = (result.errors, result.unknown, result.warnings)
        severity = next((one for one, said in zip(HealthSeverity, lists, strict=False) if said), HealthSeverity.OK)
        row = row or TABLE[name]
        return cls(
            id=name,
            severity=severity,
            expected=row.expected,
            found="; ".join(said for each in lists for said in each) or result.ok,
            remedy="" if severity is HealthSeverity.OK else result.remedy or row.remedy,
            cluster=cluster,
        )

    def to_json(self) -> JsonObject:
        """Return the entry of ``findings``."""
        return {
            "id": self.id,
            "severity": str(self.severity),
            "cluster": self.cluster or None,
            "expected": self.expected,
            "found": self.found,
            "remedy": self.remedy or None,
        }

    def lines(self) -> Iterator[str]:
        """Yield one line for what is ok, and what to do for everything else."""
        marks = {
            HealthSeverity.OK: "ok",
            HealthSeverity.WARNING: "warn",
            HealthSeverity.ERROR: "FAIL",
            HealthSeverity.UNKNOWN: "?",
        }
        where = f" {self.cluster}" if self.cluster else ""
        yield f"{marks[self.severity]:4}  {self.id}{where}: {' '.join(self.found.split())}"
        if self.severity is not HealthSeverity.OK:
            yield f"        expected  {self.expected}"
            yield f"        do        {self.remedy}"


def worst(findings: Iterable[HealthFinding]) -> HealthSeverity:
    """Return the worst severity of all."""
    found = {one.severity for one in findings}
    return next((one for one in HealthSeverity if one in found), HealthSeverity.OK)


def exit_code(findings: Iterable[HealthFinding]) -> ExitCode:
    """Return the exit code: 1 for an error, 3 where something could not be checked, 0 otherwise."""
    codes = {HealthSeverity.ERROR: ExitCode.REFUSED, HealthSeverity.UNKNOWN: ExitCode.NO_ACCESS}
    return codes.get(worst(findings), ExitCode.DONE)


def count(findings: Iterable[HealthFinding]) -> dict[str, int]:
    """Count the findings of each severity, the worst first."""
    counted = Counter(one.severity for one in findings)
    return {str(severity): counted[severity] for severity in HealthSeverity}
