"""The discovery front as a process, before a sandbox and a real control plane, with the rights of its manifests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from front_process import SECRETS, Cluster, FrontProcess, quick
from lying_servers import Ca
from polling import eventually

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.by_front import by_front
from nodeattest_discovery.node.client import Found
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Unavailable
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import StartControlPlane


@pytest.fixture(scope="module")
def cluster(start_control_plane: StartControlPlane) -> Iterator[Cluster]:
    with start_control_plane("discovery-front") as plane:
        made = Cluster(plane)
        made.grant("discovery-front")
        made.publish()
        yield made


@pytest.fixture
def front(cluster: Cluster, tmp_path: Path) -> Generator[FrontProcess]:
    with FrontProcess(cluster, tmp_path / "front", Ca()) as running:
        yield running


def find(front: FrontProcess, cluster: Cluster, token: BootstrapToken) -> Found | None:
    """Ask a front once; None where it does not answer this token."""
    try:
        return by_front(front.endpoint, token, cluster.pins, quick())
    except Unavailable:
        return None


def test_a_token_finds_the_cluster_soon_after_it_was_made_and_not_after_it_is_gone(
    cluster: Cluster, front: FrontProcess
) -> None:
    token = cluster.token()
    found = eventually(lambda: find(front, cluster, token), "the cluster")
    assert found.kubeconfig == cluster.kubeconfig
    assert found.ca_pem == cluster.plane.ca_certificate.read_bytes()
    assert found.asked == cluster.plane.server
    assert find(front, cluster, BootstrapToken(token.id, "0" * 16)) is None
    cluster.forget(token)
    eventually(lambda: find(front, cluster, token) is None, "the end of a token")
    eventually(lambda: f"token {token.id}: 200" in front.log.read_text(), "the log line")
    log = front.log.read_text()
    assert "eyJ" not in log
    assert token.secret not in log
    assert {line["level"] for line in front.logged()} == {"info"}


def test_the_rights_of_the_manifest_are_for_these_reads_only(cluster: Cluster) -> None:
    user = "system:serviceaccount:nodeattest-discovery:discovery-front"
    client = cluster.plane.client(cluster.plane.client_kubeconfig(user))
    client.get(SECRETS)
    for method, path in (
        ("GET", "/api/v1/namespaces/default/secrets"),
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/kube-public/configmaps"),
        ("DELETE", clusterinfo.PATH),
        ("GET", "/api/v1/nodes"),
        ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    ):
        with pytest.raises(ApiRefusal, match="403"):
            client.send(method, path)
