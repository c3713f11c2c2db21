"""Audits one workload cluster: what RBAC grants, what the API server allows, and which Nodes are attested.

Lists are read in pages, and only what matters is kept of them. A list that breaks off is an error, never a shorter
list. Tokens are read where that is allowed, but are not needed: RBAC grants only to groups that a binding names, and
the API server is asked about those.

``RBACWatch`` triggers an audit within seconds of a new permission.
Source: kubernetes pkg/controller/certificates/approver/sarapprove.go (the question that the approver asks).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.auto_approval.decide import AllowedPairs, AuditFacts
from nodeattest_controller.controllers.auto_approval.permissions import (
    BOOTSTRAP_GROUP,
    BOOTSTRAP_USER_PREFIX,
    CSR_GROUP,
    CSR_RESOURCE,
    KUBEADM_TOKEN_GROUP,
    RBAC_GROUP,
    NodeCoverage,
    Permission,
    RoleGrant,
    SubjectKind,
    binds_joiners_or_nodes,
    bootstrap_groups_of,
    grant_of,
    is_attested,
    nominal_permissions,
    permissions_of_role,
)
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.informers import MOST, ListLimit
from nodeattest_discovery.secret import NAMESPACE, SECRET_TYPE, authenticating_groups
from nodeattest_kube import paths
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden, NotFound
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import flag, items, mapping, moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NODES_GROUP

_ROLES: Final = paths.collection_path(RBAC_GROUP, "v1", "clusterroles")
_BINDINGS: Final = (RBAC_GROUP, "v1", "clusterrolebindings")
_TOKENS: Final = paths.core_path("secrets", namespace=NAMESPACE)
_CLUSTER_INFO: Final = paths.core_path("configmaps", "cluster-info", namespace="kube-public")
_NO_QUERY: Final[Mapping[str, str]] = {}
_AUTHENTICATED: Final = "system:authenticated"
_TOKEN_USER: Final = f"{BOOTSTRAP_USER_PREFIX}000000"
_NODE_USER: Final = f"{NODE_USER_PREFIX}nodeattest-asks"
"""Nobody's names: what is granted to a name is found in the bindings."""
MAX_GROUPS: Final = 256
"""Groups of tokens that one question names."""
COUNT_PERIOD: Final = 3600.0
"""Seconds between two counts of Nodes where all doors are closed."""
MAX_GRANTS: Final = 200
"""Bindings kept; a cluster with more of them is open however many more there are."""


_Grants = tuple[tuple[RoleGrant, ...], frozenset[str], datetime | None]
"""Bindings that grant a permission; groups of bootstrap tokens that bindings name; the oldest ClusterRole's time."""


class RBACAudit:
    """Audits one cluster."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        inventory: Inventory,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        most: int = MOST,
    ) -> None:
        """``most`` is how much is kept of a list; a longer one raises ``TooLarge``."""
        self._key = key
        self._client = client
        self._inventory = inventory
        self._now = now
        self._clock = clock
        self._most = most
        self._counted: tuple[float, NodeCoverage] | None = None

    async def look(self, *, enforce: bool) -> AuditFacts:
        """Gather the facts; raises ApiError."""
        grants, groups, born = await self._grants()
        allowed = await self._allowed_pairs(groups | await self._groups_of_tokens())
        renewing = any(SubjectKind.NODES in grant.to for grant in grants)
        coverage = await self._count(anew=renewing)
        return AuditFacts(grants=grants, allowed=allowed, coverage=coverage, enforce=enforce, born=born)

    async def has_cluster_info(self) -> bool:
        """Return whether kubeadm has come to the end of its phase ``bootstrap-token``; raises ApiError.

        What is looked at afterwards holds its bindings (cmd/kubeadm/app/cmd/phases/init/bootstraptoken.go).
        """
        try:
            await self._client.get(_CLUSTER_INFO)
        except NotFound:
            return False
        return True

    async def remove(self, grant: RoleGrant) -> None:
        """Delete exactly the binding that was checked; raises Conflict where it changed, NotFound where it is gone."""
        path = paths.object_path(*_BINDINGS, grant.name)
        await self._client.delete(path, uid=grant.uid, resource_version=grant.resource_version)

    async def _grants(self) -> _Grants:
        """Resolve every ClusterRoleBinding; also returns the groups of bootstrap tokens that any of them names.

        And the time of the oldest ClusterRole: the API server makes some when it first starts.
        """
        permissions_of: dict[str, frozenset[Permission]] = {}
        born: datetime | None = None
        kept = ListLimit("ClusterRoles", self._most)
        async for role in self._items(_ROLES):
            permissions, name = nominal_permissions(role), text(role, "metadata", "name")
            created = moment(text(role, "metadata", "creationTimestamp"))
            born = created if born is None or (created is not None and created < born) else born
            if permissions:
                kept.take(name)
                permissions_of[name] = permissions
        kept = ListLimit("ClusterRoleBindings", self._most)
        grants: list[RoleGrant] = []
        groups: set[str] = set()
        async for binding in self._items(paths.collection_path(*_BINDINGS)):
            for group in bootstrap_groups_of(binding) - groups:
                kept.take(group)
                groups.add(group)
            grant = grant_of(binding, permissions_of)
            if grant is not None and (len(grants) < MAX_GRANTS or grant.is_kubeadm_default):
                kept.take(grant.name, grant.role, grant.uid, grant.resource_version)
                grants.append(grant)
        return tuple(grants), frozenset(groups), born

    async def _groups_of_tokens(self) -> set[str]:
        """Read the groups that living tokens give; without the right to, none."""
        groups: set[str] = set()
        kept = ListLimit("bootstrap tokens", self._most)
        try:
            async for secret in self._items(_TOKENS, {"fieldSelector": f"type={SECRET_TYPE}"}):
                for group in set(authenticating_groups(secret, self._now()) or ()) - groups:
                    kept.take(group)
                    groups.add(group)
        except Forbidden:
            return set()
        return groups

    async def _allowed_pairs(self, groups: Collection[str]) -> AllowedPairs:
        """Ask the API server: as kubeadm's tokens, as one with every group that a token may have, and as a node."""
        known = [BOOTSTRAP_GROUP, KUBEADM_TOKEN_GROUP, _AUTHENTICATED]
        every = [*dict.fromkeys([*known, *sorted(groups)])][:MAX_GROUPS]
        asking = [(SubjectKind.BOOTSTRAPPERS, _TOKEN_USER, known)]
        asking += [(SubjectKind.BOOTSTRAPPERS, _TOKEN_USER, every)] if len(every) > len(known) else []
        asking += [(SubjectKind.NODES, _NODE_USER, [NODES_GROUP, _AUTHENTICATED])]
        found: set[tuple[SubjectKind, Permission]] = set()
        for subject, user, named in asking:
            for permission in Permission:
                if await self._is_allowed(user, named, permission):
                    found.add((subject, permission))
        return frozenset(found)

    async def _is_allowed(self, user: str, groups: Collection[str], permission: Permission) -> bool:
        asked = ResourceAttributes(verb="create", group=CSR_GROUP, resource=CSR_RESOURCE, subresource=str(permission))
        return await is_access_allowed(self._client, asked, ReviewedUser(name=user, groups=[*groups]))

    async def _count(self, *, anew: bool) -> NodeCoverage:
        """Count the Nodes; where nothing depends on it, an older count will do, for a list of Nodes is large."""
        if not anew and self._counted is not None and self._clock() - self._counted[0] < COUNT_PERIOD:
            return self._counted[1]
        coverage, now, limit = NodeCoverage(), self._now(), ListLimit("Nodes", self._most)
        async for node in self._items(paths.core_path("nodes")):
            name = text(node, "metadata", "name")
            attested = is_attested(node, self._key, self._inventory, now)
            limit.take(name)
            coverage.count(name, attested=attested, created=moment(text(node, "metadata", "creationTimestamp")))
        self._counted = (self._clock(), coverage)
        return coverage

    async def _items(self, path: str, query: Mapping[str, str] = _NO_QUERY) -> AsyncGenerator[JsonObject]:
        async for page in self._client.pages(path, query):
            for item in items(page, "items"):
                yield item


_MAX_BYTES: Final = 64 << 20
MAX_SILENCE: Final = 300.0
"""Seconds without contact after which a watch counts as broken; a healthy one has bookmarks or ends each minute."""


class RBACWatch:
    """The two watches of one cluster."""

    def __init__(self, client: ApiClient, *, on_grant: Callable[[], None], on_recovery: Callable[[], None]) -> None:
        """``on_grant`` is called when a permission appears, ``on_recovery`` as in ``Reflector``."""
        self._on_grant = on_grant
        kinds: dict[str, Callable[[JsonObject], JsonObject]] = {
            "clusterroles": lambda role: _summary(role, matters=bool(permissions_of_role(role))),
            "clusterrolebindings": lambda binding: _summary(binding, matters=binds_joiners_or_nodes(binding)),
        }
        self._reflectors = [
            Reflector(
                client,
                paths.collection_path(RBAC_GROUP, "v1", resource),
                on_change=self._changed,
                on_recovery=on_recovery,
                transform=keep,
                max_objects=MOST,
                max_bytes=_MAX_BYTES,
            )
            for resource, keep in kinds.items()
        ]

    def trouble(self) -> str:
        """Say what keeps one of the two from being followed; empty while nothing does."""
        return next((found for one in self._reflectors if (found := trouble_of(one))), "")

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    def _changed(self, _name: str, value: JsonObject | None) -> None:
        if value is not None and flag(value, "matters"):
            self._on_grant()


def trouble_of(reflector: Reflector) -> str:
    """Say what keeps a collection from being followed; a watch that just ended is no trouble.

    One that hung is, until the collection was listed again: nobody knows which changes it did not show.
    """
    error = reflector.last_error
    if isinstance(error, Forbidden) or not reflector.synced:
        return str(error) if error is not None else "the first list is not complete yet"
    if reflector.hung is not None:
        return str(reflector.hung)
    return f"no contact for minutes: {error}" if time.monotonic() - reflector.last_contact > MAX_SILENCE else ""


def _summary(found: JsonObject, *, matters: bool) -> JsonObject:
    meta = mapping(found, "metadata")
    return {"metadata": {name: text(meta, name) for name in ("name", "uid", "resourceVersion")}, "matters": matters}
