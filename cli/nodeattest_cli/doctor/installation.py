"""The installation: a move to come, versions, definitions, the controller's Lease, rights and clocks. Pure.

The controller's version is what it wrote on its Lease itself; the Deployment says only what ought to run. A certificate
begins five minutes before it is signed, so a clock that is off by more makes certificates that are not valid yet.
docs/install.md#versions has the same versions, by a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from nodeattest_cli.doctor.facts import (
    SECRET_LIMIT,
    SECRET_LIMIT_RESOURCES,
    TOLERATED,
    HealthFacts,
    ShippedRight,
    Unread,
    is_renewed,
    leader_leases,
    writer_ahead,
)
from nodeattest_cli.doctor.model import HealthFinding, listed, make_finding
from nodeattest_controller import manifests
from nodeattest_controller.model.certificate_authority import BACKDATE
from nodeattest_controller.model.lease_annotations import HOLDER_ANNOTATION, VERSION_ANNOTATION
from nodeattest_controller.model.webhook_configuration import LABEL, is_decided, label_command
from nodeattest_parsing.objects import condition, flag, items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import __version__

OLDEST: Final = (1, 31)
OLDEST_MANAGEMENT: Final = (1, 33)
"""The oldest Kubernetes on which Cluster API 1.14 runs. A management cluster without Cluster API needs ``OLDEST``."""
NEWEST_TESTED: Final = (1, 37)
CONTRACTS: Final = ("v1beta1", "v1beta2")
"""Of Cluster API."""
_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,4})(?!\d)", re.ASCII)
_PAGE: Final = "docs/install.md#versions"
_APPLY: Final = "kubectl apply -k manifests/crd of this release"
_RUNBOOK: Final = "docs/runbooks.md#nodeattestationnobodyserves"
_SAME: Final[Mapping[str, tuple[str, ...]]] = {
    "ValidatingAdmissionPolicy": ("failurePolicy", "matchConditions", "variables", "validations"),
    "ValidatingAdmissionPolicyBinding": ("policyName", "validationActions"),
}
"""Fields that an installation has no reason to change."""


def check_move(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at what stops ``clusterctl move`` halfway, where there is a move to come.

    Source: cluster-api cmd/clusterctl/client/cluster/mover.go (checkClustersNotPaused, ensureNamespace).
    """
    move = facts.move
    if move is None:
        return
    if move.paused or "move-source" not in move.unread:
        yield make_finding(
            "move-source",
            "no Cluster or ClusterClass of the source is paused",
            "none is",
            errors=[f"paused: {listed(sorted(move.paused))}"] if move.paused else [],
            remedy="unpause what an earlier move paused (docs/bootstrap-config.md)",
        )
    expected = "policies, Clusters and ClusterClasses of the source can be read"
    for name, why in move.unread.items():
        yield make_finding(name, expected, "", unknown=[why], remedy="let this user read them")
    for name, namespace in move.namespaces.items():
        expected, remedy = f"the namespace {name} of the target has the label {LABEL}", label_command(name)
        errors: list[str] = []
        unknown: list[str] = []
        match namespace:
            case Unread():
                unknown, remedy = [namespace.why], "let this user read Namespaces"
            case None:
                errors, remedy = ["not there"], f"kubectl create namespace {name} && {remedy}"
            case _ if not is_decided(namespace):
                errors = ["without the label"]
            case _:
                pass
        yield make_finding("move-namespace", expected, "it has", errors=errors, unknown=unknown, remedy=remedy)


def check_versions(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Compare each version with what this release supports."""
    version = facts.management.cluster_api
    yield _kubernetes("management-version", facts.management.version, OLDEST_MANAGEMENT if version else OLDEST)
    for key, workload in facts.workloads.items():
        if workload.unreached is None:
            yield _kubernetes("workload-version", workload.version, OLDEST, key)
    expected = f"Cluster API {' or '.join(CONTRACTS)}, or none where machines are MachineRecords"
    name, newer = "cluster-api-version", f"see whether a newer release of nodeattest supports it: {_PAGE}"
    if isinstance(version, Unread):
        yield make_finding(
            name, expected, "", unknown=[version.why], remedy="let this user read /apis/cluster.x-k8s.io"
        )
    else:
        wrong = [f"{version} is preferred"] if version and version not in CONTRACTS else []
        yield make_finding(name, expected, version or "none", errors=wrong, remedy=newer)
    yield _controller_version(facts)


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of a server's ``gitVersion`` such as ``v1.37.2``; None where it has another form."""
    parsed = _VERSION.match(version)
    return (int(parsed[1]), int(parsed[2])) if parsed else None


def _kubernetes(name: str, version: str | Unread, oldest: tuple[int, int], cluster: str = "") -> HealthFinding:
    """Compare a server's version with the oldest supported and the newest tested one."""
    first, last = (".".join(map(str, each)) for each in (oldest, NEWEST_TESTED))
    expected = f"Kubernetes {first} to {last} ({_PAGE})"
    if isinstance(version, Unread):
        remedy = "let this user read /version"
        return make_finding(name, expected, "", unknown=[version.why], remedy=remedy, cluster=cluster)
    minor, said = minor_version(version), [version or "no version"]
    errors: list[str] = []
    unknown: list[str] = []
    warnings: list[str] = []
    remedy = f"compare its version with {_PAGE}"
    if minor is None:
        unknown = said
    elif minor < oldest:
        errors, warnings = ([], said) if minor >= OLDEST else (said, [])
        remedy = f"upgrade the cluster to Kubernetes {first} or newer"
    elif minor > NEWEST_TESTED:
        warnings, remedy = said, "see whether a newer release of nodeattest was tested with it"
    return make_finding(
        name, expected, version, errors=errors, unknown=unknown, warnings=warnings, remedy=remedy, cluster=cluster
    )


def _running_versions(facts: HealthFacts) -> list[str]:
    """Return the versions that replicas wrote on the Leases which they hold; unique, in order.

    Where any is renewed, those that are not are of replicas that have ended. What an earlier holder wrote is no version
    of this one, which may be a release that writes none. It is empty then.
    """
    held = [lease for lease in leader_leases(facts) if text(lease, "spec", "holderIdentity")]
    versions: set[str] = set()
    for lease in [lease for lease in held if is_renewed(facts, lease)] or held:
        annotations = mapping(lease, "metadata", "annotations")
        is_holders = text(annotations, HOLDER_ANNOTATION) == text(lease, "spec", "holderIdentity")
        versions.add(text(annotations, VERSION_ANNOTATION) if is_holders else "")
    return sorted(versions)


def _controller_version(facts: HealthFacts) -> HealthFinding:
    """Compare what runs with this program; who holds no Lease, or wrote no version, is older than this check."""
    leases, running = facts.management.leases, _running_versions(facts)
    expected = f"the controller's version is this program's, {__version__}: so are its wire versions"
    unknown: list[str] = []
    warnings: list[str] = []
    remedy = "take the nodeattest of the controller's release, or upgrade the controller (docs/operate.md#upgrade)"
    if isinstance(leases, Unread):
        unknown, remedy = [leases.why], "let this user list Leases there"
    elif not any(running):
        warnings = [f"no holder of a Lease in {facts.namespace} says its version"]
        remedy = (
            "if a controller runs, it is older: compare node-attestation-controller --version with nodeattest version"
        )
    elif running != [__version__]:
        warnings = [listed(one or "one that says no version" for one in running)]
    return make_finding("controller-version", expected, __version__, unknown=unknown, warnings=warnings, remedy=remedy)


@cache
def _shipped() -> Mapping[str, JsonObject]:
    """Return the definitions of this release by name."""
    return {text(one, "metadata", "name"): one for one in manifests.crds()}


def _missing(facts: HealthFacts) -> list[JsonObject]:
    """Return the definitions of this release that the server does not have."""
    known = facts.management.definitions
    return [definition for name, definition in _shipped().items() if known.get(name, definition) is None]


def check_definitions(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Compare the definitions that the server has with those of this release."""
    known, shipped = facts.management.definitions, _shipped()
    unread = [value.why for value in known.values() if isinstance(value, Unread)]
    expected = "our CustomResourceDefinitions are there and served"
    if unread:
        yield make_finding("definitions-served", expected, "", unknown=unread[:1], remedy="let this user read them")
        return
    there = {name: value for name, value in known.items() if isinstance(value, dict)}
    wrong = [f"{text(one, 'metadata', 'name')} is not there" for one in _missing(facts)]
    other: list[str] = []
    for name, definition in there.items():
        served, wanted = _served(definition), _served(shipped[name])
        established = condition(items(definition, "status", "conditions"), "Established")
        if not wanted <= served:
            wrong.append(f"{name} does not serve {listed(sorted(wanted - served))}")
        elif established is None or established.get("status") != "True":
            wrong.append(f"{name} is not established")
        other += [] if _schemas(shipped[name]).items() <= _schemas(definition).items() else [name]
    names = listed(sorted(there))
    yield make_finding("definitions-served", expected, names, errors=wrong, remedy=_APPLY)
    yield make_finding(
        "definitions-of-release",
        "their schemas are those of this release",
        f"the same in {len(there)} definitions",
        warnings=[f"another schema: {listed(sorted(other))}"] if other else [],
        remedy=f"{_APPLY}, unless the controller is of another release",
    )


def _served(definition: JsonObject) -> set[str]:
    return {text(one, "name") for one in items(definition, "spec", "versions") if flag(one, "served")}


def _schemas(definition: JsonObject) -> dict[str, JsonObject]:
    versions = items(definition, "spec", "versions")
    return {text(one, "name"): mapping(one, "schema", "openAPIV3Schema") for one in versions}


def check_leadership(facts: HealthFacts) -> Iterator[HealthFinding]:
    """See whether a replica leads, by its Lease, and whether each workload cluster answers."""
    leases, own = facts.management.leases, leader_leases(facts)
    expected = f"a replica holds and renews the Lease {facts.namespace}/{facts.lease_name}"
    ok, remedy = "", _RUNBOOK
    errors: list[str] = []
    unknown: list[str] = []
    if isinstance(leases, Unread):
        unknown, remedy = [leases.why], f"let this user list Leases in {facts.namespace}"
    elif not own:
        errors = ["there is no such Lease"]
    else:
        holder, at = (text(own[0], "spec", field) for field in ("holderIdentity", "renewTime"))
        since = f" since {at}" if at else ""
        ok = f"{holder} does"
        if not is_renewed(facts, own[0]):
            errors = [f"{holder} has not renewed it{since}" if holder else f"nobody holds it{since}"]
    yield make_finding("controller-leader", expected, ok, errors=errors, unknown=unknown, remedy=remedy)
    for key, workload in facts.workloads.items():
        yield make_finding(
            "cluster-reachable",
            "the workload cluster answers",
            "it does",
            unknown=[workload.unreached.why] if workload.unreached is not None else [],
            remedy="docs/monitor.md#a-node-does-not-join, A cluster does not connect",
            cluster=key,
        )


def check_rights(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Report the rights of the shipped manifests that the controller lacks, in both clusters."""
    account = f"the ServiceAccount node-attestation-controller of {facts.namespace}"
    yield _rights("management-rights", facts.management.reviews, account)
    if facts.creates_secrets():
        yield _secret_limit(facts)
    for key, workload in facts.workloads.items():
        if workload.unreached is None:
            yield _rights("workload-rights", workload.reviews, "the user of the cluster's kubeconfig", key)


def _rights(name: str, reviews: Mapping[ShippedRight, bool] | Unread, whose: str, cluster: str = "") -> HealthFinding:
    expected = f"{whose} has every right of the manifests"
    if isinstance(reviews, Unread):
        remedy = "let this user create SubjectAccessReviews"
        if cluster:
            remedy = f"let this user read the Secret {cluster.rpartition('/')[2]}-kubeconfig"
        return make_finding(name, expected, "", unknown=[reviews.why], remedy=remedy, cluster=cluster)
    lacking = sorted(right for right, allowed in reviews.items() if not allowed)
    return make_finding(
        name,
        expected,
        f"{len(reviews)} rights",
        errors=[f"may not: {listed(map(str, lacking))}"] if lacking else [],
        remedy=f"apply {listed(dict.fromkeys(f'manifests/{right.folder}' for right in lacking))}",
        cluster=cluster,
    )


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
    return make_finding(
        "challenge-secrets-policy",
        "the ValidatingAdmissionPolicy of this release limits the Secrets that the controller may create",
        "the same",
        errors=wrong,
        unknown=unread,
        remedy="apply manifests/challenge-secrets" if wrong else "let this user read it",
    )


def check_clocks(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Compare the clocks of this machine, the controller and the workload clusters with the management cluster's."""
    ahead = facts.management.ahead
    if ahead is not None:
        yield _clock("local-clock", "this machine's clock", -ahead)
    measured = [off for lease in leader_leases(facts) if (off := writer_ahead(facts, lease)) is not None]
    if measured:
        yield _clock("controller-clock", "the controller's clock", max(measured, key=abs))
    for key, workload in facts.workloads.items():
        if workload.ahead is not None:
            yield _clock("workload-clock", "the workload cluster's clock", workload.ahead, key)


def _clock(name: str, whose: str, ahead: float, cluster: str = "") -> HealthFinding:
    said = [f"{abs(ahead):.0f} s {'ahead' if ahead >= 0 else 'behind'}"]
    is_far = abs(ahead) > BACKDATE.total_seconds() and name != "local-clock"
    return make_finding(
        name,
        f"{whose} is within {TOLERATED:g} s of the management cluster's",
        f"within {TOLERATED:g} s",
        errors=said if is_far else [],
        warnings=said if abs(ahead) > TOLERATED and not is_far else [],
        remedy="synchronize the clocks (NTP)",
        cluster=cluster,
    )
