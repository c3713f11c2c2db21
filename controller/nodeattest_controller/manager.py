"""One term of leadership: the parts that act, built from ``Settings`` and run together.

Nothing outlives a term but what stands in Kubernetes: a replica that leads again begins with empty hands.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from nodeattest_controller.controllers.bootstrap_signer.controller import TokenPairController, enabled_controllers
from nodeattest_controller.controllers.bootstrap_token.controller import BootstrapTokenController
from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.csr.issuer import Issuer
from nodeattest_controller.controllers.csr.pending_age import PendingAges
from nodeattest_controller.controllers.csr.reconciler import Reconciler
from nodeattest_controller.controllers.csr.request_limiter import RequestLimiter
from nodeattest_controller.controllers.issuer.controller import IssuerController
from nodeattest_controller.controllers.issuer.events import Report as IssuerReport
from nodeattest_controller.controllers.issuer.publish_target import publish_targets
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.controllers.node_attested.controller import NodeAttestedController
from nodeattest_controller.controllers.node_attested.reconciler import NodeAttestedDeps
from nodeattest_controller.controllers.policy_status.reconciler import PolicyStatusReconciler
from nodeattest_controller.controllers.signer_names.reconciler import SignerNamesReconciler
from nodeattest_controller.hardening.duty import HardeningDuty
from nodeattest_controller.hardening.report import Report
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.challenge_keys import ChallengeKeys
from nodeattest_controller.runtime.cluster_manager import ClusterManager
from nodeattest_controller.runtime.csr_observer import CSRObserver
from nodeattest_controller.runtime.events import EventRecorder
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigReader
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.ownership import LeaderOwnsAll
from nodeattest_controller.runtime.shard_manager import ShardManager
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.settings import Settings
from nodeattest_controller.verification.facts import ControllerFacts
from nodeattest_controller.verification.registry import VerifierRegistry
from nodeattest_controller.verification.runner import VerificationRunner
from nodeattest_kube.client import ApiClient
from nodeattest_providers.names import ProviderName, Purpose
from nodeattest_providers.verifier_interface import ClusterAPISigner

__all__ = ["Connect", "Manager", "build_manager"]

_LOG: Final = logging.getLogger(__name__)

Connect = Callable[[bytes], ApiClient]
"""Makes a client for a workload cluster out of its kubeconfig."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """What runs while this replica leads."""

    management: ManagementCache
    keys: ChallengeKeys
    halves: VerifierRegistry
    events: EventRecorder
    fleet: ClusterManager
    keeper: PolicyStatusReconciler
    publisher: SignerNamesReconciler
    sharing: ShardManager | None
    """None: this replica leads, and serves every cluster."""

    def unhealthy(self) -> str | None:
        """Say what keeps this replica from serving; None when nothing does."""
        trouble = self.sharing.trouble if self.sharing is not None else None
        return self.management.unhealthy() or (f"cannot share clusters: {trouble}" if trouble else None)

    async def run(self, settings: Settings) -> None:
        """Serve until cancelled; no request is judged before the inventory is complete."""
        async with asyncio.TaskGroup() as tasks:
            ready = asyncio.Event()
            tasks.create_task(self.management.run(ready))
            await ready.wait()
            tasks.create_task(self.keys.run())
            _LOG.info("serving", extra=fields(identity=settings.identity))
            if _purposes(settings):
                tasks.create_task(self.keeper.run())
            if settings.enabled("attestation"):
                tasks.create_task(self.publisher.run())
            serve = partial(self.fleet.run, settings.workers)
            tasks.create_task(serve() if self.sharing is None else self.sharing.run(serve))

    async def aclose(self) -> None:
        """Close what was held; what is still to be told is told."""
        await self.halves.aclose()
        await self.events.drain()


def build_manager(
    settings: Settings,
    client: ApiClient,
    metrics: Metrics,
    *,
    connect: Connect,
    may_act: Callable[[], bool],
    leases: ApiClient | None,
    signers: Mapping[ProviderName, ClusterAPISigner],
) -> Manager:
    """Build the parts; ``client`` is the management cluster's, ``leases`` another of the same for sharing clusters.

    ``may_act`` tells at each instant whether this replica may; ``signers`` are providers of whoever runs us.
    """
    rotation = timedelta(seconds=settings.challenge_key_rotation)
    keys = ChallengeKeys(client, namespace=settings.namespace, rotate_after=rotation, now=_now)
    events = EventRecorder(client, now=_now, instance=settings.identity)
    halves = VerifierRegistry(settings.platforms, metrics, signers)
    fleet: ClusterManager

    def changed(cluster: ClusterKey, provider_ids: frozenset[str] | None) -> None:
        fleet.changed(cluster, provider_ids)
        if provider_ids is not None:
            return
        keeper.changed(cluster.partition("/")[0])
        publisher.changed(cluster)
        if sharing is not None:
            sharing.changed()

    def begun(cluster: ClusterKey) -> None:
        fleet.changed(cluster, None)
        publisher.changed(cluster)

    def policies_changed(namespace: str) -> None:
        keeper.changed(namespace)

    management = ManagementCache(
        client,
        namespace=settings.watch_namespace,
        on_change=changed,
        inventory=settings.inventory,
        on_policies=policies_changed,
    )
    sharing = None
    if leases is not None:
        sharing = ShardManager(
            settings,
            leases,
            management,
            metrics=metrics,
            may_act=may_act,
            begun=begun,
            stop=lambda cluster: fleet.stop(cluster),  # noqa: PLW0108 - the fleet is yet to be made
        )
    client.may_send = may_act if sharing is None else sharing.may_write
    ownership = LeaderOwnsAll(may_act) if sharing is None else sharing
    keeper = PolicyStatusReconciler(management, ownership=ownership, events=events, metrics=metrics, now=_now)
    publisher = SignerNamesReconciler(management, ownership=ownership, serves=settings.enabled("serving"), now=_now)
    hardening = HardeningDuty(
        management,
        Report(management, events=events, metrics=metrics, now=_now),
        ownership=ownership,
        enabled=settings.enabled("hardening"),
        now=_now,
    )
    ground = NodeAttestedDeps(
        management=management, ownership=ownership, metrics=metrics, now=_now, clock=time.monotonic
    )
    standings = [NodeAttestedController(ground, events=events)] if settings.enabled("standing") else []
    observers: tuple[CSRObserver, ...] = (hardening, *standings)
    reconciler = _reconciler(
        settings, metrics, management=management, keys=keys, halves=halves, events=events, observers=observers
    )
    token_life = BootstrapTokenController(
        management,
        ownership=ownership,
        enabled=settings.enabled("bootstrap-token"),
        events=events,
        metrics=metrics,
        now=_now,
    )
    issuers = IssuerController(
        management,
        IssuerReport(management, events=events, metrics=metrics, clock=time.monotonic),
        ownership=ownership,
        sites=publish_targets(settings),
    )
    share = max(1, settings.workers // 4)  # so that three hung clusters leave the rest a quarter
    fleet = ClusterManager(
        management,
        reconciler,
        ownership=ownership,
        duties=[
            TokenPairController(management, enabled_controllers(settings), events=events, metrics=metrics),
            hardening,
            *standings,
            token_life,
            issuers,
        ],
        judges=bool(_purposes(settings)),
        metrics=metrics,
        connect=connect,
        now=_now,
        per_cluster=share,
        per_requester=max(1, share // 2),
    )
    return Manager(
        management=management,
        keys=keys,
        halves=halves,
        events=events,
        fleet=fleet,
        keeper=keeper,
        publisher=publisher,
        sharing=sharing,
    )


def _reconciler(
    settings: Settings,
    metrics: Metrics,
    *,
    management: ManagementCache,
    keys: ChallengeKeys,
    halves: VerifierRegistry,
    events: EventRecorder,
    observers: Sequence[CSRObserver],
) -> Reconciler:
    verifications = VerificationRunner(settings.verification_timeout)
    configs = KubeadmConfigReader(management.client, clock=time.monotonic)

    def facts_of(workload: WorkloadClient) -> ControllerFacts:
        return ControllerFacts(
            management=management,
            workload=workload,
            verifiers=halves,
            runner=verifications,
            kubeadm_configs=configs,
            challenge_keys=keys,
            provider_id_oid=settings.provider_id_oid,
            clock=_now,
        )

    judge = Evaluator(facts_of, provider_id_oid=settings.provider_id_oid)
    lifetime = int(settings.certificate_lifetime)
    return Reconciler(
        management,
        judge,
        Issuer(
            management,
            events=events,
            metrics=metrics,
            observers=observers,
            check_issuance=judge.check_issuance,
            certificate_lifetime=lifetime,
            now=_now,
        ),
        kubelet_serving=KubeletServingEvaluator(management, facts_of=facts_of, events=events, metrics=metrics),
        purposes=_purposes(settings),
        events=events,
        metrics=metrics,
        observers=observers,
        wait_limit=settings.wait_limit,
        ages=PendingAges(_now, time.monotonic),
        budgets=RequestLimiter(time.monotonic),
        chance=random.random,
        now=_now,
    )


def _purposes(settings: Settings) -> frozenset[Purpose]:
    served = {Purpose.CLIENT: "attestation", Purpose.SERVING: "serving"}
    return frozenset(purpose for purpose, controller in served.items() if settings.enabled(controller))


def _now() -> datetime:
    return datetime.now(UTC)
