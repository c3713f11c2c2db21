"""The controller's process: stands by or leads, tells how it is, and ends when leadership is lost (``term`` acts)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from nodeattest_controller.clusters.management import Management
from nodeattest_controller.health import HealthServer
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import Settings
from nodeattest_controller.term import compose
from nodeattest_kube.client import ApiClient
from nodeattest_kube.elector import LeaseElector, LostLease

__all__ = ["run"]

_LOG: Final = logging.getLogger(__name__)
TROUBLE_PERIOD: Final = 60.0
"""Seconds."""
_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class _Controller:
    """Leads when it is elected, and knows how it is."""

    def __init__(self, settings: Settings, client: ApiClient, metrics: Metrics) -> None:
        self._settings = settings
        self._client = client
        self._metrics = metrics
        self._standing_by = True
        self._management: Management | None = None
        self.elector: LeaseElector | None = None

    def health(self) -> str | None:
        """Say what is not ready; a replica that stands by is ready to take over."""
        if self._standing_by:
            trouble = self.elector.last_error if self.elector else None
            return f"cannot take part in the election: {trouble}" if trouble else None
        return self._management.unhealthy() if self._management else "not started"

    async def lead(self) -> None:
        """Run all controllers until cancelled."""
        term = compose(self._settings, self._client, self._metrics, connect=self._connect)
        self._management, self._standing_by = term.management, False
        self._metrics.leader(leads=True)
        try:
            await term.run(self._settings)
        finally:
            self._metrics.leader(leads=False)
            self._standing_by = True
            await term.aclose()

    def _connect(self, kubeconfig: bytes) -> ApiClient:
        client = ApiClient.from_kubeconfig(kubeconfig, request_timeout=self._settings.request_timeout)
        client.on_request = _count(self._metrics)
        return client


def _count(metrics: Metrics) -> Callable[[str, int | None], None]:
    """Count requests by Kubernetes' verbs; a list or a watch is a ``get`` here."""
    return lambda method, status: metrics.api_request(_VERBS.get(method, method), status)


def _client(settings: Settings, environment: Mapping[str, str]) -> ApiClient:
    if settings.kubeconfig is None:
        return ApiClient.in_cluster(environment, request_timeout=settings.request_timeout)
    return ApiClient.from_kubeconfig_file(settings.kubeconfig, request_timeout=settings.request_timeout)


async def _tell_of_trouble(elector: LeaseElector, server: str) -> None:
    """Log what keeps this replica from the election: at once, and then once a minute while it lasts."""
    told, last = 0.0, ""
    while True:
        trouble = str(elector.last_error) if elector.last_error is not None else ""
        if trouble and (trouble != last or time.monotonic() - told > TROUBLE_PERIOD):
            remedy = "check --kubeconfig, the network, and the rights on leases"
            _LOG.warning("cannot take part in the election", extra=fields(server=server, error=trouble, remedy=remedy))
            told = time.monotonic()
        last = trouble
        await asyncio.sleep(1.0)


async def run(settings: Settings, environment: Mapping[str, str]) -> int:
    """Run until cancelled or leadership is lost; returns the exit code.

    ``environment`` tells a pod where its API server is; nothing else is read from it.
    """
    metrics = Metrics()
    async with _client(settings, environment) as client:
        client.on_request = _count(metrics)
        controller = _Controller(settings, client, metrics)
        async with HealthServer(settings, metrics, {"caches": controller.health}):
            if not settings.leader_elect:
                await controller.lead()
                return 0
            elector = LeaseElector(
                client,
                namespace=settings.namespace,
                name=settings.lease_name,
                identity=settings.identity,
                lease_duration=settings.lease_duration,
                renew_deadline=settings.renew_deadline,
                retry_period=settings.retry_period,
            )
            controller.elector = elector
            telling = asyncio.create_task(_tell_of_trouble(elector, client.server))
            try:
                await elector.run(controller.lead)
            except LostLease as lost:
                _LOG.error("leadership lost; a fresh process takes part again", extra=fields(error=str(lost)))
                return 1
            finally:
                telling.cancel()
    return 0
