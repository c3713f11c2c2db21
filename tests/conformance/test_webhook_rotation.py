"""Certificates that last seconds: a real API server goes on calling the webhook while CA after CA is replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from polling import until
from webhook_world import SECRET, WebhookWorld

from nodeattest_controller.controllers.bootstrap_config.admission_review import MAX_BODY
from nodeattest_controller.controllers.bootstrap_config.cert_rotator import CertRotator
from nodeattest_controller.controllers.bootstrap_config.certificates import Lifetimes
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader
from nodeattest_controller.controllers.bootstrap_config.handler import AdmissionHandler
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import RefusalReporter
from nodeattest_controller.controllers.bootstrap_config.renderer import PolicyRenderer
from nodeattest_controller.controllers.bootstrap_config.tls import DynamicCertificate
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.objects import items
from nodeattest_discovery.front.settings import FrontLimits
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import text_at
from nodeattest_sandbox.control_plane import free_ports, start_real
from nodeattest_serving.listener import Listener
from nodeattest_serving.settings import BindAddress

pytestmark = pytest.mark.conformance
LIFETIMES = Lifetimes(authority=timedelta(seconds=16), serving=timedelta(seconds=8), announcement=timedelta(seconds=3))
LIMIT = 120.0
"""Seconds, in which a CA is due many times; the test ends after the third."""


@pytest.fixture(scope="module")
def world(assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebhookWorld]:
    directory = tmp_path_factory.mktemp("webhook-rotation")
    with start_real(directory / "plane", assets, name="management") as plane:
        made = WebhookWorld(plane, directory, "v1beta2", free_ports(1)[0])
        made.install(capi_definitions)
        made.policy("enforced", "prod")
        made.cluster("prod", "prod")
        yield made


async def test_no_call_fails_while_certificates_and_cas_are_replaced(world: WebhookWorld) -> None:
    held = DynamicCertificate()
    bundles: set[str] = set()
    async with ApiClient.from_kubeconfig_file(world.plane.admin_kubeconfig) as client:
        keepers = [_keeper(client, held), _keeper(client, DynamicCertificate())]
        events = EventRecorder(client, component="test", instance="test", now=lambda: datetime.now(UTC))
        reporter = RefusalReporter(client, events=events, now=lambda: datetime.now(UTC), clock=time.monotonic)
        service = AdmissionHandler(
            FactReader(client, namespace=None, now=lambda: datetime.now(UTC)),
            PolicyRenderer(),
            Metrics(),
            clock=time.monotonic,
            reporter=reporter,
        )
        listener = Listener(
            service.handle, BindAddress("127.0.0.1", world.port), held.context, FrontLimits(), most_body=MAX_BODY
        )
        await listener.start()
        try:
            await asyncio.gather(*(keeper.reconcile() for keeper in keepers))
            await _called(client, world)
            end, calls = time.monotonic() + LIMIT, 0
            while (len(bundles) <= 2 or calls <= 50) and time.monotonic() < end:
                await asyncio.gather(*(keeper.reconcile() for keeper in keepers))
                bundles.add(text_at(world.client.get(SECRET), "data", "ca.crt"))
                for _ in range(5):
                    made = await _create(client, world)
                    assert any("nodeattest" in str(file["path"]) for file in items(made, "spec", "files"))
                    calls += 1
        finally:
            await listener.stop()
    assert len(bundles) > 2
    assert calls > 50


def _keeper(client: ApiClient, certificate: DynamicCertificate) -> CertRotator:
    return CertRotator(
        client,
        certificate,
        namespace="nodeattest-system",
        configuration="nodeattest-bootstrap-config",
        names=("127.0.0.1",),
        now=lambda: datetime.now(UTC),
        lifetimes=LIFETIMES,
    )


async def _create(client: ApiClient, world: WebhookWorld) -> JsonObject:
    body = cast("JsonObject", world.config("rotating", "prod"))
    return await client.create(world.path("kubeadmconfigs") + "?dryRun=All", body)


async def _called(client: ApiClient, world: WebhookWorld) -> None:
    """Wait for the first call: API servers learn of a configuration by a watch."""
    refusals: list[ApiError] = []

    async def passes() -> bool:
        try:
            await _create(client, world)
        except ApiError as error:
            refusals.append(error)
            return False
        return True

    await until(passes, "the first call", seconds=30, state=lambda: refusals[-1:])
