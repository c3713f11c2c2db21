"""Whether the controller has the rights that the shipped manifests give it, in both clusters.

The manifests are the only list of rights; a role counts where a binding gives it to the controller's ServiceAccount.
Source: kubernetes staging/src/k8s.io/api/authorization/v1/types.go (ResourceAttributes).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from nodeattest_cli.doctor.model import HealthFinding, listed, make_finding
from nodeattest_cli.doctor.survey import ADMISSION, CONTROLLER, Survey, optional, readable
from nodeattest_controller import manifests
from nodeattest_controller.model.webhook_configuration import MUTATING
from nodeattest_kube import paths
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.objects import items, mapping, strings, text

AT_ONCE: Final = 8
"""Reviews that one API server is asked at a time; and workload clusters."""
_NAMESPACE: Final = "nodeattest-system"
"""The controller's, as the manifests have it."""
_LIMIT: Final = "nodeattest-challenge-secrets"
"""Name of the ValidatingAdmissionPolicy of manifests/challenge-secrets, and of its binding."""
_LIMITS: Final = {
    "ValidatingAdmissionPolicy": (
        "validatingadmissionpolicies",
        ("failurePolicy", "matchConditions", "variables", "validations"),
    ),
    "ValidatingAdmissionPolicyBinding": ("validatingadmissionpolicybindings", ("policyName", "validationActions")),
}
"""By kind: the resource, and fields that an installation has no reason to change."""


@dataclass(frozen=True, slots=True)
class ShippedRight:
    """One verb on one resource, perhaps of one name."""

    folder: str
    """Of the manifests: what to apply where it is missing."""
    attributes: ResourceAttributes

    def __str__(self) -> str:
        """Say it as ``kubectl auth can-i`` is asked."""
        asked = self.attributes
        resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        named = f" {asked.name}" if asked.name else ""
        where = f" -n {asked.namespace}" if asked.namespace else ""
        return f"{asked.verb} {resource}{'.' if asked.group else ''}{asked.group}{named}{where}"


def shipped_rights(folders: Sequence[str], namespace: str) -> list[ShippedRight]:
    """List what these folders give, in order; ``namespace``: where the controller is."""
    found = {right for folder in folders for right in _of_folder(folder, namespace)}
    return sorted(found, key=lambda right: (right.folder, str(right)))


def _of_folder(folder: str, namespace: str) -> Iterator[ShippedRight]:
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
                attributes = ResourceAttributes(
                    verb=verb,
                    group=group,
                    resource=main,
                    subresource=subresource,
                    name=name,
                    namespace=namespace if where == _NAMESPACE else where,
                )
                yield ShippedRight(folder, attributes)


async def check_management_rights(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Ask for each right of the controller's ServiceAccount, and see what limits its right to create Secrets."""
    namespace, folders = survey.target.controller_namespace, ["rbac"]
    folders += ["challenge-secrets"] if survey.creates_secrets() else []
    folders += ["webhook"] if isinstance(survey.webhooks[MUTATING], dict) else []
    deployments = readable(survey.deployments)
    accounts = (text(one, "spec", "template", "spec", "serviceAccountName") for one in deployments)
    account = next(filter(None, accounts), CONTROLLER)
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    user = ReviewedUser(name=f"system:serviceaccount:{namespace}:{account}", groups=groups)
    # A controller that watches one namespace has its rights on namespaced objects there.
    watched = survey.argument("--watch-namespace") or ""
    rights = shipped_rights(folders, namespace)
    lacking = await _lacking(survey.client, rights, user, watched)
    whose = f"the ServiceAccount {CONTROLLER} of {namespace}"
    yield _rights("management-rights", whose, rights, lacking)
    if survey.creates_secrets():
        yield await _secret_limit(survey.client)


async def check_workload_rights(survey: Survey, key: str, client: ApiClient) -> AsyncIterator[HealthFinding]:
    """Ask for each right of a kubeconfig's user, by the controllers that run and by what policies say."""
    wanted = {
        "workload-rbac": True,
        "workload-hardening": survey.runs("hardening"),
        "workload-bootstrap-token": survey.runs("bootstrap-token"),
        "workload-discovery": survey.runs("bootstrap-signer") or survey.runs("token-cleaner"),
        "workload-on-failure": any(mapping(one, "spec", "onFailure") for one in readable(survey.policies)),
    }
    folders = [folder for folder, needed in wanted.items() if needed]
    rights = shipped_rights(folders, survey.target.controller_namespace)
    lacking = await _lacking(client, rights, None)
    yield _rights("workload-rights", "the user of the cluster's kubeconfig", rights, lacking, key)


async def _lacking(
    client: ApiClient, rights: Sequence[ShippedRight], user: ReviewedUser | None, namespace: str = ""
) -> list[ShippedRight]:
    """Ask for each right; the first refusal ends it. ``user``: whose, None: of who asks."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def is_allowed(right: ShippedRight) -> bool:
        asked = replace(right.attributes, namespace=right.attributes.namespace or namespace)
        async with turn:
            return await is_access_allowed(client, asked, user)

    first = [await is_allowed(right) for right in rights[:1]]  # alone: who may not ask is refused once
    answers = first + list(await asyncio.gather(*map(is_allowed, rights[1:])))
    return [right for right, allowed in zip(rights, answers, strict=True) if not allowed]


def _rights(
    name: str, whose: str, rights: Sequence[ShippedRight], lacking: Sequence[ShippedRight], cluster: str = ""
) -> HealthFinding:
    return make_finding(
        name,
        f"{whose} has every right of the manifests",
        f"{len(rights)} rights",
        errors=[f"may not: {listed(map(str, lacking))}"] if lacking else [],
        remedy=f"apply {listed(dict.fromkeys(f'manifests/{right.folder}' for right in lacking))}",
        cluster=cluster,
    )


async def _secret_limit(client: ApiClient) -> HealthFinding:
    """Compare what limits the Secrets that the controller may create with this release."""
    wrong: list[str] = []
    for shipped in manifests.objects("challenge-secrets"):
        kind = text(shipped, "kind")
        if kind not in _LIMITS:
            continue
        resource, fields = _LIMITS[kind]
        found = await optional(client, paths.object_path(*ADMISSION, resource, _LIMIT))
        if found is None:
            wrong.append(f"there is no {kind} {_LIMIT}")
            continue
        spec, wanted = mapping(found, "spec"), mapping(shipped, "spec")
        wrong += [f"{kind}: {field} is another" for field in fields if spec.get(field) != wanted.get(field)]
    return make_finding(
        "challenge-secrets-policy",
        "the ValidatingAdmissionPolicy of this release limits the Secrets that the controller may create",
        "the same",
        errors=wrong,
        remedy="apply manifests/challenge-secrets",
    )
