"""Calls of the admission webhook, as an API server makes them."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.controllers import RunningController, start_controller
from bench.environment import BenchEnvironment
from bench.processes import cpu_seconds
from nodeattest_controller import manifests
from nodeattest_demo.world import CLUSTER, NAMESPACE, USER, create_all
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.child_process import wait
from nodeattest_sandbox.control_plane import free_ports, listens

PATH = "/mutate-bootstrap-config?timeout=5s"
RIGHTS = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


@dataclass
class AdmissionCalls:
    controller: RunningController
    connection: http.client.HTTPSConnection
    made: int = 0

    def make(self, count: int) -> tuple[list[float], float]:
        """Make calls; return the seconds of each, and the controller's CPU seconds of all."""
        walls: list[float] = []
        before = cpu_seconds(self.controller.pid)
        for _ in range(count):
            body = json.dumps(self._review()).encode()
            start = time.perf_counter()
            self.connection.request("POST", PATH, body, {"Content-Type": "application/json"})
            answer = json.loads(self.connection.getresponse().read())
            walls.append(time.perf_counter() - start)
            assert answer["response"]["allowed"], answer
            assert answer["response"].get("patch"), "nothing was rendered"
        return walls, cpu_seconds(self.controller.pid) - before

    def _review(self) -> JsonObject:
        self.made += 1
        name = f"{CLUSTER}-md-{self.made}"
        labels: JsonObject = {"cluster.x-k8s.io/cluster-name": CLUSTER}
        made: JsonObject = {
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1",
            "kind": "KubeadmConfig",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "spec": {
                "joinConfiguration": {
                    "nodeRegistration": {"kubeletExtraArgs": {"provider-id": "metal://{{ ds.meta_data.instance_id }}"}}
                }
            },
        }
        group = {"group": "bootstrap.cluster.x-k8s.io", "version": "v1beta1"}
        return {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": f"call-{self.made}",
                "kind": {**group, "kind": "KubeadmConfig"},
                "resource": {**group, "resource": "kubeadmconfigs"},
                "name": name,
                "namespace": NAMESPACE,
                "operation": "CREATE",
                "userInfo": {"username": "system:serviceaccount:capi:manager"},
                "object": made,
                "oldObject": None,
                "dryRun": False,
                "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            },
        }


@contextmanager
def admission_calls(env: BenchEnvironment) -> Generator[AdmissionCalls]:
    """Start a controller with the webhook, and connect to it."""
    (port,) = free_ports(1)
    client = env.world.management.client()
    shipped = manifests.objects("webhook")
    create_all(client, [one for one in shipped if one["kind"] in RIGHTS], user=USER)
    for one in shipped:
        if one["kind"] in {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}:
            plural = f"{str(one['kind']).lower()}s"
            # Nobody is sent there: what is measured is asked by ourselves.
            one["webhooks"] = [{**each, "failurePolicy": "Ignore"} for each in _webhooks(one)]
            client.create(f"/apis/admissionregistration.k8s.io/v1/{plural}", one)
    config = {"webhookBindAddress": f"127.0.0.1:{port}", "webhookHosts": ["127.0.0.1"]}
    controller = start_controller(env.world, env.directory / "controller", env.tools, config)
    try:
        wait(controller.process, lambda: listens(port))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # it is our own, on loopback
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=tls)
        yield AdmissionCalls(controller, connection)
    finally:
        controller.stop()


def _webhooks(configuration: JsonObject) -> list[JsonObject]:
    found = configuration["webhooks"]
    assert isinstance(found, list)
    return [one for one in found if isinstance(one, dict)]
