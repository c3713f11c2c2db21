"""Whose certificate passes for an API server's: the cluster's CA signs others', too, for kubelets and by name only."""

from __future__ import annotations

from functools import partial

from certified import LOOPBACK, certified
from cryptography import x509
from lying_servers import Ca, LyingServer, Reply, VirtualTime, config_map

from nodeattest_authenticator.formats.endpoint import Cluster
from nodeattest_authenticator.transport.api_client import probe
from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node import client, https
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_discovery.node.refresh import refresh
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Reason, Unavailable

REAL, EVIL = Ca(), Ca("evil")
of_real = partial(certified, ca=REAL)


def outcome(certificate: bytes, host: str = "127.0.0.1", name: str | None = None) -> Reason | None:
    with LyingServer(certificate, Reply(body=b"{}")) as server:
        deadline = VirtualTime().environment().deadline()
        try:
            trust = https.Verified(ca_pem=REAL.pem, server_name=name)
            client.get(Endpoint(host, server.port), "/", trust, deadline, headers={})
        except Unavailable as unavailable:
            assert not server.seen
            return unavailable.reason
    return None


def test_an_api_servers_certificate_passes() -> None:
    assert outcome(of_real("kube-apiserver", LOOPBACK)) is None
    assert outcome(of_real("kube-apiserver", x509.DNSName("localhost")), "localhost") is None
    assert outcome(of_real("kube-apiserver", x509.DNSName("api.example")), name="api.example") is None
    assert outcome(of_real("k3s", LOOPBACK, group="k3s")) is None


def agents(certificate: bytes, ca: Ca, host: str) -> bool:
    """Tell whether the agent's own requests would go there."""
    with LyingServer(certificate, Reply()) as server:
        cluster = Cluster(endpoint=Endpoint("127.0.0.1", server.port, ""), tls_server_name=host, ca_pem=ca.pem)
        return probe(cluster, Deadline.after(Clock(), 10)) is None


def test_the_agent_trusts_whom_discovery_trusts() -> None:
    intermediate = Ca("kubernetes", above=Ca("root"))
    assert agents(of_real("kube-apiserver", LOOPBACK), REAL, "127.0.0.1")
    assert agents(intermediate.server(), intermediate, "127.0.0.1")
    assert not agents(of_real("localhost", LOOPBACK), REAL, "localhost")
    assert not agents(certified("x", LOOPBACK, ca=EVIL), REAL, "127.0.0.1")


def test_a_server_moves_under_the_new_ca_once_servers_show_it() -> None:
    new = Ca("new")
    with LyingServer(new.server(), Reply()) as here, LyingServer(new.server(), Reply()) as there:
        text = clusterinfo.build(there.url, new.pem)
        here.says = there.says = config_map({"kubeconfig": text})
        found = refresh([here.url], REAL.pem + new.pem, "known", VirtualTime().environment())
        assert found is not None
        assert found.info.server == there.url
