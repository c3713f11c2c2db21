"""Checks of the installation: versions, definitions, the controller's Lease, its rights, and the webhook.

The manifests are the only list of rights. The controller's version is what it wrote on its Lease.
Source: kubernetes staging/src/k8s.io/api/authorization/v1/types.go (ResourceAttributes).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from nodeattest_cli.doctor.findings import (
    CONTRACTS,
    NEWEST_TESTED,
    NOT_READ,
    OLDEST,
    OLDEST_MANAGEMENT,
    CheckResult,
)
from nodeattest_cli.doctor.survey import BOOTSTRAP, CONTROLLER, Survey, optional
from nodeattest_cli.fleet import cluster_api_version
from nodeattest_cli.output import listed
from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config.render import has_agent
from nodeattest_controller.model.machine_view import CLUSTER_LABEL
from nodeattest_controller.model.webhook_configuration import (
    MUTATING,
    WEBHOOK_NAME,
    missing_conditions,
    shipped_configuration,
)
from nodeattest_controller.runtime.guard import HOLDER_ANNOTATION, VERSION_ANNOTATION
from nodeattest_kube import paths
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_parsing.objects import condition, flag, items, key_of, mapping, moment, number, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import __version__

TOLERATED: Final = 60.0
"""Seconds by which clocks may differ."""
ADMISSION: Final = ("admissionregistration.k8s.io", "v1")
_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,4})(?!\d)", re.ASCII)
_NAMESPACE: Final = "nodeattest-system"
"""The controller's, as the manifests have it."""
_AT_ONCE: Final = 8
"""Reviews that one API server is asked at a time."""
_LIMITS: Final = {
    "ValidatingAdmissionPolicy": ("failurePolicy", "matchConditions", "variables", "validations"),
    "ValidatingAdmissionPolicyBinding": ("policyName", "validationActions"),
}
"""By kind of manifests/challenge-secrets: fields that an installation has no reason to change."""
_TRIAL: Final = "nodeattest-doctor"


async def check_management_version(survey: Survey) -> CheckResult:
    """Compare the management cluster's version with what this release supports."""
    version = text(await survey.client.get("/version"), "gitVersion")
    oldest = OLDEST_MANAGEMENT if await cluster_api_version(survey.client) else OLDEST
    return kubernetes_version(version, oldest)


def kubernetes_version(version: str, oldest: tuple[int, int]) -> CheckResult:
    """Compare a server's ``gitVersion`` with the oldest supported and the newest tested one."""
    minor, found = minor_version(version), [version or "no version"]
    if minor is None:
        return CheckResult(unknown=found)
    if minor < oldest:
        remedy = f"upgrade the cluster to Kubernetes {oldest[0]}.{oldest[1]} or newer"
        return (
            CheckResult(errors=found, remedy=remedy) if minor < OLDEST else CheckResult(warnings=found, remedy=remedy)
        )
    remedy = "see whether a newer release of nodeattest was tested with it"
    return CheckResult(ok=version, warnings=found if minor > NEWEST_TESTED else [], remedy=remedy)


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as ``v1.37.2``; None where it has another form."""
    parsed = _VERSION.match(version)
    return (int(parsed[1]), int(parsed[2])) if parsed else None


async def check_cluster_api(survey: Survey) -> CheckResult:
    """Compare the version of Cluster API with what this release supports."""
    version = await cluster_api_version(survey.client)
    wrong = [f"{version} is preferred"] if version and version not in CONTRACTS else []
    return CheckResult(ok=version or "none", errors=wrong)


async def check_definitions(survey: Survey) -> CheckResult:
    """Compare the definitions of the server with those of this release."""
    wrong, other = list[str](), list[str]()
    for shipped in manifests.crds():
        name = text(shipped, "metadata", "name")
        path = paths.object_path("apiextensions.k8s.io", "v1", "customresourcedefinitions", name)
        definition = await optional(survey.client, path) or {}
        established = condition(items(definition, "status", "conditions"), "Established")
        if _served(shipped) - _served(definition) or established is None or established.get("status") != "True":
            wrong.append(f"{name} is not served")
        elif not _schemas(shipped).items() <= _schemas(definition).items():
            other.append(f"{name} has another schema")
    return CheckResult(ok="they are", errors=wrong, warnings=other)


def _served(definition: JsonObject) -> set[str]:
    return {text(one, "name") for one in items(definition, "spec", "versions") if flag(one, "served")}


def _schemas(definition: JsonObject) -> dict[str, JsonObject]:
    versions = items(definition, "spec", "versions")
    return {text(one, "name"): mapping(one, "schema", "openAPIV3Schema") for one in versions}


async def _lease(survey: Survey) -> JsonObject:
    path = ("coordination.k8s.io", "v1", "leases", survey.lease_name)
    return await optional(survey.client, paths.object_path(*path, namespace=survey.controller_namespace)) or {}


async def check_leader(survey: Survey) -> CheckResult:
    """See whether a replica renews the Lease, by the API server's time."""
    lease = await _lease(survey)
    holder, at = (text(lease, "spec", field) for field in ("holderIdentity", "renewTime"))
    renewed, seconds = moment(at), number(lease, "spec", "leaseDurationSeconds")
    if not lease:
        return CheckResult(errors=[f"there is no Lease {survey.controller_namespace}/{survey.lease_name}"])
    if not holder or renewed is None or seconds is None:
        return CheckResult(errors=["nobody holds it"])
    ahead = (renewed - survey.now).total_seconds()
    if ahead > TOLERATED:
        late = f"{holder} renewed it {ahead:.0f} s ahead of the API server's clock"
        return CheckResult(errors=[late], remedy="synchronize the clocks (NTP)")
    return CheckResult(
        ok=f"{holder} does", errors=[f"{holder} has not renewed it since {at}"] if ahead < -seconds else []
    )


async def check_controller_version(survey: Survey) -> CheckResult:
    """Compare what runs with this program; an earlier holder's version is not counted."""
    lease = await _lease(survey)
    annotations = mapping(lease, "metadata", "annotations")
    is_holders = text(annotations, HOLDER_ANNOTATION) == text(lease, "spec", "holderIdentity") != ""
    version = text(annotations, VERSION_ANNOTATION) if is_holders else ""
    wrong = [] if version == __version__ else [version or "no holder of the Lease tells its version"]
    return CheckResult(ok=version, warnings=wrong)


# Rights


async def check_management_rights(survey: Survey) -> CheckResult:
    """Ask for each right of the controller's ServiceAccount."""
    namespace = survey.controller_namespace
    folders = ["rbac", *(["challenge-secrets"] if await survey.creates_secrets() else [])]
    folders += ["webhook"] if await _webhook_configuration(survey) is not None else []
    accounts = [text(one, "spec", "template", "spec", "serviceAccountName") for one in await survey.deployments()]
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    account = next(filter(None, accounts), CONTROLLER)
    user = ReviewedUser(name=f"system:serviceaccount:{namespace}:{account}", groups=groups)
    # A controller that watches one namespace has its rights on namespaced objects there.
    watched = await survey.argument("--watch-namespace") or ""
    return await _check_rights(survey.client, shipped_rights(folders, namespace), user, watched)


async def check_workload_rights(survey: Survey, client: ApiClient) -> CheckResult:
    """Ask for each right of a kubeconfig's user, by the controllers that run and by what policies say."""
    wanted = {
        "workload-rbac": True,
        "workload-hardening": await survey.runs("hardening"),
        "workload-bootstrap-token": await survey.runs("bootstrap-token"),
        "workload-discovery": await survey.runs("bootstrap-signer") or await survey.runs("token-cleaner"),
        "workload-on-failure": any(mapping(one, "spec", "onFailure") for one in await survey.policies()),
    }
    folders = [folder for folder, is_needed in wanted.items() if is_needed]
    return await _check_rights(client, shipped_rights(folders, survey.controller_namespace))


async def _check_rights(
    client: ApiClient, rights: Mapping[ResourceAttributes, str], user: ReviewedUser | None = None, namespace: str = ""
) -> CheckResult:
    """Ask for each right; ``user``: whose, None: of who asks."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def is_allowed(right: ResourceAttributes) -> bool:
        async with turn:
            return await is_access_allowed(client, replace(right, namespace=right.namespace or namespace), user)

    asked = list(rights)
    answers = [await is_allowed(right) for right in asked[:1]]  # alone: who may not ask is refused once
    answers += await asyncio.gather(*map(is_allowed, asked[1:]))
    lacking = [right for right, allowed in zip(asked, answers, strict=True) if not allowed]
    return CheckResult(
        ok=f"{len(rights)} rights",
        errors=[f"may not: {listed(map(can_i, lacking))}"] if lacking else [],
        remedy=f"apply {listed(sorted({f'manifests/{rights[right]}' for right in lacking}))}",
    )


def can_i(right: ResourceAttributes) -> str:
    """Write a right as ``kubectl auth can-i`` is asked."""
    resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    name, where = f" {right.name}" if right.name else "", f" -n {right.namespace}" if right.namespace else ""
    return f"{right.verb} {resource}{'.' if right.group else ''}{right.group}{name}{where}"


def shipped_rights(folders: Sequence[str], namespace: str) -> dict[ResourceAttributes, str]:
    """Return the controller's rights by these manifests, each with its folder; ``namespace``: the controller's."""
    found = {right: folder for folder in folders for right in _rights_of(folder, namespace)}
    return dict(sorted(found.items(), key=lambda one: (one[1], can_i(one[0]))))


def _rights_of(folder: str, namespace: str) -> Iterator[ResourceAttributes]:
    documents = manifests.objects(folder)
    roles = {(text(one, "kind"), text(one, "metadata", "name")): one for one in documents}
    for binding in documents:
        if not any(text(subject, "name") == CONTROLLER for subject in items(binding, "subjects")):
            continue
        role = roles.get((text(binding, "roleRef", "kind"), text(binding, "roleRef", "name")))
        where = text(binding, "metadata", "namespace")
        for rule in items(role or {}, "rules"):
            names = strings(rule, "resourceNames") or ("",)
            fields = (strings(rule, field) for field in ("apiGroups", "resources", "verbs"))
            for group, resource, verb, name in product(*fields, names):
                main, _, subresource = resource.partition("/")
                yield ResourceAttributes(
                    verb=verb,
                    group=group,
                    resource=main,
                    subresource=subresource,
                    name=name,
                    namespace=namespace if where == _NAMESPACE else where,
                )


async def check_secret_limit(survey: Survey) -> CheckResult | None:
    """Compare what limits the Secrets that the controller may create with this release."""
    if not await survey.creates_secrets():
        return None
    wrong: list[str] = []
    for shipped in manifests.objects("challenge-secrets"):
        kind, name = text(shipped, "kind"), text(shipped, "metadata", "name")
        if kind in _LIMITS:
            resource = (
                "validatingadmissionpolicybindings" if kind.endswith("Binding") else "validatingadmissionpolicies"
            )
            found = await optional(survey.client, paths.object_path(*ADMISSION, resource, name))
            spec, wanted = mapping(found or {}, "spec"), mapping(shipped, "spec")
            wrong += [f"{kind} {name}: {field} differs" for field in _LIMITS[kind] if spec.get(field) != wanted[field]]
    return CheckResult(ok="it does", errors=wrong)


# The webhook


async def _webhook_configuration(survey: Survey) -> JsonObject | None:
    name = text(shipped_configuration(), "metadata", "name")
    return await optional(survey.client, paths.object_path(*ADMISSION, f"{MUTATING.lower()}s", name))


async def check_webhook(survey: Survey) -> CheckResult:
    """Create a KubeadmConfig in a dry run, for one Cluster of each namespace whose policy enforces.

    Whether a webhook is missing, and whether it leaves a namespace out, is in each policy's condition Ready.
    """
    configuration = await _webhook_configuration(survey)
    if configuration is None:
        return CheckResult(ok="there is no webhook")
    version, chosen = await cluster_api_version(survey.client, BOOTSTRAP), dict[str, JsonObject]()
    for cluster in await survey.protected() if version else ():
        if not flag(cluster, "spec", "paused") and await survey.enforces(cluster):
            chosen.setdefault(text(cluster, "metadata", "namespace"), cluster)
    errors, unknown = list[str](), list[str]()
    for cluster in chosen.values():
        try:
            found = await _try(survey.client, cluster, version)
        except ApiError as error:
            is_ours = WEBHOOK_NAME in str(error)
            (errors if is_ours else unknown).append(f"{key_of(cluster)}: {error}")
        else:
            errors += [f"{key_of(cluster)}: {found}"] if found else []
    webhooks = items(configuration, "webhooks")
    lacking = [f"it lacks the matchCondition {one}" for webhook in webhooks for one in missing_conditions(webhook)]
    ok = f"tried in {listed(chosen)}" if chosen else "no Cluster has a policy that enforces"
    return CheckResult(
        ok=ok, errors=errors, unknown=unknown, warnings=lacking, remedy="" if errors else NOT_READ.remedy
    )


async def _try(client: ApiClient, cluster: JsonObject, version: str) -> str:
    """Create a KubeadmConfig of a cluster in a dry run; returns what is wrong with the answer, or raises ApiError."""
    argument: JsonObject = {"name": "provider-id", "value": f"{_TRIAL}://trial"}
    arguments: JsonValue = {"provider-id": argument["value"]} if version == "v1beta1" else [argument]
    namespace = text(cluster, "metadata", "namespace")
    labels: JsonObject = {CLUSTER_LABEL: text(cluster, "metadata", "name")}
    body: JsonObject = {
        "apiVersion": f"{BOOTSTRAP}/{version}",
        "kind": "KubeadmConfig",
        "metadata": {"name": _TRIAL, "namespace": namespace, "labels": labels},
        "spec": {"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": arguments}}},
    }
    path = paths.collection_path(BOOTSTRAP, version, "kubeadmconfigs", namespace=namespace)
    try:
        made: JsonObject = {**await client.create(f"{path}?dryRun=All", body), "kind": "KubeadmConfig"}
    except ApiError as error:
        if f'admission webhook "{WEBHOOK_NAME}" denied' in str(error):
            return ""  # it answers
        raise
    return "" if has_agent(made) else "the KubeadmConfig is not rendered"
