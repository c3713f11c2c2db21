"""Reconciles in-tree approval in one cluster: installs the block, audits, deletes one binding, reports.

Each run audits from scratch and deletes at most one binding, so the process may end at any time. Nothing is deleted
before the control plane is initialized. What cannot be verified is Unknown: "closed" requires that RBAC grants nothing,
that the API server allows nobody, and that the block is in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.auto_approval import certificates
from nodeattest_controller.controllers.auto_approval import decide as audit
from nodeattest_controller.controllers.auto_approval.approval_block import ApprovalBlock
from nodeattest_controller.model.bootstrap_providers import control_plane_provider
from nodeattest_controller.model.policy import selects
from nodeattest_controller.runtime.cluster_controller import ClusterReconciler, ReconcilerDeps
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity, set_condition
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.informers import MOST, ListLimit
from nodeattest_controller.runtime.management_cache import cluster_path
from nodeattest_kube import paths
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests, Unreachable
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.objects import condition, items, moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NODES_GROUP

REMEDY: Final = (
    "apply manifests/workload-hardening in the workload cluster, or disable hardening with --controllers and close "
    "automatic approval yourself"
)
MANAGEMENT_REMEDY: Final = "apply manifests/rbac in the management cluster"
DELETED: Final = "InTreeApprovalBindingDeleted"
ISSUED: Final = "InTreeCertificateIssued"
_QUIET: Final = frozenset(
    {
        audit.ApprovalReason.CLOSED,
        audit.ApprovalReason.OPEN,  # its binding was deleted before it was reported
        audit.ApprovalReason.NOT_INITIALIZED,
        audit.ApprovalReason.WAITING_FOR_CLUSTER_INFO,
    }
)
"""Reasons whose Event is no warning."""
_SETTLE: Final = 1.0
"""Seconds until the next audit after a deletion: API servers authorize from caches."""
_RECHECK: Final = {
    audit.ApprovalReason.WAITING_FOR_CLUSTER_INFO: 10.0,
    audit.ApprovalReason.BLOCK_NOT_VERIFIED: 10.0,
    audit.ApprovalReason.CANNOT_VERIFY: 60.0,
    audit.ApprovalReason.FOREIGN_AUTHORIZER: 60.0,
}
"""Seconds until the next audit where something is awaited that no watch shows."""
_WRITE_AGAIN: Final = 10.0
"""Seconds until the next audit after the condition could not be written."""
_REPORT_AFTER: Final = 3
"""Failures in a row after which the condition becomes Unknown; a short outage does not change it."""
_LIMIT: Final = 5.0
"""Seconds for one attempt to install the block at first contact, or to remove it when a cluster is disconnected."""
_ANSWERED: Final = 7200.0
"""Seconds after which no answered request is left to be reported again (cleaner.go, approvedExpiration: an hour)."""
_MAX_GROUPS: Final = 256
"""Groups of bootstrap tokens that one access review names."""
_EARLIER: Final = 600
"""Characters kept of the certificates that an earlier process reported."""
_AUTHENTICATED: Final = "system:authenticated"
_BINDINGS: Final = (audit.RBAC_GROUP, "v1", "clusterrolebindings")
_CLUSTER_INFO: Final = paths.core_path("configmaps", "cluster-info", namespace="kube-public")


class AutoApprovalReconciler(ClusterReconciler):
    """In-tree approval in one cluster."""

    resync = ResyncConfig(period=300.0, max_retry=30.0, share=50)
    """The resync finds changes of RBAC and other authorizers; the watch shows requests for the in-tree signer."""

    def __init__(
        self, deps: ReconcilerDeps, key: ClusterKey, client: ApiClient, resync: ResyncConfig | None = None
    ) -> None:
        super().__init__(deps, key, client, resync)
        self._block = ApprovalBlock(client)
        self.certificates: Final = certificates.InTreeCertificates(
            key, client, self._management.inventory, clock=deps.clock, on_change=self.changed
        )
        self._audits = False
        self._permitted_until: datetime | None = None
        """When in-tree approval was last permitted by ``Audit``."""
        self._suspects_authorizer = False
        """Whether the last audit found a foreign authorizer: it is reported if the next one finds it, too."""

    async def run(self) -> None:
        """Run until cancelled; removes the block where no policy selects the cluster any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._install_at_first_contact())
                tasks.create_task(super().run())
                tasks.create_task(self.certificates.run())
        finally:
            await self._remove_block()

    async def _install_at_first_contact(self) -> None:
        """Retry every second until the API server of a new cluster answers.

        kubeadm makes its bindings some seconds later (cmd/kubeadm/app/cmd/init.go, the order of its phases).
        """
        while (cluster := self._management.cluster(self._key)) is not None and not audit.is_initialized(cluster):
            with suppress(ApiError, TimeoutError):  # the machine is booting
                async with asyncio.timeout(_LIMIT):
                    if self._guard.enforced_cluster(self._key) is not None:
                        await self._block.install()
                        self.changed()
                        return
            await asyncio.sleep(1.0)

    async def _remove_block(self) -> None:
        cluster = self._guard.active_cluster(self._key)
        if cluster is None or self._management.opts_in(cluster):
            return
        try:
            async with asyncio.timeout(_LIMIT):
                await self._block.remove()
        except (ApiError, TimeoutError) as error:
            message = f"cannot remove the block of in-tree approvals; see {audit.RUNBOOK}"
            self._events.warn(None, message, error=str(error))

    async def reconcile(self) -> float | None:
        """Install or remove the block, review certificates, audit; a block that fails prevents no audit."""
        cluster = self._guard.active_cluster(self._key)
        if cluster is None:
            return None
        self._audits = False
        try:
            enforce = self._management.policy_of(cluster).enforce
        except Unavailable:  # no policy selects the cluster any more
            return None
        except Denied as denied:
            return await self._report(
                audit.cannot_verify(f"the policy cannot be used, so nothing is changed: {denied}")
            )
        self._audits = not enforce
        if self._audits or _stored(cluster).get("reason") == audit.ApprovalReason.AUDIT:
            self._permitted_until = self._now()
        block_error: audit.Finding | None = None
        try:
            await (self._block.install() if enforce else self._block.remove())
        except (Unreachable, TooManyRequests):
            raise
        except ApiError as error:
            block_error = audit.cannot_verify(f"{error}; {REMEDY}")
        if enforce:
            await self._review_certificates(cluster)
        if not audit.is_initialized(cluster):
            return await self._report(block_error or audit.NOT_INITIALIZED)
        return await self._audit(cluster, block_error, enforce=enforce)

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report a failure: a missing right at once, an outage when it lasts."""
        cluster = self._guard.active_cluster(self._key)
        message = "cannot audit automatic approval"
        if cluster is None or not audit.is_initialized(cluster) or self._client.has_reported(error):
            self._events.debug(message, error=str(error), delay=delay)
        else:
            self._events.warn(None, message, error=str(error), delay=delay)
        if cluster is None:
            return
        if isinstance(error, Forbidden):
            await self._report(audit.cannot_verify(f"{error}; {REMEDY}"))
        elif not audit.is_initialized(cluster):
            await self._report(audit.NOT_INITIALIZED)
        elif failures >= _REPORT_AFTER:
            await self._report(audit.cannot_verify(f"the cluster does not answer: {error}"))

    # The audit

    async def _audit(self, cluster: JsonObject, block_error: audit.Finding | None, *, enforce: bool) -> float | None:
        """Audit, delete at most one binding, and report what was found; returns the seconds until the next run."""
        doubt = await self._doubt(cluster, block_error, enforce=enforce)  # before the lists, see _doubt
        binding, finding = audit.decide(replace(await self._facts(enforce=enforce), doubt=doubt))
        if binding is not None and self._guard.enforced_cluster(self._key) is not None:
            try:
                await self._delete(binding)
            finally:
                await self._report(finding)
            return _SETTLE
        is_first = not self._suspects_authorizer
        self._suspects_authorizer = finding.reason is audit.ApprovalReason.FOREIGN_AUTHORIZER
        if self._suspects_authorizer and is_first:  # caches may lag
            return _SETTLE
        return await self._report(finding)

    async def _doubt(
        self, cluster: JsonObject, block_error: audit.Finding | None, *, enforce: bool
    ) -> audit.Finding | None:
        """Return why the cluster cannot be called closed though nothing is open.

        kubeadm makes cluster-info after its bindings (cmd/kubeadm/app/cmd/phases/init/bootstraptoken.go). So bindings
        are listed after cluster-info was read.
        """
        other = control_plane_provider(cluster)
        if other is not None or block_error is not None:
            return audit.other_bootstrap_provider(other) if other is not None else block_error
        try:
            await self._client.get(_CLUSTER_INFO)
        except NotFound:
            return audit.WAITING_FOR_CLUSTER_INFO
        except Forbidden as error:
            return audit.cannot_verify(f"{error}; {REMEDY}")
        if trouble := self.certificates.trouble():
            return audit.cannot_verify(f"requests for the in-tree signer are not being watched: {trouble}; {REMEDY}")
        try:
            return None if not enforce or await self._block.in_force() else audit.BLOCK_NOT_VERIFIED
        except Forbidden as error:
            return audit.cannot_verify(f"{error}; {REMEDY}")

    async def _facts(self, *, enforce: bool) -> audit.AuditFacts:
        """List what RBAC grants and ask the API server; a list that breaks off is an error, never a shorter list."""
        permissions_of: dict[str, frozenset[audit.Permission]] = {}
        kept = ListLimit("ClusterRoles", MOST)
        async for role in self._items(paths.collection_path(audit.RBAC_GROUP, "v1", "clusterroles")):
            permissions, name = audit.nominal_permissions(role), text(role, "metadata", "name")
            if permissions:
                kept.take(name)
                permissions_of[name] = permissions
        grants, groups = list[audit.RoleGrant](), set[str]()
        kept = ListLimit("ClusterRoleBindings", MOST)
        async for binding in self._items(paths.collection_path(*_BINDINGS)):
            for group in audit.bootstrap_groups_of(binding) - groups:
                kept.take(group)
                groups.add(group)
            grant = audit.grant_of(binding, permissions_of)
            if grant is not None:
                kept.take(grant.name, grant.role, grant.uid, grant.resource_version, grant.created)
                grants.append(grant)
        lets_nodes_renew = any(audit.SubjectKind.NODES in grant.to for grant in grants)
        return audit.AuditFacts(
            grants=tuple(grants),
            allowed=await self._allowed_pairs(groups),
            coverage=await self._count_nodes() if lets_nodes_renew else audit.NodeCoverage(),
            enforce=enforce,
        )

    async def _allowed_pairs(self, groups: set[str]) -> audit.AllowedPairs:
        """Ask the API server: as kubeadm's tokens, as one with every group that a binding names, and as a node."""
        known = [audit.BOOTSTRAP_GROUP, audit.KUBEADM_TOKEN_GROUP, _AUTHENTICATED]
        every = [*dict.fromkeys([*known, *sorted(groups)])][:_MAX_GROUPS]
        # The names are nobody's: what is granted to a name is found in the bindings.
        token = f"{audit.BOOTSTRAP_USER_PREFIX}000000"
        users = [(audit.SubjectKind.BOOTSTRAPPERS, ReviewedUser(name=token, groups=known))]
        users += [(audit.SubjectKind.BOOTSTRAPPERS, ReviewedUser(name=token, groups=every))] if every != known else []
        node = ReviewedUser(name=f"{NODE_USER_PREFIX}nodeattest-asks", groups=[NODES_GROUP, _AUTHENTICATED])
        users.append((audit.SubjectKind.NODES, node))
        allowed: set[tuple[audit.SubjectKind, audit.Permission]] = set()
        for subject, user in users:
            for permission in audit.Permission:
                attributes = ResourceAttributes(
                    verb="create", group=audit.CSR_GROUP, resource=audit.CSR_RESOURCE, subresource=str(permission)
                )
                if await is_access_allowed(self._client, attributes, user):
                    allowed.add((subject, permission))
        return frozenset(allowed)

    async def _count_nodes(self) -> audit.NodeCoverage:
        nodes, unattested = 0, list[str]()
        now, inventory, kept = self._now(), self._management.inventory, ListLimit("Nodes", MOST)
        async for node in self._items(paths.core_path("nodes")):
            name = text(node, "metadata", "name")
            kept.take(name)
            nodes += 1
            if not audit.is_attested(node, self._key, inventory, now):
                unattested.append(name)
        return audit.NodeCoverage(nodes, tuple(unattested))

    async def _items(self, path: str) -> AsyncGenerator[JsonObject]:
        async for page in self._client.pages(path):
            for item in items(page, "items"):
                yield item

    async def _delete(self, binding: audit.RoleGrant) -> None:
        """Delete exactly the binding that was evaluated; one that changed meanwhile is left to the next audit."""
        path = paths.object_path(*_BINDINGS, binding.name)
        with suppress(NotFound, Conflict):
            await self._client.delete(path, uid=binding.uid, resource_version=binding.resource_version)
            what = {"binding": binding.name, "role": binding.role, "created": binding.created}
            self._events.info("deleted an auto-approving binding", **what)
            message = f"deleted ClusterRoleBinding {binding} of {binding.created} in the workload cluster"
            self._events.event("Normal", DELETED, message)

    # Certificates

    async def _review_certificates(self, cluster: JsonObject) -> None:
        """Report each certificate that is a violation once, when it is issued."""
        reviewed = _reviewed(cluster, self._now())
        for issued in await self.certificates.review(self._violation_since(cluster), reviewed):
            if issued.serial and self._events.allow(issued.uid, _ANSWERED):
                self._metrics.in_tree_certificate(self._key)
                self._events.warn(None, "a certificate was issued past attestation", certificate=str(issued))
                message = f"the in-tree signer's approval was given without attestation: {issued}; see {audit.RUNBOOK}"
                self._events.event("Warning", ISSUED, message)

    def _violation_since(self, cluster: JsonObject) -> datetime:
        """Return from when on in-tree approval is a violation: policy, Cluster, end of Audit, operator's review."""
        policies = self._management.policies(text(cluster, "metadata", "namespace"))
        objects = [cluster, *(policy for policy in policies if selects(policy, cluster))]
        times = [moment(text(each, "metadata", "creationTimestamp")) for each in objects]
        times += [_reviewed(cluster, self._now()), self._permitted_until]
        return max((time for time in times if time is not None), default=self._now())

    def _describe_certificates(self, cluster: JsonObject) -> str:
        stored, foreign = _stored(cluster), self.certificates.foreign.values()
        if foreign or stored.get("reason") != audit.ApprovalReason.CERTIFICATES_ISSUED:
            return certificates.describe(foreign)
        message = text(stored, "message").partition(certificates.BESIDES)[0]
        last = certificates.last_approval(message) or moment(text(stored, "lastTransitionTime"))
        reviewed = _reviewed(cluster, self._now())
        return "" if reviewed is not None and last is not None and reviewed > last else message[:_EARLIER]

    # The condition

    async def _report(self, finding: audit.Finding) -> float | None:
        """Write the condition, with an Event where its reason is new; returns the seconds until the next audit."""
        cluster = self._management.cluster(self._key)
        if cluster is None:
            return None
        if not self._audits:
            finding = certificates.with_certificates(finding, self._describe_certificates(cluster))
        self._metrics.auto_approval_closed(self._key, closed=finding.status is ConditionStatus.TRUE)
        severity = Severity.INFO if finding.reason is audit.ApprovalReason.AUDIT else Severity.WARNING
        wanted = Condition(audit.CONDITION, finding.status, finding.reason, finding.message, severity)
        try:
            written = await set_condition(self._management.client, cluster_path(cluster), cluster, wanted, self._now)
        except ApiError as error:
            remedy = MANAGEMENT_REMEDY if isinstance(error, Forbidden) else ""
            more = {"error": str(error), "finding": finding.reason, "remedy": remedy}
            self._events.warn(None, "cannot write the Cluster's condition", **more)
            return _WRITE_AGAIN
        if written and text(_stored(cluster), "reason") != finding.reason:
            kind = "Normal" if finding.reason in _QUIET else "Warning"
            message = f"{audit.CONDITION} is {finding.status}: {finding.message}"
            self._events.event(kind, f"InTreeApproval{finding.reason}", message)
            self._events.info("automatic approval", reason=finding.reason, message_=finding.message)
        return _RECHECK.get(finding.reason)


def _stored(cluster: JsonObject) -> JsonObject:
    return dict(condition(items(cluster, "status", "conditions"), audit.CONDITION) or {})


def _reviewed(cluster: JsonObject, now: datetime) -> datetime | None:
    """Return the time that the operator confirmed; one in the future would hide later certificates."""
    found = moment(text(cluster, "metadata", "annotations", audit.REVIEWED))
    return found if found is not None and found <= now else None
