"""Discovery by file beside kubeadm: the same files, the same servers; where we differ, we refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from discovery_cases import TOKEN
from discovery_files import ANY_SERVER, CA, EVIL, Cluster, Config, published
from kubernetes_assets import join_configuration
from lying_servers import LyingServer, Reply, config_map, status

from nodeattest_discovery import clusterinfo
from nodeattest_providers.errors import Reason
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import kubeadm


@dataclass(frozen=True, slots=True)
class Case:
    """A file, what its server says of cluster-info, and what becomes of it."""

    file: Callable[[Cluster], Config]
    says: Callable[[LyingServer], Reply]
    kubeadm_joins: bool
    ours: Reason | None


def sound(cluster: Cluster) -> Config:
    return cluster.config()


def foreign_ca(cluster: Cluster) -> Config:
    return cluster.config(ca=EVIL.pem)


def named(config: Config) -> Config:
    """Name the cluster: kubeadm wants it in a context."""
    config["clusters"][0]["name"] = config["contexts"][0]["context"]["cluster"] = "main"
    return config


def unverified(cluster: Cluster) -> Config:
    config = named(cluster.config(ca=None, user={}))
    config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    return config


def with_a_token(cluster: Cluster) -> Config:
    return named(cluster.config(user={"token": TOKEN.reveal()}))


def agreeing(server: LyingServer) -> Reply:
    return published(server.url, CA)


def closed(_: LyingServer) -> Reply:
    return status(403, "Forbidden")


CASES = {
    "cluster-info agrees": Case(sound, agreeing, kubeadm_joins=True, ours=None),
    "cluster-info is closed": Case(sound, closed, kubeadm_joins=True, ours=None),
    "nobody anonymous is let in": Case(
        sound, lambda _: status(401, "Unauthorized"), kubeadm_joins=False, ours=Reason.API_UNAVAILABLE
    ),
    "there is no cluster-info": Case(
        sound, lambda _: status(404, "NotFound"), kubeadm_joins=False, ours=Reason.API_UNAVAILABLE
    ),
    "cluster-info is elsewhere": Case(sound, lambda _: published(ANY_SERVER, CA), kubeadm_joins=True, ours=None),
    "cluster-info is empty": Case(sound, lambda _: config_map({}), kubeadm_joins=True, ours=None),
    "a foreign CA": Case(foreign_ca, agreeing, kubeadm_joins=False, ours=Reason.SERVER_NOT_TRUSTED),
    "no verification": Case(unverified, closed, kubeadm_joins=False, ours=Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a token in the file": Case(with_a_token, agreeing, kubeadm_joins=True, ours=Reason.DISCOVERY_FILE_NOT_ALLOWED),
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


def prepared(cluster: Cluster, case: Case) -> str:
    """Write the file, and let the server speak."""
    reply = case.says(cluster.server)

    def says(number: int) -> Reply:
        info = cluster.server.seen[number].path.startswith(clusterinfo.PATH)
        return reply if info else status(404, "NotFound")

    cluster.server.says = says
    return cluster.write(case.file(cluster))


@pytest.mark.parametrize("name", CASES)
def test_our_verdict(cluster: Cluster, name: str) -> None:
    source = prepared(cluster, CASES[name])
    reason = CASES[name].ours
    if reason is None:
        assert cluster.find_at(source).info.server == cluster.server.url
    else:
        assert cluster.reason_at(source) == reason


@pytest.mark.conformance
@pytest.mark.parametrize("name", CASES)
def test_kubeadms_verdict(cluster: Cluster, name: str, assets: Path, tmp_path: Path) -> None:
    file: JsonMap = {"kubeConfigPath": prepared(cluster, CASES[name])}
    discovery: JsonMap = {"file": file, "tlsBootstrapToken": TOKEN.reveal()}
    (tmp_path / "join.yaml").write_text(join_configuration(discovery, seconds=3))
    words = ["join", "phase", "preflight", "--config", str(tmp_path / "join.yaml"), "--ignore-preflight-errors=all"]
    done = kubeadm(assets, *words)
    asked = [seen for seen in cluster.server.seen if "/kubeadm-config" in seen.path]
    assert bool(asked) == CASES[name].kubeadm_joins, done.stderr
