"""The oracle of the webhook: a stock kube-apiserver takes our JWTs through it, for cluster-info and nothing else."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from front_process import SECRETS, Cluster, FrontProcess
from lying_servers import Ca
from polling import eventually

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.jwt import mint
from nodeattest_discovery.token import BootstrapToken
from nodeattest_sandbox.control_plane import free_ports, start_real

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CSR = {
    "apiVersion": "certificates.k8s.io/v1",
    "kind": "CertificateSigningRequest",
    "metadata": {"name": "a"},
    "spec": {"request": "YQ==", "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["client auth"]},
}
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module", params=["v1", "v1beta1"])
def standing(
    request: pytest.FixtureRequest, assets: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[Cluster, FrontProcess]]:
    """A kube-apiserver that asks the webhook of a front that watches it."""
    directory = tmp_path_factory.mktemp("webhook")
    authority, (port,) = Ca(), free_ports(1)
    (directory / "webhook-ca.pem").write_bytes(authority.pem)
    cluster = {"server": f"https://127.0.0.1:{port}/tokenreview", "certificate-authority": "webhook-ca.pem"}
    document: dict[str, object] = {
        "kind": "Config",
        "clusters": [{"name": "webhook", "cluster": cluster}],
        "users": [{"name": "kube-apiserver", "user": {}}],
        "contexts": [{"name": "webhook", "context": {"cluster": "webhook", "user": "kube-apiserver"}}],
        "current-context": "webhook",
    }
    config = directory / "webhook.kubeconfig"
    config.write_text(json.dumps(document))
    flags = (
        f"--authentication-token-webhook-config-file={config}",
        f"--authentication-token-webhook-version={request.param}",
        "--authentication-token-webhook-cache-ttl=1s",
    )
    with start_real(directory / "plane", assets, name="webhook", flags=flags) as plane:
        made = Cluster(plane)
        made.grant("discovery-front")
        made.grant("discovery-reader")
        made.publish()
        with FrontProcess(made, directory / "front", authority, f"--webhook-bind-address=127.0.0.1:{port}") as front:
            yield made, front


def send(cluster: Cluster, bearer: str, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Send a request with a bearer token to the API server."""
    host = cluster.plane.server.removeprefix("https://")
    connection = http.client.HTTPSConnection(
        host, context=ssl.create_default_context(cafile=cluster.plane.ca_certificate), timeout=60
    )
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def taken(cluster: Cluster, token: BootstrapToken) -> str:
    """Return a JWT of a token as soon as it is taken; the webhook learns of a new token by its watch."""

    def ask() -> str | None:
        made = mint(token, time.time())
        return made if send(cluster, made, "GET", clusterinfo.PATH)[0] == 200 else None

    return eventually(ask, "an API server that takes the JWT")


def test_a_jwt_reads_cluster_info_and_nothing_else(standing: tuple[Cluster, FrontProcess]) -> None:
    cluster, _ = standing
    question = taken(cluster, cluster.token())
    code, body = send(cluster, question, "GET", clusterinfo.PATH)
    assert (code, json.loads(body)["data"]["kubeconfig"]) == (200, cluster.kubeconfig)
    for method, path, sent in (
        ("POST", CSRS, CSR),
        ("GET", CSRS, None),
        ("GET", SECRETS, None),
        ("GET", "/api/v1/nodes", None),
        ("GET", "/api/v1/namespaces/kube-public/configmaps", None),
        ("GET", "/api/v1/namespaces/kube-system/configmaps/kubeadm-config", None),
        ("DELETE", clusterinfo.PATH, None),
        ("POST", REVIEWS, {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": "x"}}),
    ):
        assert send(cluster, question, method, path, sent)[0] == 403, path
