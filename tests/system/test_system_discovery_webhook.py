"""The oracle of the webhook: a stock kube-apiserver takes our JWTs through it, for cluster-info and nothing else."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from front_process import SECRETS, Cluster, FrontProcess, quick
from lying_servers import Ca
from polling import eventually

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.jwt import mint
from nodeattest_discovery.node.by_front import by_front
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Reason, Unavailable
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


def test_the_api_server_knows_its_holder_as_nobody_of_kubernetes_own(
    standing: tuple[Cluster, FrontProcess],
) -> None:
    cluster, _ = standing
    token = cluster.token()
    question = taken(cluster, token)
    review = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": question}}
    admin = cluster.admin.create(REVIEWS, review)  # pyright: ignore[reportArgumentType] - plain JSON
    assert admin["status"] == {
        "authenticated": True,
        "user": {
            "username": f"nodeattest:discovery:{token.id}",
            "groups": ["nodeattest:discovery", "system:authenticated"],
        },
        "audiences": [cluster.plane.server],
    }


def test_what_has_expired_or_is_not_the_tokens_is_not_taken(standing: tuple[Cluster, FrontProcess]) -> None:
    cluster, _ = standing
    token = cluster.token()
    taken(cluster, token)
    short = mint(token, time.time() - 40)
    assert send(cluster, short, "GET", clusterinfo.PATH)[0] == 200
    eventually(lambda: send(cluster, short, "GET", clusterinfo.PATH)[0] == 401, "the end of a JWT")
    forged = mint(BootstrapToken(token.id, "0" * 16), time.time())
    unknown = mint(BootstrapToken("zzzzzz", "0" * 16), time.time())
    for bad in (forged, unknown, mint(token, time.time() + 3600), "x"):
        assert send(cluster, bad, "GET", clusterinfo.PATH)[0] == 401


def test_an_api_server_does_not_sign_so_a_node_goes_on_to_the_servers_themselves(
    standing: tuple[Cluster, FrontProcess],
) -> None:
    cluster, front = standing
    token = cluster.token()
    taken(cluster, token)
    with pytest.raises(Unavailable, match=Reason.CLUSTER_INFO_UNSIGNED):
        by_front(cluster.plane.server, token, cluster.pins, quick())
    assert by_front(front.endpoint, token, cluster.pins, quick()).kubeconfig == cluster.kubeconfig
