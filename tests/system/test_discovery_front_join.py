"""A cluster that shows cluster-info to nobody is joined through its front, every part a process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress

import pytest
from front_process import ACCOUNT, SECRETS, Cluster, FrontProcess, quick
from lying_servers import Ca
from polling import eventually
from test_discovery_system import discover, operate
from world import World

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.by_token import by_front
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Unavailable
from nodeattest_sandbox.apiserver.jsonvalue import text_at
from nodeattest_sandbox.client import ApiRefusal

ANONYMOUS = (
    "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public/rolebindings/kubeadm:bootstrap-signer-clusterinfo"
)


@pytest.fixture(scope="module")
def hidden(world: World, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[World, Cluster, FrontProcess]]:
    """A world whose workload cluster tells nobody of itself, but for its front."""
    world.set_policy(authorizedAttestors=["insecure"])
    with suppress(ApiRefusal):
        world.workload_admin.send("DELETE", ANONYMOUS)
    operate(world, "cluster-info", "publish", "--no-anonymous")
    cluster = Cluster(world.workload)
    cluster.grant("discovery-front")
    try:
        with (
            world.controller(log="front-join.log") as running,
            FrontProcess(cluster, tmp_path_factory.mktemp("front"), Ca("nobody's")) as front,
        ):
            world.await_service(running)
            yield world, cluster, front
    finally:
        world.workload_admin.send("DELETE", clusterinfo.PATH)


def known(cluster: Cluster, front: FrontProcess) -> BootstrapToken:
    """Make a token, and wait until front and API server know it."""
    made = cluster.token()

    def answers() -> bool:
        try:
            return bool(by_front(front.endpoint, made, cluster.pins, quick()))
        except Unavailable:
            return False

    eventually(answers, "a front that knows the token")
    cluster.plane.await_token(made.reveal())
    return made


def test_a_machine_joins_a_cluster_that_only_its_front_tells_of(hidden: tuple[World, Cluster, FrontProcess]) -> None:
    world, cluster, front = hidden
    made = known(cluster, front)
    world.machine("fronted-0")
    joined = discover(world, world.agent("fronted-0", "insecure"), made.reveal(), "--discovery-front", front.endpoint)
    assert joined.returncode == 0, joined.stderr
    assert "only the pinned CAs" in joined.stderr
    assert text_at(world.ledger("fronted-0"), "spec", "nodeName") == "fronted-0"
    assert made.secret not in front.log.read_text()


def test_the_rights_of_the_manifest_are_for_these_reads_only(hidden: tuple[World, Cluster, FrontProcess]) -> None:
    plane = hidden[1].plane
    client = plane.client(plane.client_kubeconfig(ACCOUNT))
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
