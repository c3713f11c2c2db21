"""Builds the manager out of the settings: every controller and what it runs on, in the order of the dependencies.

Nothing refers to a part that is built later: a part that needs to know of a change subscribes to the change bus.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from nodeattest_controller.controllers.auto_approval.reconciler import AutoApprovalReconciler
from nodeattest_controller.controllers.bootstrap_config.render import has_agent
from nodeattest_controller.controllers.bootstrap_signer import TokenPairRunner, enabled_controllers
from nodeattest_controller.controllers.bootstrap_token import CONTROLLER as BOOTSTRAP_TOKEN
from nodeattest_controller.controllers.bootstrap_token import BootstrapTokenReconciler
from nodeattest_controller.controllers.challenge_secret import ChallengeSecretReconciler
from nodeattest_controller.controllers.csr.controller import CSRController
from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.csr.issuer import Issuer
from nodeattest_controller.controllers.csr.reconciler import Reconciler
from nodeattest_controller.controllers.csr.request_limiter import RequestLimiter
from nodeattest_controller.controllers.issuer import IssuerReconciler, publish_targets
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.controllers.node_attested.controller import NodeAttestedController
from nodeattest_controller.controllers.policy_status.reconciler import PolicyStatusReconciler
from nodeattest_controller.controllers.signer_names import SignerNamesReconciler
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.challenge_keys import ChallengeKeys
from nodeattest_controller.runtime.cluster_controller import (
    ClusterController,
    CSRObserver,
    ReconcilerDeps,
    ReconcilerFactory,
)
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.cluster_manager import ClusterManager, Manager
from nodeattest_controller.runtime.guard import ClusterGuard, ClusterMarks
from nodeattest_controller.runtime.management_cache import ManagementCache, cache_memory
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.settings import COMPONENT, Settings
from nodeattest_controller.verification.controller_facts import ControllerFacts
from nodeattest_controller.verification.verifiers import VerificationRunner, VerifierRegistry
from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.store import MemoryPool
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.verifier_interface import ClusterAPISigner

Connect = Callable[[bytes], ApiClient]
"""Makes a client for a workload cluster out of its kubeconfig."""
_PURPOSES: Final = {Purpose.CLIENT: "attestation", Purpose.SERVING: "serving"}
"""Which name of ``--controllers`` handles the requests of a purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What every controller is built with."""

    settings: Settings
    metrics: Metrics
    management: ManagementCache
    deps: ReconcilerDeps
    configs: KubeadmConfigs
    still_leads: Callable[[], Awaitable[bool]]
    """Whether nobody else has led up to now, by a read of the Lease that begins now; raises ApiError."""
    guard: ClusterGuard
    events: EventRecorder
    log: ClusterLog


def build_manager(
    settings: Settings,
    client: ApiClient,
    metrics: Metrics,
    *,
    connect: Connect,
    may_act: Callable[[], bool],
    still_leads: Callable[[], Awaitable[bool]],
    signers: Mapping[ProviderName, ClusterAPISigner],
) -> Manager:
    """Build the parts; ``client`` is the management cluster's.

    ``may_act``: whether this replica may now. ``still_leads``: whether, by the Lease, nobody else has led up to now.
    """
    management = ManagementCache(
        client,
        namespace=settings.watch_namespace,
        inventory=settings.inventory,
        now=_now,
    )
    client.may_send = may_act
    log, events = ClusterLog(), EventRecorder(client, component=COMPONENT, instance=settings.identity, now=_now)
    marks = ClusterMarks(
        management,
        controller=f"{settings.namespace}/{settings.instance}",
        watch_filter=settings.watch_filter,
        events=events,
        now=_now,
    )
    guard = ClusterGuard(management, may_act, marks)
    shared = _Shared(
        settings=settings,
        metrics=metrics,
        management=management,
        deps=ReconcilerDeps(management=management, guard=guard, events=events, metrics=metrics, now=_now),
        configs=KubeadmConfigs(client, management.caches),
        still_leads=still_leads,
        guard=guard,
        events=events,
        log=log,
    )
    return _manager(shared, VerifierRegistry(settings.platforms, metrics, signers), marks, connect)


def _manager(shared: _Shared, verifiers: VerifierRegistry, marks: ClusterMarks, connect: Connect) -> Manager:
    in_clusters, global_ones = _controllers(shared, verifiers)
    clusters = ClusterManager(
        shared.management,
        in_clusters,
        guard=shared.guard,
        marks=marks,
        metrics=shared.metrics,
        events=shared.events,
        connect=connect,
        now=_now,
        log=shared.log,
        clusters_per_namespace=shared.settings.clusters_per_namespace,
    )
    shared.management.changes.subscribe_clusters(clusters.changed)
    return Manager(
        management=shared.management,
        clusters=clusters,
        controllers=global_ones,
        closers=(verifiers.aclose, shared.events.drain),
    )


def _controllers(
    shared: _Shared, verifiers: VerifierRegistry
) -> tuple[Sequence[ClusterController], Mapping[str, Callable[[], Awaitable[None]]]]:
    """Build the controllers of each cluster, and those that run once."""
    settings, management, configs, deps = shared.settings, shared.management, shared.configs, shared.deps
    in_clusters: list[ClusterController] = []
    observers: list[CSRObserver] = []
    if settings.enabled("hardening"):
        in_clusters.append(ReconcilerFactory("hardening", partial(AutoApprovalReconciler, deps)))
    if settings.enabled("standing"):
        node_attested = NodeAttestedController(deps)
        in_clusters.append(node_attested)
        observers.append(node_attested)
    rotation = timedelta(seconds=settings.challenge_key_rotation)
    keys = ChallengeKeys(management.client, namespace=settings.namespace, rotate_after=rotation, now=_now)
    everywhere: dict[str, Callable[[], Awaitable[None]]] = {"challenge-keys": keys.run}
    purposes = frozenset(purpose for purpose, controller in _PURPOSES.items() if settings.enabled(controller))
    if purposes:
        csr = _csr_controller(shared, keys, verifiers, observers=observers, purposes=purposes)
        in_clusters.insert(0, csr)
        everywhere["csr"] = csr.run
        everywhere["policy-status"] = _policy_status(shared).run
    if settings.enabled("attestation"):
        everywhere["signer-names"] = _signer_names(shared).run
        in_clusters.append(ReconcilerFactory("challenge-secret", partial(ChallengeSecretReconciler, deps, configs)))
    pair = enabled_controllers(settings)
    if pair:
        name = "bootstrap-signer and token-cleaner"
        in_clusters.append(ReconcilerFactory(name, partial(TokenPairRunner, deps, pair)))
    if settings.enabled(BOOTSTRAP_TOKEN):
        tokens = partial(BootstrapTokenReconciler, deps, configs)
        in_clusters.append(ReconcilerFactory(BOOTSTRAP_TOKEN, tokens))
    targets = publish_targets(settings)
    if targets is not None:
        in_clusters.append(ReconcilerFactory("issuer", partial(IssuerReconciler, deps, targets)))
    return in_clusters, everywhere


def _csr_controller(
    shared: _Shared,
    keys: ChallengeKeys,
    verifiers: VerifierRegistry,
    *,
    observers: Sequence[CSRObserver],
    purposes: frozenset[Purpose],
) -> CSRController:
    settings, events, metrics, management = shared.settings, shared.events, shared.metrics, shared.management
    verifications, configs = VerificationRunner(settings.verification_timeout), shared.configs

    def facts_of(workload: WorkloadClient) -> ControllerFacts:
        return ControllerFacts(
            management=management,
            workload=workload,
            verifiers=verifiers,
            runner=verifications,
            kubeadm_configs=configs,
            challenge_keys=keys,
            provider_id_oid=settings.provider_id_oid,
            clock=_now,
        )

    evaluator = Evaluator(facts_of, provider_id_oid=settings.provider_id_oid)
    lifetime = int(settings.certificate_lifetime)
    reconciler = Reconciler(
        management,
        evaluator,
        Issuer(
            management,
            events=events,
            metrics=metrics,
            observers=observers,
            check_issuance=evaluator.check_issuance,
            still_leads=shared.still_leads,
            certificate_lifetime=lifetime,
            now=_now,
            clock=time.monotonic,
        ),
        kubelet_serving=KubeletServingEvaluator(management, facts_of=facts_of, events=events, metrics=metrics),
        purposes=purposes,
        events=events,
        metrics=metrics,
        observers=observers,
        wait_limit=settings.wait_limit,
        limiter=RequestLimiter(time.monotonic),
        log=shared.log,
        random_unit=random.random,
        now=_now,
    )
    return CSRController(
        reconciler,
        has_provider=verifiers.has,
        metrics=metrics,
        log=shared.log,
        now=_now,
        memory=MemoryPool(cache_memory() // 2),
        workers=settings.workers,
    )


def _policy_status(shared: _Shared) -> PolicyStatusReconciler:
    reconciler = PolicyStatusReconciler(
        shared.management,
        guard=shared.guard,
        events=shared.events,
        metrics=shared.metrics,
        now=_now,
        has_webhook=shared.settings.has_webhook,
        configuration=shared.settings.webhook_configuration,
        is_rendered=has_agent,
    )
    shared.management.changes.subscribe_clusters(reconciler.cluster_changed)
    shared.management.changes.subscribe_policies(reconciler.changed)
    return reconciler


def _signer_names(shared: _Shared) -> SignerNamesReconciler:
    reconciler = SignerNamesReconciler(
        shared.management,
        guard=shared.guard,
        serves=shared.settings.enabled("serving"),
        now=_now,
        queue_metrics=shared.metrics.queues.named("signer-names"),
    )
    shared.management.changes.subscribe_clusters(reconciler.cluster_changed)
    return reconciler


def _now() -> datetime:
    return datetime.now(UTC)
