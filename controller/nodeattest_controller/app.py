"""The controller's process: waits for leadership, runs the manager, and ends when it may not act any more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from nodeattest_controller.build import build_manager
from nodeattest_controller.controllers.bootstrap_config.server import WebhookServer
from nodeattest_controller.health import serve_health
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import PROVIDERS, Metrics
from nodeattest_controller.model.lease_annotations import lease_annotations
from nodeattest_controller.runtime.manager import Manager
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


class _Controller:
    """Leads when it is elected, and knows how it is."""

    def __init__(
        self,
        settings: Settings,
        client: ApiClient,
        metrics: Metrics,
        *,
        addresses: AddressRules,
        signers: Mapping[ProviderName, ClusterAPISigner],
    ) -> None:
        self._settings = settings
        self._client = client
        self._metrics = metrics
        self._addresses = addresses
        self._signers = signers
        self._manager: Manager | None = None
        self.elector: LeaseElector | None = None

    def health(self) -> str | None:
        """Say what is not ready; a replica that stands by is ready to take over."""
        if self._manager is None:
            trouble = self.elector.last_error if self.elector else None
            return f"cannot take part in the election: {trouble}" if trouble else None
        return self._manager.unhealthy()

    async def lead(self) -> None:
        """Run all controllers until cancelled."""
        manager = build_manager(
            self._settings,
            self._client,
            self._metrics,
            connect=self._connect,
            may_act=self._may_act,
            still_leads=self._still_leads,
            signers=self._signers,
        )
        self._manager = manager
        self._metrics.leader(1)
        try:
            await manager.run(self._settings.identity)
        finally:
            self._metrics.leader(0)
            self._manager = None
            await manager.aclose()

    def _may_act(self) -> bool:
        return self.elector is None or self.elector.is_leader

    async def _still_leads(self) -> bool:
        return self.elector is None or await self.elector.still_leads()

    def _connect(self, kubeconfig: bytes) -> ApiClient:
        client = ApiClient.from_kubeconfig(
            kubeconfig,
            request_timeout=self._settings.request_timeout,
            addresses=self._addresses,
        )
        client.on_request = self._metrics.api_request
        return client


def _client(settings: Settings, environment: Mapping[str, str]) -> ApiClient:
    if settings.kubeconfig is None:
        return ApiClient.in_cluster(environment, request_timeout=settings.request_timeout)
    return ApiClient.from_kubeconfig_file(settings.kubeconfig, request_timeout=settings.request_timeout)


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
        _client(settings, environment) as client,
        _client(settings, environment) as leases,
    ):
        client.on_request = leases.on_request = metrics.api_request
        controller = _Controller(settings, client, metrics, addresses=addresses, signers=signers)
        webhook = WebhookServer(settings, leases, metrics)  # it answers whether this replica may act or not
        checks = {"caches": controller.health} | ({"webhook": webhook.unhealthy} if webhook.is_on else {})
        async with webhook, serve_health(settings, metrics, checks, leases):
            try:
                await (_elected(settings, controller, leases) if settings.leader_elect else controller.lead())
            except* LostLease as lost:
                _LOG.error("leadership lost; a fresh process takes part again", extra=fields(error=_first_of(lost)))
                code = 1
    return code


async def _elected(settings: Settings, controller: _Controller, leases: ApiClient) -> None:
    """Lead when elected."""
    elector = controller.elector = LeaseElector(
        leases,
        namespace=settings.namespace,
        name=settings.instance,
        identity=settings.identity,
        lease_duration=settings.lease_duration,
        renew_deadline=settings.renew_deadline,
        retry_period=settings.retry_period,
        annotations=lease_annotations(settings.identity),
    )
    limiter = EventLimiter(time.monotonic)

    def log_error() -> None:
        error = elector.last_error
        if error is not None and limiter.allow(str(error), _PERIOD):
            remedy = "check --kubeconfig, the network, and the rights on leases"
            more = fields(server=leases.server, error=str(error), remedy=remedy)
            _LOG.warning("cannot take part in the election", extra=more)

    logging_errors = asyncio.create_task(call_every(1.0, log_error))
    try:
        await elector.run(controller.lead)
    finally:
        logging_errors.cancel()


def _first_of(group: BaseExceptionGroup[LostLease]) -> str:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return str(first)
