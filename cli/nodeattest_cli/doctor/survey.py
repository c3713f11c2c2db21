"""What the checks of ``nodeattest doctor`` read of the management cluster, each list once.

Of Secrets only ``<cluster>-kubeconfig`` is read. The number of requests depends on clusters and shipped rights, not on
machines. What this user may not read raises ``ApiError`` at each check that needs it: a refused list is never empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from nodeattest_cli.fleet import CLUSTER_API, OWN, cluster_api_version, list_served
from nodeattest_controller.model.machine_view import bootstrap_config_ref, cluster_of
from nodeattest_controller.model.policy import selects
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_parsing.objects import flag, items, key_of, mapping, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.bounded_server import SettingsError

CONTROLLER: Final = "node-attestation-controller"
"""Name of the Deployment's label, of the ServiceAccount and of the Lease."""
BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io"


@dataclass(slots=True, kw_only=True)
class Survey:
    """The management cluster, and which part of it to check."""

    client: ApiClient
    namespace: str | None
    """Namespace of the clusters; None: of all namespaces."""
    cluster: str | None = None
    """The only cluster to check."""
    controller_namespace: str = "nodeattest-system"
    lease_name: str = CONTROLLER
    lists: dict[tuple[str, str], list[JsonObject] | ApiError] = field(
        default_factory=dict[tuple[str, str], "list[JsonObject] | ApiError"]
    )
    """What was read, by group and resource."""

    @property
    def now(self) -> datetime:
        """The server's time; this machine's where the server does not tell."""
        return self.client.server_time() or datetime.now(UTC)

    async def objects(
        self, group: str, resource: str, version: str = "", namespace: str | None = ""
    ) -> list[JsonObject]:
        """List a resource, of the version that the server prefers; a resource that it does not have is empty."""
        key = (group, resource)
        if key not in self.lists:
            where = self.namespace if namespace == "" else namespace
            try:
                version = version or await cluster_api_version(self.client, group)
                self.lists[key] = await list_served(self.client, (group, version), resource, where) if version else []
            except ApiError as error:
                self.lists[key] = error
        found = self.lists[key]
        if isinstance(found, ApiError):
            raise found
        return found

    async def policies(self) -> list[JsonObject]:
        """List the policies."""
        return await self.objects(*_own("nodeattestationpolicies"))

    async def clusters(self) -> list[JsonObject]:
        """List Clusters and ClusterRecords."""
        found = await self.objects(CLUSTER_API, "clusters") + await self.objects(*_own("clusterrecords"))
        return [one for one in found if self.cluster in {None, text(one, "metadata", "name")}]

    async def machines(self) -> list[JsonObject]:
        """List Machines, MachinePools and MachineRecords."""
        theirs = [one for name in ("machines", "machinepools") for one in await self.objects(CLUSTER_API, name)]
        return [*theirs, *await self.objects(*_own("machinerecords"))]

    async def attestations(self) -> list[JsonObject]:
        """List the MachineAttestations."""
        return await self.objects(*_own("machineattestations"))

    async def policies_of(self, cluster: JsonObject) -> list[JsonObject]:
        """Return the policies that select a cluster."""
        namespace = text(cluster, "metadata", "namespace")
        return [
            one
            for one in await self.policies()
            if text(one, "metadata", "namespace") == namespace and selects(one, cluster)
        ]

    async def protected(self) -> list[JsonObject]:
        """Return the clusters that a policy selects."""
        return [one for one in await self.clusters() if await self.policies_of(one)]

    async def enforces(self, cluster: JsonObject) -> bool:
        """Tell whether a policy of a cluster says Enforce."""
        return any(text(one, "spec", "enforcement") != "Audit" for one in await self.policies_of(cluster))

    async def creates_secrets(self) -> bool:
        """Tell whether a policy has the controller create the secrets of provider ``challenge``."""
        return any(flag(one, "spec", "challenge", "createSecrets") for one in await self.policies())

    async def joiners(self, cluster: JsonObject) -> list[JsonObject]:
        """Return a cluster's Machines and pools with a bootstrap configuration that have not joined.

        A pool is always about to: its next instance is made of the same configuration.
        """
        key = key_of(cluster)
        joined = {
            text(one, "spec", "providerID")
            for one in await self.attestations()
            if machine_cluster_key(one) == key and items(one, "spec", "issued")
        }
        return [
            machine
            for machine in await self.machines()
            if bootstrap_config_ref(machine) is not None
            and machine_cluster_key(machine) == key
            and not mapping(machine, "status", "nodeRef")
            and "deletionTimestamp" not in mapping(machine, "metadata")
            and text(machine, "spec", "providerID") not in joined
        ]

    async def deployments(self) -> list[JsonObject]:
        """List the controller's Deployment."""
        found = await self.objects("apps", "deployments", "v1", self.controller_namespace)
        return [one for one in found if text(one, "metadata", "labels", "app.kubernetes.io/name") == CONTROLLER]

    async def argument(self, name: str) -> str | None:
        """Return a flag of the controller's Deployment, such as ``--controllers``; None where it is not set."""
        for deployment in await self.deployments():
            for container in items(deployment, "spec", "template", "spec", "containers"):
                words = strings(container, "args")
                for position, word in enumerate(words):
                    option, equals, value = word.partition("=")
                    if option == name:
                        return value if equals else next(iter(words[position + 1 :]), "")
        return None

    async def runs(self, controller: str) -> bool:
        """Tell whether a controller runs, by the Deployment's flag: as by default where that cannot be read."""
        try:
            names = (await self.argument("--controllers") or "*").split(",")
            return Settings(identity="doctor", controllers=tuple(names)).enabled(controller)
        except (ApiError, SettingsError):
            return True


async def optional(client: ApiClient, path: str) -> JsonObject | None:
    """Read one object; None where it does not exist."""
    try:
        return await client.get(path)
    except NotFound:
        return None


def machine_cluster_key(machine: JsonObject) -> str:
    """Return ``namespace/name`` of a machine's cluster."""
    return f"{text(machine, 'metadata', 'namespace')}/{cluster_of(machine)}"


def _own(resource: str) -> tuple[str, str, str]:
    return OWN[0], resource, OWN[1]
