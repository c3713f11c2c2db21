"""Audits one workload cluster: what RBAC grants, what the API server allows, and which Nodes are attested.

Lists are read in pages, and only what matters is kept of them. A list that breaks off is an error, never a shorter
list. Tokens are read where that is allowed, but are not needed: RBAC grants only to groups that a binding names, and
the API server is asked about those.
Source: kubernetes pkg/controller/certificates/approver/sarapprove.go (the question that the approver asks).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
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
    bootstrap_groups_of,
    grant_of,
    is_attested,
    nominal_permissions,
)
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.informers import MOST, ListLimit
from nodeattest_discovery.secret import NAMESPACE, SECRET_TYPE, authenticating_groups
from nodeattest_kube import paths
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden, NotFound
from nodeattest_parsing.objects import items, moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NODES_GROUP

_ROLES: Final = paths.collection_path(RBAC_GROUP, "v1", "clusterroles")
_BINDINGS: Final = (RBAC_GROUP, "v1", "clusterrolebindings")
_CLUSTER_INFO: Final = paths.core_path("configmaps", "cluster-info", namespace="kube-public")
_AUTHENTICATED: Final = "system:authenticated"
_TOKEN_USER: Final = f"{BOOTSTRAP_USER_PREFIX}000000"
_NODE_USER: Final = f"{NODE_USER_PREFIX}nodeattest-asks"
"""Nobody's names: what is granted to a name is found in the bindings."""
_MAX_GROUPS: Final = 256
"""Groups of tokens that one question names."""
_COUNT_PERIOD: Final = 3600.0
"""Seconds between two counts of Nodes where nothing depends on it: a list of Nodes is large."""
_MAX_GRANTS: Final = 200
"""Bindings kept; a cluster with more of them is open however many more there are."""


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
        """Gather the facts; raises ApiError. The API server creates its oldest ClusterRole when it first starts."""
        permissions_of: dict[str, frozenset[Permission]] = {}
        born: datetime | None = None
        kept = ListLimit("ClusterRoles", self._most)
        async for role in self._items(_ROLES):
            permissions, name = nominal_permissions(role), text(role, "metadata", "name")
            created = moment(text(role, "metadata", "creationTimestamp"))
            born = min(filter(None, (born, created)), default=None)
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
            if grant is not None and (len(grants) < _MAX_GRANTS or grant.is_kubeadm_default):
                kept.take(grant.name, grant.role, grant.uid, grant.resource_version)
                grants.append(grant)
        allowed = await self._allowed_pairs(groups | await self._groups_of_tokens())
        coverage = await self._count_nodes(renewing=any(SubjectKind.NODES in grant.to for grant in grants))
        return AuditFacts(grants=tuple(grants), allowed=allowed, coverage=coverage, enforce=enforce, born=born)

    async def has_cluster_info(self) -> bool:
        """Return whether kubeadm has come to the end of its phase ``bootstrap-token``; raises ApiError.

        What is looked at afterwards holds its bindings (cmd/kubeadm/app/cmd/phases/init/bootstraptoken.go).
        """
        with suppress(NotFound):
            await self._client.get(_CLUSTER_INFO)
            return True
        return False

    async def remove(self, grant: RoleGrant) -> None:
        """Delete exactly the binding that was checked; raises Conflict where it changed, NotFound where it is gone."""
        path = paths.object_path(*_BINDINGS, grant.name)
        await self._client.delete(path, uid=grant.uid, resource_version=grant.resource_version)

    async def _groups_of_tokens(self) -> set[str]:
        """Read the groups of unexpired tokens; without the right to, none."""
        groups: set[str] = set()
        kept = ListLimit("bootstrap tokens", self._most)
        tokens = self._items(paths.core_path("secrets", namespace=NAMESPACE), {"fieldSelector": f"type={SECRET_TYPE}"})
        with suppress(Forbidden):
            async for secret in tokens:
                for group in set(authenticating_groups(secret, self._now()) or ()) - groups:
                    kept.take(group)
                    groups.add(group)
        return groups

    async def _allowed_pairs(self, groups: set[str]) -> AllowedPairs:
        """Ask the API server: as kubeadm's tokens, as one with every group that a token may have, and as a node."""
        known = [BOOTSTRAP_GROUP, KUBEADM_TOKEN_GROUP, _AUTHENTICATED]
        every = [*dict.fromkeys([*known, *sorted(groups)])][:_MAX_GROUPS]
        token, other_token = ReviewedUser(name=_TOKEN_USER, groups=known), ReviewedUser(name=_TOKEN_USER, groups=every)
        askers = [(SubjectKind.BOOTSTRAPPERS, token)]
        askers += [(SubjectKind.BOOTSTRAPPERS, other_token)] if every != known else []
        askers += [(SubjectKind.NODES, ReviewedUser(name=_NODE_USER, groups=[NODES_GROUP, _AUTHENTICATED]))]
        allowed: set[tuple[SubjectKind, Permission]] = set()
        for subject, user in askers:
            for permission in Permission:
                attributes = ResourceAttributes(
                    verb="create", group=CSR_GROUP, resource=CSR_RESOURCE, subresource=str(permission)
                )
                if await is_access_allowed(self._client, attributes, user):
                    allowed.add((subject, permission))
        return frozenset(allowed)

    async def _count_nodes(self, *, renewing: bool) -> NodeCoverage:
        """Count the Nodes; where none renews by a binding, an older count will do."""
        if not renewing and self._counted is not None and self._clock() - self._counted[0] < _COUNT_PERIOD:
            return self._counted[1]
        coverage, now, limit = NodeCoverage(), self._now(), ListLimit("Nodes", self._most)
        async for node in self._items(paths.core_path("nodes")):
            name = text(node, "metadata", "name")
            attested = is_attested(node, self._key, self._inventory, now)
            limit.take(name)
            coverage.count(name, attested=attested, created=moment(text(node, "metadata", "creationTimestamp")))
        self._counted = (self._clock(), coverage)
        return coverage

    async def _items(self, path: str, query: Mapping[str, str] | None = None) -> AsyncGenerator[JsonObject]:
        async for page in self._client.pages(path, query):
            for item in items(page, "items"):
                yield item
