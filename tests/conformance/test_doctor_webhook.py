"""What ``nodeattest doctor`` says of the webhook behind a real kube-apiserver, in both versions of Cluster API."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from cert_manager import ca_until
from webhook_world import CONFIGURATION, NAMESPACE, WebhookWorld

from nodeattest_cli.main import main
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.control_plane import free_ports, start_real

pytestmark = pytest.mark.conformance


@pytest.fixture(params=["v1beta1", "v1beta2"])
def world(
    request: pytest.FixtureRequest, assets: Path, capi_definitions: Path, tmp_path: Path
) -> Iterator[WebhookWorld]:
    with start_real(tmp_path / "plane", assets, name="management") as plane:
        made = WebhookWorld(plane, tmp_path, cast("str", request.param), free_ports(1)[0])
        made.install(capi_definitions)
        made.policy("enforced", "prod")
        made.cluster("prod", "prod")
        yield made


def webhook_findings(world: WebhookWorld, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Run it; return severity and what was found of the webhook and of the controller's rights."""
    capsys.readouterr()
    main(["doctor", "--kubeconfig", str(world.plane.admin_kubeconfig), "-n", NAMESPACE, "-o", "json"])
    document = cast("JsonMap", json.loads(capsys.readouterr().out))
    return {
        text_at(one, "id"): (text_at(one, "severity"), text_at(one, "found"))
        for one in maps_at(document, "findings")
        if text_at(one, "id").startswith("webhook-") or text_at(one, "id") == "management-rights"
    }


def test_the_webhook_renders_a_trial_that_leaves_no_trace_and_an_ended_ca_is_found(
    world: WebhookWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.replica("a") as replica:
        world.await_called()
        found = webhook_findings(world, capsys)
        assert {severity for severity, _ in found.values()} == {"ok"}, found
        assert found["webhook-answers"][1] == "it does"
        assert found["management-rights"][1].endswith(" rights")
        assert world.client.list(world.path("kubeadmconfigs")) == []
        assert replica.terminate() == 0
    gone = webhook_findings(world, capsys)
    assert {name for name, (severity, _) in gone.items() if severity != "ok"} == {"webhook-answers"}
    bundle = base64.b64encode(ca_until(datetime.now(UTC) - timedelta(days=35))).decode()
    change: JsonMap = {"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}
    world.client.patch(CONFIGURATION, [change], "json")
    found = webhook_findings(world, capsys)
    assert {name for name, (severity, _) in found.items() if severity == "error"} == {"webhook-answers", "webhook-ca"}
    assert "expired at" in found["webhook-ca"][1]
