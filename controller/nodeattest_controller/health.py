"""Serves the controller's health and, on an address of its own, its metrics.

In plain HTTP (``nodeattest_serving.program``), the metrics also over HTTPS with authentication (``metrics_server``).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.metrics_server import SecureMetricsServer
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_serving.bounded_server import SettingsError
from nodeattest_serving.program import HealthCheck, HealthServer

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthPorts:
    """Where health and metrics are served; the chosen ports where 0 was asked for."""

    health: int
    metrics: int | None
    """None where they are not served."""


@asynccontextmanager
async def serve_health(
    settings: Settings, metrics: Metrics, checks: Mapping[str, HealthCheck], client: ApiClient
) -> AsyncGenerator[HealthPorts]:
    """Serve for the length of the block; raises ``SettingsError`` when an address or a certificate cannot be had.

    ``client`` is of the management cluster, and asks it who may read metrics that are secured.
    """
    async with AsyncExitStack() as stack:
        health = HealthServer(settings.health_address, checks)
        await _start(health, "healthBindAddress", stack)
        scraped = None
        if settings.metrics_address is not None:
            address = settings.metrics_address
            if settings.metrics_secure:
                scraped = SecureMetricsServer(settings, address, metrics, client)
            else:
                scraped = HealthServer(address, None, metrics)
            await _start(scraped, "metricsBindAddress", stack)
        ports = HealthPorts(health.port, None if scraped is None else scraped.port)
        log_fields = fields(health_port=ports.health, metrics_port=ports.metrics)
        _log.info("serving health and metrics", extra=log_fields)
        yield ports


async def _start(server: HealthServer | SecureMetricsServer, field: str, stack: AsyncExitStack) -> None:
    try:
        await server.start()
    except SettingsError as error:
        raise SettingsError(f"{field}: {error}") from None
    stack.push_async_callback(server.stop)
