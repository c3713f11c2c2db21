"""Fetches what ``nodeattest doctor`` looks at, from both clusters, with the operator's own rights.

Promises: of Secrets only ``<cluster>-kubeconfig`` is read, and none with a kubeconfig of the workload cluster. The
number of requests depends on clusters and shipped rights, never on machines, but for the pages of lists (500 objects
each). Nothing is written: a KubeadmConfig that is created is a dry run. What may not be read is an ``Unread``; raises
``ApiError`` or ``UserError`` where the management cluster does not answer at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from nodeattest_cli.connection import Connection, explained
from nodeattest_cli.doctor.clusters import joiners
from nodeattest_cli.doctor.facts import (
    SECRET_LIMIT,
    SECRET_LIMIT_RESOURCES,
    HealthFacts,
    MoveFacts,
    ShippedRight,
    TrialRefusal,
    Unread,
    WorkloadFacts,
    is_renewed,
    leader_leases,
    management_folders,
    readable,
    shipped_rights,
    workload_folders,
)
from nodeattest_cli.doctor.webhook import VALIDATING
from nodeattest_cli.errors import UserError
from nodeattest_cli.fleet import CLUSTER_API, OWN, cluster_api_version, list_objects, list_served, workload_client
from nodeattest_controller import manifests
from nodeattest_controller.model.machine_record import cluster_paused
from nodeattest_controller.model.machine_view import CLUSTER_LABEL
from nodeattest_controller.model.webhook_configuration import MUTATING, needs_webhook, shipped_configuration
from nodeattest_discovery.clusterinfo import PATH as CLUSTER_INFO
from nodeattest_kube import paths
from nodeattest_kube.access_review import ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound, TooLarge, Unreachable
from nodeattest_kube.jsontypes import version_of
from nodeattest_parsing.objects import flag, items, key_of, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue

T = TypeVar("T")

_AT_ONCE: Final = 8
"""Reviews that one API server is asked at a time; and workload clusters."""
_MOST: Final = 100_000
"""Objects of one list."""
_PAUSE: Final = 5.0
"""Seconds until the Leases are read again, where nobody was seen to renew one; they are renewed every two."""
_BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io"
_RBAC: Final = ("rbac.authorization.k8s.io", "v1")
_ADMISSION: Final = ("admissionregistration.k8s.io", "v1")
_NAME: Final = "node-attestation-controller"
"""Of the Deployment's label, of its ServiceAccount and of the Lease."""
_TRIAL: Final = "nodeattest-doctor"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTarget:
    """What is to be looked at."""

    namespace: str | None
    """Whose clusters; None: of all namespaces."""
    cluster: str | None = None
    """The only one."""
    controller_namespace: str = "nodeattest-system"
    lease_name: str = _NAME
    timeout: float = 600.0
    """Seconds after which nothing is asked any more."""


async def gather(
    client: ApiClient, target: HealthTarget, *, workload: Connection | None = None, move: MoveFacts | None = None
) -> HealthFacts:
    """Fetch everything; ``workload``: where the operator gave a kubeconfig of his own.

    ``move``: what was read of its source, where this is the target of one. What was not asked for in time is an
    ``Unread``, too, but for the first question.
    """
    ends = time.monotonic() + target.timeout
    client.may_send = lambda: time.monotonic() < ends
    facts = HealthFacts(
        now=datetime.now(UTC), namespace=target.controller_namespace, lease_name=target.lease_name, move=move
    )
    await _read_versions(client, facts)
    if move is not None:
        for name in move.namespaces:
            move.namespaces[name] = await _optional(client, paths.core_path("namespaces", name))
    await _read_fleet(client, target, facts)
    await _read_controller(client, facts)
    await _read_webhook(client, facts)
    await _read_configs(client, target, facts)
    account = _controller_account(facts)
    rights = shipped_rights(management_folders(facts), namespace=facts.namespace)
    facts.management.reviews = await _reviews(client, rights, account, facts.argument("--watch-namespace") or "")
    await _read_secret_limits(client, facts)
    await _read_workloads(client, facts, workload)
    await _await_renewals(client, facts)
    theirs = client.server_time()
    facts.management.ahead = (theirs - datetime.now(UTC)).total_seconds() if theirs is not None else None
    return facts


async def _attempt(question: Awaitable[T]) -> T | Unread:
    """Ask; what the server refuses is no answer."""
    try:
        return await question
    except ApiError as error:
        return Unread(str(explained(error)))


async def _optional(client: ApiClient, path: str) -> JsonObject | Unread | None:
    """Read one object, which need not be there."""
    try:
        return await client.get(path)
    except NotFound:
        return None
    except ApiError as error:
        return Unread(str(explained(error)))


async def _version(client: ApiClient) -> str | Unread:
    """Read the server's version; raises ``ApiError`` where it does not answer."""
    try:
        return text(await client.get("/version"), "gitVersion")
    except (Forbidden, NotFound) as error:
        return Unread(str(explained(error)))


async def _listed(client: ApiClient, path: str, query: Mapping[str, str] | None = None) -> list[JsonObject]:
    """List a collection; one that the server does not have is empty, and one that does not end is refused."""
    found: list[JsonObject] = []
    try:
        async for one in list_objects(client, path, query):
            found.append(one)
            if len(found) > _MOST:
                raise TooLarge(200, f"GET {path}: more than {_MOST} objects are not looked at; say -n or --cluster")
    except NotFound:
        return []
    return found


async def _read_versions(client: ApiClient, facts: HealthFacts) -> None:
    """Ask for versions first: a server that does not answer ends the command."""
    found = facts.management
    found.version = await _version(client)
    found.cluster_api = await _attempt(cluster_api_version(client))
    definitions = paths.collection_path("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    names = [text(shipped, "metadata", "name") for shipped in manifests.crds()]
    found.definitions = {name: await _optional(client, f"{definitions}/{name}") for name in names}


async def _read_fleet(client: ApiClient, target: HealthTarget, facts: HealthFacts) -> None:
    """Read policies, clusters, machines and their attestations."""
    found = facts.management

    async def read(own: str, *theirs: str) -> list[JsonObject]:
        version = found.cluster_api if isinstance(found.cluster_api, str) else ""
        wanted = [(CLUSTER_API, version, resource) for resource in theirs if version]
        listed: list[JsonObject] = []
        for group in (*wanted, (*OWN, own)):
            listed += await _listed(client, paths.collection_path(*group, namespace=target.namespace))
        return listed

    found.policies = await _attempt(read("nodeattestationpolicies"))
    clusters = await _attempt(read("clusterrecords", "clusters"))
    if not isinstance(clusters, Unread) and target.cluster is not None:
        clusters = [one for one in clusters if text(one, "metadata", "name") == target.cluster]
    found.clusters = clusters
    found.machines = await _attempt(read("machinerecords", "machines", "machinepools"))
    found.attestations = await _attempt(read("machineattestations"))


async def _read_controller(client: ApiClient, facts: HealthFacts) -> None:
    """Read what is known of the controller: its Leases and its Deployment."""
    await _read_leases(client, facts)
    leases = readable(facts.management.leases)
    facts.management.earlier_leases = {key_of(one): version_of(one) for one in leases}
    deployments = paths.collection_path("apps", "v1", "deployments", namespace=facts.namespace)
    query = {"labelSelector": f"app.kubernetes.io/name={_NAME}"}
    facts.management.deployments = await _attempt(_listed(client, deployments, query))


async def _read_leases(client: ApiClient, facts: HealthFacts) -> None:
    path = paths.collection_path("coordination.k8s.io", "v1", "leases", namespace=facts.namespace)
    facts.management.leases = await _attempt(_listed(client, path))


async def _await_renewals(client: ApiClient, facts: HealthFacts) -> None:
    """Read the Leases once more, and again after a pause where one was not seen to be renewed."""
    for pause in (0.0, _PAUSE):
        await asyncio.sleep(pause)
        await _read_leases(client, facts)
        facts.now = client.server_time() or datetime.now(UTC)
        if all(is_renewed(facts, lease) for lease in leader_leases(facts)):
            return


async def _read_webhook(client: ApiClient, facts: HealthFacts) -> None:
    """Read the webhook's configurations and where the first leads."""

    async def read(kind: str, resource: str) -> JsonObject | Unread | None:
        name = text(shipped_configuration(kind), "metadata", "name")
        return await _optional(client, paths.object_path(*_ADMISSION, resource, name))

    found = facts.management
    found.webhook = await read(MUTATING, "mutatingwebhookconfigurations")
    found.validation = await read(VALIDATING, "validatingwebhookconfigurations")
    webhooks = items(found.webhook, "webhooks") if isinstance(found.webhook, dict) else []
    for service in (mapping(webhook, "clientConfig", "service") for webhook in webhooks):
        if text(service, "name"):
            namespace = text(service, "namespace")
            slices = paths.collection_path("discovery.k8s.io", "v1", "endpointslices", namespace=namespace)
            query = {"labelSelector": f"kubernetes.io/service-name={text(service, 'name')}"}
            found.endpoints = await _attempt(_listed(client, slices, query))
            return


async def _read_secret_limits(client: ApiClient, facts: HealthFacts) -> None:
    """Read what limits the Secrets that the controller may create, where a policy has it create some."""
    if facts.creates_secrets():
        facts.management.secret_limits = {
            kind: await _optional(client, paths.object_path(*_ADMISSION, resource, SECRET_LIMIT))
            for kind, resource in SECRET_LIMIT_RESOURCES.items()
        }


async def _read_configs(client: ApiClient, target: HealthTarget, facts: HealthFacts) -> None:
    """Read KubeadmConfigs where a machine is about to join, and try the webhook with one."""
    found = facts.management
    waiting = joiners(facts)
    tries = isinstance(found.webhook, dict)
    if not waiting and not tries:
        return
    try:
        version = text(await client.get(paths.api_group(_BOOTSTRAP)), "preferredVersion", "version")
    except ApiError as error:
        if not isinstance(error, NotFound):
            found.configs = found.trials = Unread(str(explained(error)))
        return
    if waiting:
        path = paths.collection_path(_BOOTSTRAP, version, "kubeadmconfigs", namespace=target.namespace)
        found.configs = await _attempt(_listed(client, path))
    unread = next((one for one in (found.policies, found.clusters) if isinstance(one, Unread)), None)
    if tries and unread is not None:
        found.trials = unread
    elif tries:
        found.trials = {key_of(one): await _try_webhook(client, one, version) for one in _on_trial(facts)}


def _on_trial(facts: HealthFacts) -> list[JsonObject]:
    """Choose one Cluster of each namespace for which the webhook renders: whether it does there is the namespace's."""
    chosen: dict[str, JsonObject] = {}
    for cluster in facts.protected():
        if not flag(cluster, "spec", "paused") and facts.enforces(key_of(cluster)):
            chosen.setdefault(text(cluster, "metadata", "namespace"), cluster)
    return list(chosen.values())


async def _try_webhook(client: ApiClient, cluster: JsonObject, version: str) -> JsonObject | Unread | TrialRefusal:
    """Create a KubeadmConfig of a cluster in a dry run: nothing is stored, and the webhook reports nothing."""
    namespace, name = text(cluster, "metadata", "namespace"), text(cluster, "metadata", "name")
    labels: JsonObject = {CLUSTER_LABEL: name}
    argument: JsonObject = {"name": "provider-id", "value": f"{_TRIAL}://trial"}
    arguments: JsonValue = {"provider-id": argument["value"]} if version == "v1beta1" else [argument]
    body: JsonObject = {
        "apiVersion": f"{_BOOTSTRAP}/{version}",
        "kind": "KubeadmConfig",
        "metadata": {"name": _TRIAL, "namespace": namespace, "labels": labels},
        "spec": {"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": arguments}}},
    }
    path = paths.collection_path(_BOOTSTRAP, version, "kubeadmconfigs", namespace=namespace)
    try:
        return {**await client.create(f"{path}?dryRun=All", body), "kind": "KubeadmConfig"}
    except Unreachable as error:
        return Unread(str(error))
    except ApiError as error:
        if isinstance(error, Forbidden) and "webhook" not in error.message:
            return Unread(str(explained(error)))
        return TrialRefusal(str(error))


def _controller_account(facts: HealthFacts) -> ReviewedUser:
    """Return the controller's user: its Deployment's ServiceAccount, else the shipped one."""
    deployments = readable(facts.management.deployments)
    names = (text(one, "spec", "template", "spec", "serviceAccountName") for one in deployments)
    name = f"system:serviceaccount:{facts.namespace}:{next(filter(None, names), _NAME)}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{facts.namespace}", "system:authenticated"]
    return ReviewedUser(name=name, groups=groups)


async def _reviews(
    client: ApiClient, rights: Sequence[ShippedRight], user: ReviewedUser | None, namespace: str = ""
) -> Mapping[ShippedRight, bool] | Unread:
    """Ask for each right; the first refusal ends it.

    ``user``: whose, None: of who asks. ``namespace``: the only one that the controller watches, where it has its rights
    on namespaced objects.
    """
    turn = asyncio.Semaphore(_AT_ONCE)

    async def _is_allowed(right: ShippedRight) -> bool:
        async with turn:
            return await is_access_allowed(client, right.attributes(namespace), user)

    async def _all() -> list[bool]:
        first = [await _is_allowed(right) for right in rights[:1]]  # alone: who may not ask is refused once
        return first + list(await asyncio.gather(*(_is_allowed(right) for right in rights[1:])))

    answers = await _attempt(_all())
    return answers if isinstance(answers, Unread) else dict(zip(rights, answers, strict=True))


async def _read_workloads(client: ApiClient, facts: HealthFacts, workload: Connection | None) -> None:
    """Read each protected cluster, some at a time."""
    turn = asyncio.Semaphore(_AT_ONCE)
    protected = facts.protected()
    if workload is not None and len(protected) > 1:
        raise UserError("--workload-kubeconfig: is for one cluster; say --cluster and --namespace")

    async def read(cluster: JsonObject) -> WorkloadFacts:
        async with turn:
            try:
                namespace, name = (text(cluster, "metadata", field) for field in ("namespace", "name"))
                own = workload.client() if workload else await workload_client(client, namespace, name)
                own.may_send = client.may_send
                async with own:
                    return await _read_workload(own, client, facts, is_operators=workload is not None)
            except ApiError as error:
                return WorkloadFacts(unreached=Unread(str(explained(error))))
            except UserError as error:
                return WorkloadFacts(unreached=Unread(str(error)))

    found = await asyncio.gather(*map(read, protected))
    facts.workloads = {key_of(cluster): each for cluster, each in zip(protected, found, strict=True)}


async def _read_workload(
    client: ApiClient, management: ApiClient, facts: HealthFacts, *, is_operators: bool
) -> WorkloadFacts:
    """Read one cluster; raises ``ApiError`` where it does not answer."""
    found = WorkloadFacts(version=await _version(client))
    found.roles = await _attempt(_listed(client, paths.collection_path(*_RBAC, "clusterroles")))
    found.bindings = await _attempt(_listed(client, paths.collection_path(*_RBAC, "clusterrolebindings")))
    found.cluster_info = await _optional(client, CLUSTER_INFO)
    if is_operators:
        found.reviews = Unread("the given kubeconfig is not the controller's own, whose rights are asked for")
    else:
        rights = shipped_rights(workload_folders(facts), namespace=facts.namespace)
        found.reviews = await _reviews(client, rights, None)
    theirs, ours = client.server_time(), management.server_time()
    if theirs is not None and ours is not None:
        found.ahead = (theirs - ours).total_seconds()
    return found


async def read_source(client: ApiClient, target: HealthTarget, kubeconfig: str) -> MoveFacts:
    """Read of a move's source what is paused, and which namespaces have policies that need the label.

    ``kubeconfig``: of the target. What may not be read, or not in time, is ``unread``, but for the first question.
    """
    ends = time.monotonic() + target.timeout
    client.may_send = lambda: time.monotonic() < ends
    found = MoveFacts(kubeconfig=kubeconfig, source_uid=await cluster_uid(client))
    try:
        for policy in await list_served(client, OWN, "nodeattestationpolicies", target.namespace):
            if needs_webhook(policy):
                found.namespaces.setdefault(text(policy, "metadata", "namespace"))
    except ApiError as error:
        found.unread["move-namespace"] = str(explained(error))
    try:
        group = (CLUSTER_API, await cluster_api_version(client))
        for resource in ("clusters", "clusterclasses") if group[1] else ():
            for one in await list_served(client, group, resource, target.namespace):
                if cluster_paused(one):
                    found.paused.append(f"{text(one, 'kind')} {key_of(one)}")
    except ApiError as error:
        found.unread["move-source"] = str(explained(error))
    return found


async def cluster_uid(client: ApiClient) -> str:
    """Return the UID of namespace kube-system, which identifies a cluster; empty where it may not be read."""
    try:
        return text(await client.get(paths.core_path("namespaces", "kube-system")), "metadata", "uid")
    except (Forbidden, NotFound):
        return ""
