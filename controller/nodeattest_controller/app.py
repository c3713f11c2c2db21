"""The controller's composition: builds the parts from ``Settings`` and runs them, leading or standing by."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from nodeattest_controller.addresses import AddressReview, LiveAddresses
from nodeattest_controller.ages import Ages
from nodeattest_controller.budget import Budgets
from nodeattest_controller.challenge_keys import ChallengeKeys
from nodeattest_controller.events import EventRecorder
from nodeattest_controller.fleet import Fleet
from nodeattest_controller.health import HealthServer
from nodeattest_controller.inventory import ClusterKey
from nodeattest_controller.issue import Issuer
from nodeattest_controller.judge import Judge
from nodeattest_controller.kubelet_serving import KubeletServing
from nodeattest_controller.logs import fields
from nodeattest_controller.management import Management
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.reconcile import Reconciler
from nodeattest_controller.settings import Settings
from nodeattest_controller.signing_halves import SigningHalves
from nodeattest_controller.verifying import Verifications
from nodeattest_kube.client import ApiClient
from nodeattest_kube.elector import LeaseElector, LostLease
from nodeattest_providers.names import Purpose

__all__ = ["run"]

_LOG: Final = logging.getLogger(__name__)
TROUBLE_PERIOD: Final = 60.0
"""Seconds."""
_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def _now() -> datetime:
    return datetime.now(UTC)


class _Controller:
    """What one term of leadership runs."""

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
        settings, metrics = self._settings, self._metrics
        self._standing_by = False
        metrics.leader(leads=True)
        keys = ChallengeKeys(
            self._client,
            namespace=settings.namespace,
            rotate_after=timedelta(seconds=settings.challenge_key_rotation),
            now=_now,
        )
        events = EventRecorder(self._client, now=_now, instance=settings.identity)
        fleet: Fleet

        def changed(cluster: ClusterKey, provider_ids: frozenset[str] | None) -> None:
            fleet.changed(cluster, provider_ids)

        management = Management(self._client, namespace=settings.watch_namespace, on_change=changed)
        halves = SigningHalves(settings.platforms, metrics)
        verifications = Verifications(settings.verification_timeout)
        live = LiveAddresses(management, signer=halves, verifications=verifications, now=_now)
        addresses = AddressReview(management, live)
        judge = Judge(
            management,
            keys,
            addresses=addresses,
            signer=halves,
            provider_id_oid=settings.provider_id_oid,
            verifications=verifications,
            now=_now,
        )
        issuer = Issuer(
            management,
            events=events,
            metrics=metrics,
            certificate_lifetime=int(settings.certificate_lifetime),
            now=_now,
        )
        reconciler = Reconciler(
            management,
            judge,
            issuer,
            kubelet_serving=KubeletServing(management, addresses=addresses, events=events, metrics=metrics),
            purposes=_purposes(settings),
            events=events,
            metrics=metrics,
            wait_limit=settings.wait_limit,
            ages=Ages(_now, time.monotonic),
            budgets=Budgets(time.monotonic),
            chance=random.random,
            now=_now,
        )
        share = max(1, settings.workers // 4)  # so that three hung clusters leave the rest a quarter
        connect = partial(_connect, settings=settings, metrics=metrics)
        fleet = Fleet(
            management,
            reconciler,
            metrics=metrics,
            connect=connect,
            now=_now,
            per_cluster=share,
            per_requester=max(1, share // 2),
        )
        self._management = management
        try:
            async with asyncio.TaskGroup() as tasks:
                ready = asyncio.Event()
                tasks.create_task(management.run(ready))
                await ready.wait()
                tasks.create_task(keys.run())
                _LOG.info("serving", extra=fields(identity=settings.identity))
                tasks.create_task(fleet.run(settings.workers))
        finally:
            metrics.leader(leads=False)
            self._standing_by = True
            await halves.aclose()
            await events.drain()


def _purposes(settings: Settings) -> frozenset[Purpose]:
    served = {Purpose.CLIENT: "attestation", Purpose.SERVING: "serving"}
    return frozenset(purpose for purpose, controller in served.items() if settings.enabled(controller))


def _count(metrics: Metrics) -> Callable[[str, int | None], None]:
    """Count requests by Kubernetes' verbs; a list or a watch is a ``get`` here."""
    return lambda method, status: metrics.api_request(_VERBS.get(method, method), status)


def _connect(kubeconfig: bytes, *, settings: Settings, metrics: Metrics) -> ApiClient:
    client = ApiClient.from_kubeconfig(kubeconfig, request_timeout=settings.request_timeout)
    client.on_request = _count(metrics)
    return client


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
