"""The installation: a move to come, versions, definitions, the controller's Lease and clocks.

The controller's version is what it wrote on its Lease itself; the Deployment says only what ought to run. A certificate
begins five minutes before it is signed, so a clock that is off by more makes certificates that are not valid yet.
docs/install.md#versions has the same versions, by a test.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from nodeattest_cli.doctor.model import HealthFinding, listed, make_finding, not_looked_at
from nodeattest_cli.doctor.survey import TOLERATED, Survey, Unread, optional, readable, required
from nodeattest_controller import manifests
from nodeattest_controller.model.certificate_authority import BACKDATE
from nodeattest_controller.model.lease_annotations import HOLDER_ANNOTATION, VERSION_ANNOTATION
from nodeattest_controller.model.webhook_configuration import LABEL, is_decided, label_command
from nodeattest_kube import paths
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


async def check_move(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Look at what stops ``clusterctl move`` halfway, where there is a move to come.

    Source: cluster-api cmd/clusterctl/client/cluster/mover.go (checkClustersNotPaused, ensureNamespace).
    """
    move = survey.move
    if move is None:
        return
    if isinstance(move.paused, Unread):
        yield not_looked_at("move-source", str(move.paused))
    else:
        yield make_finding(
            "move-source",
            "no Cluster or ClusterClass of the source is paused",
            "none is",
            errors=[f"paused: {listed(sorted(move.paused))}"] if move.paused else [],
            remedy="unpause what an earlier move paused (docs/bootstrap-config.md)",
        )
    for name in required(move.namespaces):
        namespace = await optional(survey.client, paths.core_path("namespaces", name))
        remedy = label_command(name)
        errors = ["without the label"] if namespace is not None and not is_decided(namespace) else []
        if namespace is None:
            errors, remedy = ["not there"], f"kubectl create namespace {name} && {remedy}"
        expected = f"the namespace {name} of the target has the label {LABEL}"
        yield make_finding("move-namespace", expected, "it has", errors=errors, remedy=remedy)


async def check_management_version(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Compare the management cluster's version with what this release supports."""
    oldest = OLDEST_MANAGEMENT if survey.cluster_api else OLDEST
    yield kubernetes_version("management-version", required(survey.version), oldest)


async def check_cluster_api(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Compare the version of Cluster API with what this release supports."""
    version = required(survey.cluster_api)
    yield make_finding(
        "cluster-api-version",
        f"Cluster API {' or '.join(CONTRACTS)}, or none where machines are MachineRecords",
        version or "none",
        errors=[f"{version} is preferred"] if version and version not in CONTRACTS else [],
        remedy=f"see whether a newer release of nodeattest supports it: {_PAGE}",
    )


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of a server's ``gitVersion`` such as ``v1.37.2``; None where it has another form."""
    parsed = _VERSION.match(version)
    return (int(parsed[1]), int(parsed[2])) if parsed else None


def kubernetes_version(name: str, version: str, oldest: tuple[int, int], cluster: str = "") -> HealthFinding:
    """Compare a server's version with the oldest supported and the newest tested one."""
    first, last = (".".join(map(str, each)) for each in (oldest, NEWEST_TESTED))
    minor, said = minor_version(version), [version or "no version"]
    is_old = minor is not None and minor < oldest
    is_unsupported = minor is not None and minor < OLDEST
    is_new = minor is not None and minor > NEWEST_TESTED
    remedy = f"compare its version with {_PAGE}"
    if is_old:
        remedy = f"upgrade the cluster to Kubernetes {first} or newer"
    elif is_new:
        remedy = "see whether a newer release of nodeattest was tested with it"
    return make_finding(
        name,
        f"Kubernetes {first} to {last} ({_PAGE})",
        version,
        errors=said if is_unsupported else [],
        unknown=said if minor is None else [],
        warnings=said if is_new or (is_old and not is_unsupported) else [],
        remedy=remedy,
        cluster=cluster,
    )


async def check_definitions(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Compare the definitions that the server has with those of this release."""
    known, wrong, other = list[str](), list[str](), list[str]()
    for shipped in manifests.crds():
        name = text(shipped, "metadata", "name")
        path = paths.object_path("apiextensions.k8s.io", "v1", "customresourcedefinitions", name)
        definition = await optional(survey.client, path)
        if definition is None:
            wrong.append(f"{name} is not there")
            continue
        known.append(name)
        unserved = _served(shipped) - _served(definition)
        established = condition(items(definition, "status", "conditions"), "Established")
        if unserved:
            wrong.append(f"{name} does not serve {listed(sorted(unserved))}")
        elif established is None or established.get("status") != "True":
            wrong.append(f"{name} is not established")
        other += [] if _schemas(shipped).items() <= _schemas(definition).items() else [name]
    expected = "our CustomResourceDefinitions are there and served"
    yield make_finding("definitions-served", expected, listed(sorted(known)), errors=wrong, remedy=_APPLY)
    yield make_finding(
        "definitions-of-release",
        "their schemas are those of this release",
        f"the same in {len(known)} definitions",
        warnings=[f"another schema: {listed(sorted(other))}"] if other else [],
        remedy=f"{_APPLY}, unless the controller is of another release",
    )


def _served(definition: JsonObject) -> set[str]:
    return {text(one, "name") for one in items(definition, "spec", "versions") if flag(one, "served")}


def _schemas(definition: JsonObject) -> dict[str, JsonObject]:
    versions = items(definition, "spec", "versions")
    return {text(one, "name"): mapping(one, "schema", "openAPIV3Schema") for one in versions}


async def check_controller(survey: Survey) -> AsyncIterator[HealthFinding]:
    """See whether a replica leads, by its Lease, which version it has, and whether its clock is right."""
    await survey.await_renewals()
    namespace = survey.target.controller_namespace
    errors = ["there is no such Lease"]
    holder = ""
    for lease in required(survey.leases):
        holder, at = (text(lease, "spec", field) for field in ("holderIdentity", "renewTime"))
        since = f" since {at}" if at else ""
        said = f"{holder} has not renewed it{since}" if holder else f"nobody holds it{since}"
        errors = [] if survey.is_renewed(lease) else [said]
    yield make_finding(
        "controller-leader",
        f"a replica holds and renews the Lease {namespace}/{survey.target.lease_name}",
        f"{holder} does",
        errors=errors,
        remedy="docs/runbooks.md#nodeattestationnobodyserves",
    )
    for lease in readable(survey.leases):
        ahead = survey.writer_ahead(lease)
        if ahead is not None:
            yield clock("controller-clock", "the controller's clock", ahead)


async def check_controller_version(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Compare what runs with this program; who holds no Lease, or wrote no version there, is older than this check.

    What an earlier holder wrote is no version of this one, which may be a release that writes none.
    """
    version = ""
    for lease in required(survey.leases):
        holder, annotations = text(lease, "spec", "holderIdentity"), mapping(lease, "metadata", "annotations")
        version = text(annotations, VERSION_ANNOTATION) if text(annotations, HOLDER_ANNOTATION) == holder != "" else ""
    remedy = "take the nodeattest of the controller's release, or upgrade the controller (docs/operate.md#upgrade)"
    older = "if a controller runs, it is older: compare node-attestation-controller --version with nodeattest version"
    said = version or f"no holder of the Lease in {survey.target.controller_namespace} says its version"
    yield make_finding(
        "controller-version",
        f"the controller's version is this program's, {__version__}: so are its wire versions",
        __version__,
        warnings=[] if version == __version__ else [said],
        remedy=remedy if version else older,
    )


async def check_local_clock(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Compare this machine's clock with the management cluster's."""
    theirs = survey.client.server_time()
    if theirs is not None:
        yield clock("local-clock", "this machine's clock", (datetime.now(UTC) - theirs).total_seconds())


def clock(name: str, whose: str, ahead: float, cluster: str = "") -> HealthFinding:
    """Say by how many seconds a clock is ahead of the management cluster's."""
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
