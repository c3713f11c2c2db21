"""Publishes the names of a cluster's signers on its infrastructure object, and reports on the Cluster where they are.

Proposal 004 ("All providers") has two fields in the object's status; where its CRD drops them, annotations hold the
names. A policy that is invalid, or in conflict, changes nothing. The condition records that names were published: they
are removed when no policy selects the Cluster any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.machine_view import ContractReference, contract_reference
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.cluster_controller import ReconcilerDeps
from nodeattest_controller.runtime.conditions import (
    Condition,
    ConditionStatus,
    Severity,
    remove_condition,
    set_condition,
)
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import cluster_path
from nodeattest_controller.runtime.references import path_of_reference
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import condition, items, mapping, text, text_map
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import Purpose, signer_for
from nodeattest_providers.registry import INSECURE

FIELDS: Final = ("kubeletClientCertificateSigner", "kubeletServingCertificateSigner")
ANNOTATIONS: Final = (
    "attestation.cluster.x-k8s.io/kubelet-client-certificate-signer",
    "attestation.cluster.x-k8s.io/kubelet-serving-certificate-signer",
)
PUBLISHED: Final = "KubeletSignersPublished"
SETTLE: Final = 1.0
"""Seconds from a change to the reconciliation."""
RESYNC: Final = 600.0
"""Seconds until published names are checked again: others write these objects, and their CRDs change."""
LOG_INTERVAL: Final = 86400.0
"""Seconds between two log lines that a cluster's names may not be written."""
WORKERS: Final = 4
_GROUP: Final = "cluster.x-k8s.io"
_RIGHTS: Final = "let the controller get this kind and patch its status, as manifests/rbac does for known providers"
_ANNOTATE: Final = "to have them as annotations, apply manifests/infrastructure-annotations"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Signers:
    """What is published of a cluster."""

    client: str | None
    serving: str | None
    """None: nobody signs serving certificates by attestation."""
    others: tuple[str, ...] = ()

    def changes(self, known: Mapping[str, str], names: tuple[str, str]) -> JsonObject:
        """Return the members that differ from what is known, under the names of client and serving signer."""
        wanted = zip(names, (self.client, self.serving), strict=True)
        return {name: value for name, value in wanted if known.get(name) != value}


NONE: Final = Signers(None, None)
"""What is published of a cluster that no policy selects."""


class SignerReason(StrEnum):
    """The condition's reason."""

    STATUS = "InStatus"
    ANNOTATIONS = "InAnnotations"
    PRUNED = "PrunedByDefinition"
    NO_OBJECT = "InfrastructureNotFound"
    FORBIDDEN = "Forbidden"


_NO_RIGHT: Final = frozenset({SignerReason.FORBIDDEN, SignerReason.PRUNED})
"""Where the names cannot be written, unless an operator grants a right."""


def signers_of(policy: Policy, *, serves: bool) -> Signers:
    """Name the signers: of the first provider that the policy names; ``serves``: serving requests are handled here."""
    admitted = [provider for provider in policy.listed if provider in policy.attestors]
    if not admitted:
        return NONE
    first, *others = (str(signer_for(provider, Purpose.CLIENT)) for provider in admitted)
    signs = serves and policy.signs_serving and admitted[0] not in INSECURE
    serving = str(signer_for(admitted[0], Purpose.SERVING)) if signs else None
    return Signers(first, serving, tuple(others))


class SignerNamesReconciler:
    """Publishes the signers of every cluster that this replica serves."""

    def __init__(self, deps: ReconcilerDeps, *, serves: bool) -> None:
        """Take part; ``serves``: whether attested serving requests are handled here at all."""
        self._management, self._guard, self._now = deps.management, deps.guard, deps.now
        self._serves = serves
        self._limiter = EventLimiter(deps.clock)
        self._queue: WorkQueue[ClusterKey] = WorkQueue(metrics=deps.metrics.queues.named("signer-names"))

    def cluster_changed(self, cluster: ClusterKey, keys: frozenset[str] | None) -> None:
        if keys is None:
            self._queue.add_after(cluster, SETTLE)

    async def run(self) -> None:
        try:
            await self._queue.run(self._reconcile, WORKERS)
        except asyncio.CancelledError:
            self._queue.shut_down()
            raise

    async def _reconcile(self, key: ClusterKey) -> None:
        cluster = self._management.cluster(key)
        reference = contract_reference(mapping(cluster, "spec", "infrastructureRef")) if cluster is not None else None
        wanted = self._wanted(key, cluster) if cluster is not None else None
        if cluster is None or reference is None or wanted is None:
            self._queue.forget(key)
            return
        try:
            reported = await self._put(cluster, reference, wanted)
            await self._report(key, cluster, wanted, reported)
        except ApiError as error:
            log.warning("cannot publish the names of a cluster's signers", extra=fields(cluster=key, error=str(error)))
            self._queue.retry(key, error)
            return
        if reported.reason == SignerReason.NO_OBJECT or (reported.reason in _NO_RIGHT and not wanted.client):
            self._queue.retry(key, None)
            return
        self._queue.forget(key)
        if wanted.client:
            self._queue.add_after(key, RESYNC)

    def _wanted(self, key: ClusterKey, cluster: JsonObject) -> Signers | None:
        """Decide what is to be published; None: the published names stay as they are."""
        if not text(cluster, "apiVersion").startswith(f"{_GROUP}/") or self._guard.active_cluster(key) is None:
            return None
        try:
            wanted = signers_of(self._management.policy_of(cluster), serves=self._serves)
        except Unavailable:  # no policy selects it
            wanted = NONE
        except Denied:
            return None
        return wanted if wanted.client or _has_condition(cluster) else None

    async def _report(self, key: ClusterKey, cluster: JsonObject, wanted: Signers, reported: Condition) -> None:
        """Write the condition, or remove it last, because it remembers that names were published."""
        client, path, has_right = self._management.client, cluster_path(cluster), reported.reason not in _NO_RIGHT
        more = fields(cluster=key, reason=reported.reason, signer=wanted.client, detail=reported.message)
        if has_right and not wanted.client:
            if await remove_condition(client, path, cluster, PUBLISHED):
                log.info("removed the names of a cluster's signers", extra=more)
        elif not has_right and not _has_condition(cluster):
            if self._limiter.allow(key, LOG_INTERVAL):
                log.info("the names of a cluster's signers are not published", extra=more)
        elif await set_condition(client, path, cluster, reported, self._now):
            log.info("reported where the names of a cluster's signers are", extra=more)

    async def _put(self, cluster: JsonObject, reference: ContractReference, wanted: Signers) -> Condition:
        """Bring the infrastructure object up to date and say where the names stand; raises ApiError."""
        client, namespace = self._management.client, text(cluster, "metadata", "namespace")
        what = f"{reference.kind} {reference.name}"
        try:
            path = await path_of_reference(client, reference, namespace)
            infra = await client.get(path)
            held, infra = await _put_fields(client, path, infra, wanted)
        except NotFound:
            return _condition(SignerReason.NO_OBJECT, f"{what} is not there, or nobody serves its kind", wanted)
        except Forbidden as error:
            return _condition(SignerReason.FORBIDDEN, f"{what}: {error.message}; {_RIGHTS}", wanted)
        changed = (NONE if held else wanted).changes(text_map(infra, "metadata", "annotations"), ANNOTATIONS)
        body: JsonObject = {"metadata": {"uid": text(infra, "metadata", "uid"), "annotations": changed}}
        try:
            if changed:
                await client.merge_patch(path, body)
        except Forbidden:
            if not held:
                message = f"the status of {what} has no fields for them; {_ANNOTATE}"
                return _condition(SignerReason.PRUNED, message, wanted)
        if held:
            return _condition(SignerReason.STATUS, f"in the status of {what}", wanted)
        message = f"in annotations of {what}, whose status has no fields for them"
        return _condition(SignerReason.ANNOTATIONS, message, wanted)


async def _put_fields(client: ApiClient, path: str, infra: JsonObject, wanted: Signers) -> tuple[bool, JsonObject]:
    """Write the fields and read back whether they were kept; a kind may have no ``/status`` at all."""
    changed = wanted.changes(text_map(infra, "status"), FIELDS)
    if not changed:
        return bool(wanted.client), infra
    try:
        answer = await client.merge_patch(f"{path}/status", {"status": changed})
    except NotFound:
        return False, infra
    return not wanted.changes(text_map(answer, "status"), FIELDS), answer


def _condition(where: SignerReason, message: str, wanted: Signers) -> Condition:
    good = where in {SignerReason.STATUS, SignerReason.ANNOTATIONS}
    named = f"{wanted.client}; {message}" if wanted.client else message
    if wanted.others:
        named += f"; the policy admits also {', '.join(wanted.others)}"
    severity = Severity.INFO if where is SignerReason.PRUNED else Severity.WARNING
    return Condition(PUBLISHED, ConditionStatus.TRUE if good else ConditionStatus.FALSE, where, named, severity)


def _has_condition(cluster: JsonObject) -> bool:
    return condition(items(cluster, "status", "conditions"), PUBLISHED) is not None
