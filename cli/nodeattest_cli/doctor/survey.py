"""What ``nodeattest doctor`` reads of the management cluster for several checks, with the operator's own rights.

Promises: of Secrets only ``<cluster>-kubeconfig`` is read, and none with a kubeconfig of the workload cluster. The
number of requests depends on clusters and shipped rights, never on machines, but for the pages of lists. What may not
be read is an ``Unread``, which is never taken for what is not there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

from nodeattest_cli.connection import explained
from nodeattest_cli.fleet import CLUSTER_API, OWN, cluster_api_version, list_objects, list_served
from nodeattest_controller.model.machine_record import cluster_paused
from nodeattest_controller.model.machine_view import bootstrap_config_ref, cluster_of
from nodeattest_controller.model.policy import TokenBinding, selects
from nodeattest_controller.model.webhook_configuration import MUTATING, needs_webhook, shipped_configuration
from nodeattest_controller.settings import Settings
from nodeattest_kube import paths
from nodeattest_kube.answers import version_of
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound, TooLarge
from nodeattest_parsing.objects import flag, items, key_of, mapping, moment, number, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.bounded_server import SettingsError

T = TypeVar("T")

VALIDATING: Final = "ValidatingWebhookConfiguration"
ADMISSION: Final = ("admissionregistration.k8s.io", "v1")
CONTROLLER: Final = "node-attestation-controller"
"""Of the Deployment's label, of its ServiceAccount and of the Lease."""
BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io"
TOLERATED: Final = 60.0
"""Seconds by which clocks may differ: a Date has whole ones, an answer takes its time, and a Lease is renewed every few
seconds."""
_MOST: Final = 100_000
"""Objects of one list."""


class Unread(Exception):
    """Something could not be read; the text says why, in one line."""


ListResult = list[JsonObject] | Unread


def required(found: T | Unread) -> T:
    """Return what was read; raises ``Unread``."""
    if isinstance(found, Unread):
        raise found
    return found


def readable(found: ListResult) -> list[JsonObject]:
    """Return what was read; nothing where it could not be, for those to whom another finding says so."""
    return [] if isinstance(found, Unread) else found


async def attempt(question: Awaitable[T]) -> T | Unread:
    """Ask; what the server refuses is an ``Unread``."""
    try:
        return await question
    except ApiError as error:
        return Unread(str(explained(error)))


async def optional(client: ApiClient, path: str) -> JsonObject | None:
    """Read one object, which need not be there."""
    try:
        return await client.get(path)
    except NotFound:
        return None


async def listed_objects(client: ApiClient, path: str, query: Mapping[str, str] | None = None) -> list[JsonObject]:
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


async def server_version(client: ApiClient) -> str | Unread:
    """Read the server's version such as ``v1.36.2``; raises ``ApiError`` where it does not answer."""
    try:
        return text(await client.get("/version"), "gitVersion")
    except (Forbidden, NotFound) as error:
        return Unread(str(explained(error)))


async def cluster_uid(client: ApiClient) -> str:
    """Return the UID of namespace kube-system, which identifies a cluster; empty where it may not be read."""
    try:
        return text(await client.get(paths.core_path("namespaces", "kube-system")), "metadata", "uid")
    except (Forbidden, NotFound):
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTarget:
    """What is to be looked at."""

    namespace: str | None
    """Whose clusters; None: of all namespaces."""
    cluster: str | None = None
    """The only one."""
    controller_namespace: str = "nodeattest-system"
    lease_name: str = CONTROLLER
    timeout: float = 600.0
    """Seconds after which nothing is asked any more."""
    pause: float = 5.0
    """Seconds until the Leases are read again, where nobody was seen to renew one; they are renewed every two."""

    def limit(self, client: ApiClient) -> None:
        """Have a client ask nothing more after the time limit."""
        ends = time.monotonic() + self.timeout
        client.may_send = lambda: time.monotonic() < ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What was read of the source of a ``clusterctl move`` to come; the survey is of its target."""

    kubeconfig: str
    """Of the target."""
    paused: list[str] | Unread
    """Clusters and ClusterClasses."""
    namespaces: list[str] | Unread
    """Those whose policies need the label."""


async def read_source(client: ApiClient, target: HealthTarget, kubeconfig: str) -> Move:
    """Read a move's source; ``kubeconfig``: of the target."""

    async def paused() -> list[str]:
        version = await cluster_api_version(client)
        found: list[JsonObject] = []
        for resource in ("clusters", "clusterclasses") if version else ():
            found += await list_served(client, (CLUSTER_API, version), resource, target.namespace)
        return [f"{text(one, 'kind')} {key_of(one)}" for one in found if cluster_paused(one)]

    async def namespaces() -> list[str]:
        found = await list_served(client, OWN, "nodeattestationpolicies", target.namespace)
        return sorted({text(one, "metadata", "namespace") for one in found if needs_webhook(one)})

    target.limit(client)
    return Move(kubeconfig=kubeconfig, paused=await attempt(paused()), namespaces=await attempt(namespaces()))


@dataclass(slots=True, kw_only=True)
class Survey:
    """The management cluster."""

    client: ApiClient
    target: HealthTarget
    move: Move | None
    version: str | Unread
    cluster_api: str | Unread = ""
    """The version of Cluster API that the server prefers; empty: it has none."""
    bootstrap_api: str | Unread = ""
    """The same, of its kubeadm bootstrap provider."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """The server's time; this machine's where that does not say."""
    policies: ListResult = field(default_factory=list[JsonObject])
    clusters: ListResult = field(default_factory=list[JsonObject])
    """Clusters and ClusterRecords."""
    machines: ListResult = field(default_factory=list[JsonObject])
    """Machines, MachinePools and MachineRecords."""
    attestations: ListResult = field(default_factory=list[JsonObject])
    configs: ListResult = field(default_factory=list[JsonObject])
    """KubeadmConfigs, read only where a machine is about to join."""
    deployments: ListResult = field(default_factory=list[JsonObject])
    """Of the controller."""
    leases: ListResult = field(default_factory=list[JsonObject])
    """The controller's, as read last."""
    earlier_leases: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Their UIDs and resourceVersions as read first."""
    webhooks: dict[str, JsonObject | Unread | None] = field(default_factory=dict[str, "JsonObject | Unread | None"])
    """Our two webhook configurations by kind; None: not there."""

    def protected(self) -> list[JsonObject]:
        """Return the clusters that a policy selects."""
        return [one for one in readable(self.clusters) if self.policies_of(one)]

    def policies_of(self, cluster: JsonObject) -> list[JsonObject]:
        """Return the policies that select a cluster."""
        namespace, known = text(cluster, "metadata", "namespace"), readable(self.policies)
        return [one for one in known if text(one, "metadata", "namespace") == namespace and selects(one, cluster)]

    def enforces(self, cluster: JsonObject) -> bool:
        """Tell whether a policy of a cluster says Enforce."""
        return any(text(one, "spec", "enforcement") != "Audit" for one in self.policies_of(cluster))

    def requires_named_tokens(self, cluster: JsonObject) -> bool:
        """Return whether a policy of a cluster denies tokens that no KubeadmConfig names, as by default."""
        allowed = {"", TokenBinding.REQUIRED}
        return any(text(one, "spec", "tokenBinding") in allowed for one in self.policies_of(cluster))

    def creates_secrets(self) -> bool:
        """Tell whether a policy has the controller create the secrets of provider ``challenge``."""
        return any(flag(one, "spec", "challenge", "createSecrets") for one in readable(self.policies))

    def joiners(self) -> list[JsonObject]:
        """Return the Machines and pools of protected clusters with a bootstrap configuration that have not joined.

        A pool is always about to: its next instance is made of the same configuration.
        """
        known = readable(self.attestations)
        joined = {
            (machine_cluster_key(one), text(one, "spec", "providerID")) for one in known if items(one, "spec", "issued")
        }
        protected = {key_of(one) for one in self.protected()}
        return [
            machine
            for machine in readable(self.machines)
            if bootstrap_config_ref(machine) is not None
            and machine_cluster_key(machine) in protected
            and not mapping(machine, "status", "nodeRef")
            and "deletionTimestamp" not in mapping(machine, "metadata")
            and (machine_cluster_key(machine), text(machine, "spec", "providerID")) not in joined
        ]

    def argument(self, name: str) -> str | None:
        """Return a flag of the controller's Deployment, such as ``--controllers``; None where it is not set."""
        for deployment in readable(self.deployments):
            for container in items(deployment, "spec", "template", "spec", "containers"):
                words = strings(container, "args")
                for position, word in enumerate(words):
                    option, equals, value = word.partition("=")
                    if option == name:
                        return value if equals else next(iter(words[position + 1 :]), "")
        return None

    def runs(self, controller: str) -> bool:
        """Tell whether a controller runs, by the Deployment's flag; unless it says otherwise, as by default."""
        given = self.argument("--controllers")
        try:
            return Settings(identity="doctor", controllers=tuple((given or "*").split(","))).enabled(controller)
        except SettingsError:
            return True

    async def read_leases(self) -> None:
        """Read the controller's Lease, and note the server's time."""
        namespace = self.target.controller_namespace
        path = paths.collection_path("coordination.k8s.io", "v1", "leases", namespace=namespace)
        found = await attempt(listed_objects(self.client, path))
        own = [one for one in readable(found) if text(one, "metadata", "name") == self.target.lease_name]
        self.leases = found if isinstance(found, Unread) else own
        self.now = self.client.server_time() or datetime.now(UTC)

    async def await_renewals(self) -> None:
        """Read the Lease once more, and again after a pause where it was not seen to be renewed."""
        for pause in (0.0, self.target.pause):
            await asyncio.sleep(pause)
            await self.read_leases()
            if all(map(self.is_renewed, readable(self.leases))):
                return

    def is_renewed(self, lease: JsonObject) -> bool:
        """Tell whether a Lease is held by somebody who renews it.

        It changes between two reads, as an elector sees it, whatever its holder's clock shows; a ``renewTime`` that
        agrees with the API server's time spares the wait. Source: client-go tools/leaderelection (observedTime).
        """
        seconds, ahead = number(lease, "spec", "leaseDurationSeconds"), self._renewed_ahead(lease)
        is_recent = seconds is not None and ahead is not None and -seconds <= ahead <= TOLERATED
        return bool(text(lease, "spec", "holderIdentity")) and (self._has_changed(lease) or is_recent)

    def writer_ahead(self, lease: JsonObject) -> float | None:
        """Return the seconds by which the holder's clock is ahead of the server's; None where no renewal was seen."""
        ahead = self._renewed_ahead(lease)
        if ahead is None or not self.is_renewed(lease):
            return None
        return ahead if self._has_changed(lease) else max(ahead, 0.0)  # an older renewal may have been some time ago

    def _has_changed(self, lease: JsonObject) -> bool:
        before = self.earlier_leases.get(key_of(lease))
        return before is not None and before != version_of(lease)

    def _renewed_ahead(self, lease: JsonObject) -> float | None:
        written = moment(text(lease, "spec", "renewTime"))
        return (written - self.now).total_seconds() if written is not None else None


def machine_cluster_key(machine: JsonObject) -> str:
    """Return ``namespace/name`` of a machine's cluster."""
    return f"{text(machine, 'metadata', 'namespace')}/{cluster_of(machine)}"


async def read_survey(client: ApiClient, target: HealthTarget, move: Move | None = None) -> Survey:
    """Read what several checks need; raises ``ApiError`` where the management cluster does not answer at all."""
    target.limit(client)
    survey = Survey(client=client, target=target, move=move, version=await server_version(client))
    await _read_fleet(survey)
    await survey.read_leases()
    survey.earlier_leases = {key_of(one): version_of(one) for one in readable(survey.leases)}
    deployments = paths.collection_path("apps", "v1", "deployments", namespace=target.controller_namespace)
    query = {"labelSelector": f"app.kubernetes.io/name={CONTROLLER}"}
    survey.deployments = await attempt(listed_objects(client, deployments, query))
    for kind in (MUTATING, VALIDATING):
        name = text(shipped_configuration(kind), "metadata", "name")
        path = paths.object_path(*ADMISSION, f"{kind.lower()}s", name)
        survey.webhooks[kind] = await attempt(optional(client, path))
    if survey.joiners() or isinstance(survey.webhooks[MUTATING], dict):
        survey.bootstrap_api = await attempt(cluster_api_version(client, BOOTSTRAP))
    if isinstance(survey.bootstrap_api, Unread):
        survey.configs = survey.bootstrap_api
    elif survey.joiners() and survey.bootstrap_api:
        path = paths.collection_path(BOOTSTRAP, survey.bootstrap_api, "kubeadmconfigs", namespace=target.namespace)
        survey.configs = await attempt(listed_objects(client, path))
    return survey


async def _read_fleet(survey: Survey) -> None:
    """Read policies, clusters, machines and their attestations."""
    client, target = survey.client, survey.target
    survey.cluster_api = await attempt(cluster_api_version(client))
    version = survey.cluster_api if isinstance(survey.cluster_api, str) else ""

    async def read(own: str, *theirs: str) -> list[JsonObject]:
        groups = [(CLUSTER_API, version, resource) for resource in theirs if version]
        found: list[JsonObject] = []
        for group in (*groups, (*OWN, own)):
            found += await listed_objects(client, paths.collection_path(*group, namespace=target.namespace))
        return found

    survey.policies = await attempt(read("nodeattestationpolicies"))
    survey.clusters = await attempt(read("clusterrecords", "clusters"))
    if not isinstance(survey.clusters, Unread) and target.cluster is not None:
        survey.clusters = [one for one in survey.clusters if text(one, "metadata", "name") == target.cluster]
    survey.machines = await attempt(read("machinerecords", "machines", "machinepools"))
    survey.attestations = await attempt(read("machineattestations"))
