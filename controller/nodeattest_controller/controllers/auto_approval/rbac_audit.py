"""Audits one workload cluster: what RBAC grants, what the API server allows, and which Nodes are attested.

Promises: lists are read in pages and only what matters is kept of them; a list that breaks off is an error, never a
shorter list; RBAC is listed again where its watch showed a change since or cannot be relied upon, where the API
server allows what the last list does not explain, and in every resync. Some ten requests a look. What tokens there are
is read where that is allowed, and is not needed: RBAC can grant to groups only that a binding names, and those are
asked for.
Leaves the decision to ``decide``.
Source: kubernetes pkg/controller/certificates/approver/sarapprove.go (the question that the approver asks).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.auto_approval.decide import AllowedPairs, AuditFacts, explained_pairs
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
    bootstrap_groups_of,
    grant_of,
    is_attested,
    nominal_permissions,
)
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.informers import MOST, ListLimit
from nodeattest_discovery.secret import NAMESPACE, SECRET_TYPE, authenticating_groups
from nodeattest_kube import client as paths
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden, NotFound
from nodeattest_parsing.objects import items, moment, text
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
LIST_PERIOD: Final = 240.0
"""Seconds for which a list of RBAC is used at most; resyncs of ``controller._RESYNC`` are never closer."""
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
        revision: Callable[[], int | None] = lambda: None,
        most: int = MOST,
    ) -> None:
        """``most`` is how much is kept of a list; what has more is TooLarge, and nothing is told of the cluster.

        ``revision`` counts the changes of RBAC that were seen; None: they are not followed (``RBACWatch.revision``).
        """
        self._key = key
        self._client = client
        self._inventory = inventory
        self._now = now
        self._clock = clock
        self._most = most
        self._may_read_tokens = True
        self._counted: tuple[float, NodeCoverage] | None = None
        self._revision = revision
        self._listed: tuple[int, float, _Grants] | None = None
        """What RBAC granted; the revision that was known, and the time on ``clock``, before it was listed."""

    async def look(self, *, enforce: bool) -> AuditFacts:
        """Gather the facts; raises ApiError."""
        known = self._known_grants()
        grants, groups, born = known or await self._grants()
        allowed = await self._allowed_pairs(groups | await self._groups_of_tokens())
        if known is not None and not allowed <= explained_pairs(grants):  # the watch has missed a change
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
        self._listed = None  # the watch shows it a moment later
        await self._client.delete(path, uid=grant.uid, resource_version=grant.resource_version)

    def _known_grants(self) -> _Grants | None:
        """Return what RBAC grants, if it was listed since the last change and not long ago."""
        if self._listed is None:
            return None
        revision, listed_at, grants = self._listed
        return grants if revision == self._revision() and self._clock() - listed_at < LIST_PERIOD else None

    async def _grants(self) -> _Grants:
        """List what RBAC grants."""
        revision, now = self._revision(), self._clock()
        self._listed = None
        found = await self._list_grants()
        self._listed = (revision, now, found) if revision is not None else None
        return found

    async def _list_grants(self) -> _Grants:
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
        """Read the groups that living tokens give; without the right to, none, and it is not tried again."""
        groups: set[str] = set()
        kept = ListLimit("bootstrap tokens", self._most)
        if not self._may_read_tokens:
            return groups
        try:
            async for secret in self._items(_TOKENS, {"fieldSelector": f"type={SECRET_TYPE}"}):
                for group in set(authenticating_groups(secret, self._now()) or ()) - groups:
                    kept.take(group)
                    groups.add(group)
        except Forbidden:
            self._may_read_tokens = False
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
