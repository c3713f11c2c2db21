"""The controller's process: builds every part from the settings, waits for leadership, and runs the parts.

Parts are built in the order of their dependencies. A part that needs to know of a change subscribes to the cache's
change bus. The process ends when it may not act any more.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Final

from nodeattest_controller.controllers.auto_approval.reconciler import AutoApprovalReconciler
from nodeattest_controller.controllers.bootstrap_config.server import serve_webhook
from nodeattest_controller.controllers.bootstrap_signer import TokenPairRunner, enabled_controllers
from nodeattest_controller.controllers.bootstrap_token import CONTROLLER as BOOTSTRAP_TOKEN
from nodeattest_controller.controllers.bootstrap_token import BootstrapTokenReconciler
from nodeattest_controller.controllers.challenge_secret import ChallengeSecretReconciler
from nodeattest_controller.controllers.csr.controller import CSRController
from nodeattest_controller.controllers.csr.issuer import Issuer
from nodeattest_controller.controllers.csr.reconciler import Reconciler
from nodeattest_controller.controllers.csr.task import RequestLimiter
from nodeattest_controller.controllers.issuer import IssuerReconciler, publish_targets
from nodeattest_controller.controllers.node_attested.reconciler import NodeAttestedController
from nodeattest_controller.controllers.policy_status import PolicyStatusReconciler
from nodeattest_controller.controllers.signer_names import SignerNamesReconciler
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import PROVIDERS, Metrics
from nodeattest_controller.metrics_server import serve_health
from nodeattest_controller.runtime.challenge_keys import ChallengeKeys
from nodeattest_controller.runtime.cluster_controller import ClusterController, CSRObserver, ReconcilerDeps
from nodeattest_controller.runtime.cluster_manager import ClusterManager, Manager
from nodeattest_controller.runtime.guard import ClusterGuard, lease_annotations
from nodeattest_controller.runtime.management_cache import ManagementCache, cache_memory
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_controller.settings import COMPONENT, Settings
from nodeattest_controller.verification.controller_facts import ControllerFacts
from nodeattest_controller.verification.verifiers import VerificationRunner, VerifierRegistry
from nodeattest_kube.addresses import POD_IPS, AddressRules
from nodeattest_kube.client import ApiClient
from nodeattest_kube.elector import LeaseElector, LostLease
from nodeattest_kube.events import EventLimiter, EventRecorder
from nodeattest_kube.kubeconfig import in_cluster_endpoint, read_kubeconfig
from nodeattest_kube.periodic import call_every
from nodeattest_kube.store import MemoryPool
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.verifier_interface import ClusterAPISigner

_LOG: Final = logging.getLogger(__name__)
_NONE: Final[Mapping[ProviderName, ClusterAPISigner]] = MappingProxyType({})
_PERIOD: Final = 60.0
"""Seconds between two lines about the same error of the election."""
Connect = Callable[[bytes], ApiClient]
"""Makes a client for a workload cluster out of its kubeconfig."""
_PURPOSES: Final = {Purpose.CLIENT: "attestation", Purpose.SERVING: "serving"}
"""Which name of ``--controllers`` handles the requests of a purpose."""


def build_manager(
    settings: Settings,
    client: ApiClient,
    metrics: Metrics,
    *,
    connect: Connect,
    leads: Callable[[], bool],
    still_leads: Callable[[], Awaitable[bool]],
    signers: Mapping[ProviderName, ClusterAPISigner],
) -> Manager:
    """Build the parts; ``client`` is the management cluster's.

    ``leads``: whether this replica leads now. ``still_leads``: whether, by the Lease, nobody else has led up to now;
    raises ApiError.
    """
    management = ManagementCache(client, namespace=settings.watch_namespace, inventory=settings.inventory, now=_now)
    client.may_send = leads
    events = EventRecorder(client, component=COMPONENT, instance=settings.identity, now=_now)
    controller = f"{settings.namespace}/{settings.instance}"
    guard = ClusterGuard(management, leads, controller=controller, watch_filter=settings.watch_filter)
    deps = ReconcilerDeps(management=management, guard=guard, events=events, metrics=metrics, now=_now)
    verifiers = VerifierRegistry(settings.platforms, metrics, signers)
    rotation = timedelta(seconds=settings.challenge_key_rotation)
    keys = ChallengeKeys(client, namespace=settings.namespace, rotate_after=rotation, now=_now)
    configs, node_attested = KubeadmConfigs(client, management.caches), NodeAttestedController(deps)
    in_clusters: list[ClusterController] = []
    once: dict[str, Callable[[], Awaitable[None]]] = {"challenge-keys": keys.run}
    purposes = frozenset(purpose for purpose, name in _PURPOSES.items() if settings.enabled(name))
    if purposes:
        csr = _csr_controller(
            settings,
            deps,
            facts=partial(
                ControllerFacts,
                management=management,
                verifiers=verifiers,
                runner=VerificationRunner(settings.verification_timeout),
                kubeadm_configs=configs,
                challenge_keys=keys,
                provider_id_oid=settings.provider_id_oid,
                clock=_now,
            ),
            observers=[node_attested] if settings.enabled("standing") else [],
            has_provider=verifiers.has,
            purposes=purposes,
            still_leads=still_leads,
        )
        in_clusters.append(ClusterController(csr.name, csr.for_cluster))
        once |= {"csr": csr.run, **_of_management_cluster(settings, deps)}
    in_clusters += _reconcilers(settings, deps, configs, node_attested)
    clusters = ClusterManager(
        deps, in_clusters, connect=connect, clusters_per_namespace=settings.clusters_per_namespace
    )
    management.changes.subscribe_clusters(clusters.changed)
    closers = (verifiers.aclose, events.drain)
    return Manager(management=management, clusters=clusters, controllers=once, closers=closers)


def _of_management_cluster(settings: Settings, deps: ReconcilerDeps) -> dict[str, Callable[[], Awaitable[None]]]:
    """Build what writes the status of policies and Clusters."""
    changes = deps.management.changes
    policy_status = PolicyStatusReconciler(deps, settings.webhook_configuration if settings.has_webhook else None)
    changes.subscribe_clusters(policy_status.cluster_changed)
    changes.subscribe_policies(policy_status.changed)
    if not settings.enabled("attestation"):
        return {"policy-status": policy_status.run}
    signer_names = SignerNamesReconciler(deps, serves=settings.enabled("serving"))
    changes.subscribe_clusters(signer_names.cluster_changed)
    return {"policy-status": policy_status.run, "signer-names": signer_names.run}


def _reconcilers(
    settings: Settings, deps: ReconcilerDeps, configs: KubeadmConfigs, node_attested: NodeAttestedController
) -> list[ClusterController]:
    """Build the controllers of each cluster that are no queue of requests."""
    made: list[ClusterController] = []
    if settings.enabled("hardening"):
        made.append(ClusterController("hardening", partial(AutoApprovalReconciler, deps)))
    if settings.enabled("standing"):
        made.append(ClusterController("standing", node_attested.for_cluster))
    if settings.enabled("attestation"):
        made.append(ClusterController("challenge-secret", partial(ChallengeSecretReconciler, deps, configs)))
    pair = enabled_controllers(settings)
    if pair:
        made.append(ClusterController("bootstrap-signer and token-cleaner", partial(TokenPairRunner, deps, pair)))
    if settings.enabled(BOOTSTRAP_TOKEN):
        made.append(ClusterController(BOOTSTRAP_TOKEN, partial(BootstrapTokenReconciler, deps, configs)))
    targets = publish_targets(settings)
    if targets is not None:
        made.append(ClusterController("issuer", partial(IssuerReconciler, deps, targets)))
    return made


def _csr_controller(
    settings: Settings,
    deps: ReconcilerDeps,
    *,
    facts: Callable[..., ControllerFacts],
    observers: Sequence[CSRObserver],
    has_provider: Callable[[ProviderName], bool],
    purposes: frozenset[Purpose],
    still_leads: Callable[[], Awaitable[bool]],
) -> CSRController:
    issuer = Issuer(
        deps.management,
        events=deps.events,
        metrics=deps.metrics,
        observers=observers,
        still_leads=still_leads,
        certificate_lifetime=int(settings.certificate_lifetime),
        now=_now,
        clock=time.monotonic,
    )
    reconciler = Reconciler(
        deps.management,
        issuer,
        facts_of=lambda workload: facts(workload=workload),
        purposes=purposes,
        events=deps.events,
        metrics=deps.metrics,
        observers=observers,
        wait_limit=settings.wait_limit,
        limiter=RequestLimiter(time.monotonic),
        log=deps.log,
        random_unit=random.random,
        now=_now,
    )
    return CSRController(
        reconciler,
        has_provider=has_provider,
        metrics=deps.metrics,
        log=deps.log,
        now=_now,
        memory=MemoryPool(cache_memory() // 2),
        workers=settings.workers,
    )


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class _Controller:
    """Leads when it is elected, and knows how it is."""

    settings: Settings
    client: ApiClient
    metrics: Metrics
    addresses: AddressRules
    signers: Mapping[ProviderName, ClusterAPISigner]
    elector: LeaseElector | None
    """None: this replica leads without an election."""
    manager: Manager | None = None

    def health(self) -> str | None:
        """Say what is not ready; a replica that stands by is ready to take over."""
        if self.manager is not None:
            return self.manager.unhealthy()
        trouble = self.elector.last_error if self.elector else None
        return f"cannot take part in the election: {trouble}" if trouble else None

    async def lead(self) -> None:
        manager = self.manager = build_manager(
            self.settings,
            self.client,
            self.metrics,
            connect=self._connect,
            leads=lambda: self.elector is None or self.elector.is_leader,
            still_leads=self._still_leads,
            signers=self.signers,
        )
        self.metrics.leader(1)
        try:
            await manager.run(self.settings.identity)
        finally:
            self.metrics.leader(0)
            self.manager = None
            await manager.aclose()

    async def _still_leads(self) -> bool:
        return self.elector is None or await self.elector.still_leads()

    def _connect(self, kubeconfig: bytes) -> ApiClient:
        timeout = self.settings.request_timeout
        client = ApiClient.from_kubeconfig(kubeconfig, request_timeout=timeout, addresses=self.addresses)
        client.on_request = self.metrics.api_request
        return client


def _client(settings: Settings, environment: Mapping[str, str], metrics: Metrics) -> ApiClient:
    path = settings.kubeconfig
    endpoint = in_cluster_endpoint(environment) if path is None else read_kubeconfig(path)
    client = ApiClient(endpoint, request_timeout=settings.request_timeout)
    client.on_request = metrics.api_request
    return client


def _elector(settings: Settings, leases: ApiClient) -> LeaseElector:
    return LeaseElector(
        leases,
        namespace=settings.namespace,
        name=settings.instance,
        identity=settings.identity,
        lease_duration=settings.lease_duration,
        renew_deadline=settings.renew_deadline,
        retry_period=settings.retry_period,
        annotations=lease_annotations(settings.identity),
    )


async def run(
    settings: Settings, environment: Mapping[str, str], *, signers: Mapping[ProviderName, ClusterAPISigner] = _NONE
) -> int:
    """Run until cancelled or leadership is lost; returns the exit code.

    ``environment`` has the address of the pod's API server and the pod's own ones (``POD_IPS``); nothing else is read
    from it. ``signers`` are providers of the program that runs us (``library``).
    """
    addresses = settings.workload_addresses(environment.get(POD_IPS, ""))
    metrics, code = Metrics((*PROVIDERS, *signers)), 0
    async with (
        _client(settings, environment, metrics) as client,
        _client(settings, environment, metrics) as leases,
    ):
        elector = _elector(settings, leases) if settings.leader_elect else None
        controller = _Controller(
            settings=settings, client=client, metrics=metrics, addresses=addresses, signers=signers, elector=elector
        )
        try:
            # The webhook answers whether this replica may act or not.
            async with serve_webhook(settings, leases, metrics) as webhook:
                checks = {"caches": controller.health} | ({"webhook": webhook.unhealthy} if webhook else {})
                async with serve_health(settings, metrics, checks, leases):
                    await (controller.lead() if elector is None else _take_part(elector, controller, leases.server))
        except* LostLease as lost:
            error: BaseException = lost
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            _LOG.error("leadership lost; a fresh process takes part again", extra=fields(error=str(error)))
            code = 1
    return code


async def _take_part(elector: LeaseElector, controller: _Controller, server: str) -> None:
    """Lead when elected, and log what keeps this replica from taking part."""
    limiter = EventLimiter(time.monotonic)

    def log_error() -> None:
        error = elector.last_error
        if error is not None and limiter.allow(str(error), _PERIOD):
            remedy = "check --kubeconfig, the network, and the rights on leases"
            more = fields(server=server, error=str(error), remedy=remedy)
            _LOG.warning("cannot take part in the election", extra=more)

    logging_errors = asyncio.create_task(call_every(1.0, log_error))
    try:
        await elector.run(controller.lead)
    finally:
        logging_errors.cancel()
