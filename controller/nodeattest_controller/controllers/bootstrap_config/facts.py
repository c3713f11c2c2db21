"""Reads what a decision needs to know of the management cluster.

No answer is kept, so an object that follows its Cluster and policy by a millisecond meets both; at most four small
reads an object (eight for one that becomes a MachinePool's), ten more of records where several policies select its
cluster, and one in all where a namespace has no policy. Any replica can read them, whether it leads or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.subject import Subject
from nodeattest_controller.model.attestation import parse_attestation
from nodeattest_controller.model.machine_record import cluster_paused
from nodeattest_controller.model.machine_view import CLUSTER_LABEL, CONTROL_PLANE_LABEL, infrastructure_ref
from nodeattest_controller.model.policy import Policy, policy_for, selecting
from nodeattest_controller.runtime.informers import OWN_GROUP, OWN_VERSION
from nodeattest_controller.runtime.references import makes_machines
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import NotFound
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable

_CLUSTER_GROUP: Final = "cluster.x-k8s.io"
_MAX_RECORDS: Final = 1000
"""Of a cluster that several policies select. Where there are more it is not known under which of them most joined."""
_PAGE: Final = 100
"""Records in one answer: about 1 MiB, which is parsed in the event loop."""


@dataclass(frozen=True, slots=True)
class RenderFacts:
    """A Cluster, and what selects it."""

    cluster: JsonObject = field(repr=False)
    policy: Policy | Denied
    """Denied: what selects it cannot be used."""
    paused: bool
    policy_object: JsonObject | None = field(default=None, repr=False)
    """The policy as it is stored; None where it cannot be used."""


class FactReader:
    """Reads facts; every method raises ``ApiError``."""

    def __init__(self, client: ApiClient, *, namespace: str | None, now: Callable[[], datetime]) -> None:
        """``namespace``: the only one whose Clusters are served; None: all."""
        self._client = client
        self.namespace = namespace
        self._now = now

    async def of(self, subject: Subject) -> RenderFacts | None:
        """Return what is known of the subject's cluster; None where it has none, or one that no policy selects."""
        if self.namespace not in {None, subject.namespace}:
            return None
        policies = await self._list(OWN_GROUP, OWN_VERSION, "nodeattestationpolicies", subject.namespace)
        cluster = await self._cluster(subject) if policies else None
        if cluster is None:
            return None
        several = len(selecting(cluster, policies)) > 1
        recorded = await self._policies_recorded(cluster) if several else None
        paused = cluster_paused(cluster) or subject.paused
        try:
            policy = policy_for(cluster, policies, recorded=None if recorded is None else recorded.__getitem__)
        except Denied as denied:
            return RenderFacts(cluster, denied, paused)
        except Unavailable as unavailable:
            if unavailable.reason is not Reason.POLICY_MISSING:
                raise
            return None
        stored = next(one for one in policies if text(one, "metadata", "name") == policy.name)
        kind: JsonObject = {"apiVersion": f"{OWN_GROUP}/{OWN_VERSION}", "kind": "NodeAttestationPolicy"}
        return RenderFacts(cluster, policy, paused, {**kind, **stored})  # items of a list lack both

    async def has_machines(self, cluster: JsonObject) -> bool:
        """Return whether the control plane of a cluster has a Machine."""
        namespace, name = text(cluster, "metadata", "namespace"), text(cluster, "metadata", "name")
        path = paths.collection_path(_CLUSTER_GROUP, await self._served(), "machines", namespace=namespace)
        query = {"labelSelector": f"{CLUSTER_LABEL}={name},{CONTROL_PLANE_LABEL}", "limit": "1"}
        return bool(items(await self._client.get(path, query), "items"))

    async def makes_machines(self, subject: Subject) -> bool:
        """Return whether the infrastructure provider of a MachinePool makes a Machine for each of its instances.

        What does not exist yet makes none.
        """
        version, namespace = await self._served(), subject.namespace
        try:
            path = paths.object_path(_CLUSTER_GROUP, version, "machinepools", subject.pool, namespace=namespace)
            reference = infrastructure_ref(mapping(await self._client.get(path), "spec", "template"))
        except NotFound:
            return False
        return reference is not None and await makes_machines(self._client, reference, namespace)

    async def _policies_recorded(self, cluster: JsonObject) -> Counter[str] | None:
        """Count a cluster's machines by the policy of their valid certificate; None: too many."""
        namespace, name = text(cluster, "metadata", "namespace"), text(cluster, "metadata", "name")
        path = paths.collection_path(OWN_GROUP, OWN_VERSION, "machineattestations", namespace=namespace)
        found, now = Counter[str](), self._now()
        async with aclosing(self._client.pages(path, {"labelSelector": f"{CLUSTER_LABEL}={name}"}, _PAGE)) as pages:
            async for page in pages:
                found.update(parse_attestation(ledger).policy_at(now) for ledger in items(page, "items"))
                if found.total() > _MAX_RECORDS:
                    return None
        return found

    async def _cluster(self, subject: Subject) -> JsonObject | None:
        """Find the Cluster: by what the object says; that of a control plane without an owner by who refers to it."""
        if not subject.cluster and not subject.is_control_plane:
            return None  # nobody uses it yet; a user labels it first, by an update
        version, namespace = await self._served(), subject.namespace
        if not version:
            return None
        if subject.cluster:
            with suppress(NotFound):
                path = paths.object_path(_CLUSTER_GROUP, version, "clusters", subject.cluster, namespace=namespace)
                return await self._client.get(path)
            return None
        clusters = await self._list(_CLUSTER_GROUP, version, "clusters", namespace)
        return next((cluster for cluster in clusters if subject.is_control_plane_of(cluster)), None)

    async def _list(self, group: str, version: str, resource: str, namespace: str) -> list[JsonObject]:
        """List objects; none where the kind is not installed, hence not used."""
        path, found = paths.collection_path(group, version, resource, namespace=namespace), list[JsonObject]()
        with suppress(NotFound):
            async for page in self._client.pages(path):
                found += items(page, "items")
        return found

    async def _served(self) -> str:
        """Return which version of Cluster API is served; read each time, because an upgrade changes it."""
        with suppress(NotFound):
            return text(await self._client.get(f"/apis/{_CLUSTER_GROUP}"), "preferredVersion", "version")
        return ""
