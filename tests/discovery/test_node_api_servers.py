"""The node half against API servers: the sandbox's and a real one, signed by us and by kube-controller-manager."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from lying_servers import Ca
from token_world import TokenCluster

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.by_token import by_token
from nodeattest_discovery.node.client import Environment
from nodeattest_discovery.node.clock import Clock
from nodeattest_discovery.node.refresh import refresh
from nodeattest_discovery.pins import pin_of
from nodeattest_providers.errors import Denied, Reason
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane, controller_manager

AROUND: Final = Environment(limit=20.0)
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public"
_NAME: Final = "tests-read-cluster-info"


class Readable(TokenCluster):
    """A cluster whose cluster-info anonymous requests may read."""

    def allow(self) -> None:
        rule: JsonMap = {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["cluster-info"],
            "verbs": ["get"],
        }
        self.admin.create(f"{_RBAC}/roles", {"metadata": {"name": _NAME}, "rules": [rule]})
        group = "rbac.authorization.k8s.io"
        binding: JsonMap = {
            "metadata": {"name": _NAME},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": _NAME},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "system:anonymous"}],
        }
        self.admin.create(f"{_RBAC}/rolebindings", binding)

    def forbid(self) -> None:
        for kind in ("rolebindings", "roles"):
            with suppress(ApiRefusal):
                self.admin.delete(f"{_RBAC}/{kind}/{_NAME}")

    def clean(self) -> None:
        self.forbid()
        super().clean()

    @property
    def text(self) -> str:
        return clusterinfo.build(self.plane.server, self.plane.ca_certificate.read_bytes())

    @property
    def ca(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.plane.ca_certificate.read_bytes())

    @property
    def endpoint(self) -> str:
        return self.plane.server.removeprefix("https://")


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Readable]:
    made = Readable(control_plane)
    made.clean()
    yield made
    made.clean()


def test_a_refresh_follows_a_rotation_and_refuses_a_replacement(cluster: Readable) -> None:
    held, new = cluster.plane.ca_certificate.read_bytes(), Ca("new")
    cluster.publish({"kubeconfig": cluster.text})
    servers = [cluster.plane.server]
    told: list[str] = []
    assert refresh(servers, held, cluster.text, Environment(log=told.append)) is None
    assert "403" in told[0]
    cluster.allow()
    assert refresh(servers, held, cluster.text, AROUND) is None
    both = clusterinfo.build(cluster.plane.server, held + new.pem)
    cluster.edit(kubeconfig=both)
    found = refresh(servers, held, cluster.text, AROUND)
    assert found is not None
    assert found.ca_pem == held + new.pem
    cluster.edit(kubeconfig=clusterinfo.build(cluster.plane.server, new.pem))
    with pytest.raises(Denied) as caught:
        refresh(servers, held, cluster.text, AROUND)
    assert caught.value.reason == Reason.CLUSTER_INFO_CHANGED


@pytest.mark.conformance
def test_a_cluster_is_found_by_a_token_that_kube_controller_manager_signed_with(
    real_control_plane: ControlPlane, assets: Path
) -> None:
    cluster = Readable(real_control_plane)
    with ExitStack() as stack:
        stack.callback(cluster.clean)
        token = cluster.add("nod004")
        cluster.allow()
        cluster.publish({"kubeconfig": cluster.text})
        signer = [True]

        def start(_: float) -> None:
            """Let the signer come only when the node already waits for it."""
            if signer:
                signer.clear()
                stack.enter_context(controller_manager(real_control_plane, assets, ["bootstrapsigner"]))
            time.sleep(0.05)

        environment = Environment(limit=60, clock=Clock(sleep=start))
        found = by_token([cluster.endpoint], token, frozenset({pin_of(cluster.ca)}), environment)
        assert found.kubeconfig == cluster.text
        assert not signer
