"""The controller's process: waits for leadership, runs the manager, and ends when it may not act any more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from nodeattest_controller.build import build_manager
from nodeattest_controller.controllers.bootstrap_config.server import WebhookServer
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import PROVIDERS, Metrics
from nodeattest_controller.metrics_server import serve_health
from nodeattest_controller.model.lease_annotations import lease_annotations
from nodeattest_controller.runtime.cluster_manager import Manager
from nodeattest_controller.settings import Settings
from nodeattest_kube.addresses import POD_IPS, AddressRules
from nodeattest_kube.client import ApiClient
from nodeattest_kube.elector import LeaseElector, LostLease
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.periodic import call_every
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.verifier_interface import ClusterAPISigner

_LOG: Final = logging.getLogger(__name__)
_NONE: Final[Mapping[ProviderName, ClusterAPISigner]] = MappingProxyType({})
_PERIOD: Final = 60.0
"""Seconds between two lines about the same error of the election."""


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
        """Run all controllers until cancelled."""
        manager = self.manager = build_manager(
            self.settings,
            self.client,
            self.metrics,
            connect=self._connect,
            may_act=lambda: self.elector is None or self.elector.is_leader,
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
    if settings.kubeconfig is None:
        client = ApiClient.in_cluster(environment, request_timeout=settings.request_timeout)
    else:
        client = ApiClient.from_kubeconfig_file(settings.kubeconfig, request_timeout=settings.request_timeout)
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
        webhook = WebhookServer(settings, leases, metrics)  # it answers whether this replica may act or not
        checks = {"caches": controller.health} | ({"webhook": webhook.unhealthy} if webhook.is_on else {})
        async with webhook, serve_health(settings, metrics, checks, leases):
            try:
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
