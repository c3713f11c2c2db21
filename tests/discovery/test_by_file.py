"""Discovery by file: how a file is reached, what counts in it, and what the server that it names must prove."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from discovery_files import ANY_SERVER, CA, EVIL, PUBLIC, Cluster, published, text_of
from lying_servers import CLUSTER_INFO, QUIET, Ca, Reply, config_map, script, status

from nodeattest_discovery import clusterinfo
from nodeattest_providers.errors import Reason, Unavailable


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


# What a file may be


def test_a_file_that_kubespray_copies_needs_no_more_than_a_certificate_that_passes(cluster: Cluster) -> None:
    # It is the text of cluster-info, for clusters whose API servers let no anonymous reader in.
    content = clusterinfo.build(cluster.server.url, CA.pem)
    found = cluster.find(content)
    assert (found.kubeconfig, found.info.server, found.ca_pem) == (content, cluster.server.url, CA.pem)
    assert found.asked == cluster.server.url
    assert "does not let us read" in found.notes[0]
    assert cluster.server.paths == [CLUSTER_INFO]
    assert cluster.server.headers <= QUIET


def test_cluster_info_changes_neither_server_nor_cas_of_the_file(cluster: Cluster) -> None:
    cluster.server.says = published(ANY_SERVER, EVIL)
    found = cluster.find(cluster.config())
    assert (found.info.server, found.ca_pem) == (cluster.server.url, CA.pem)
    assert ANY_SERVER in found.notes[0]


@pytest.mark.parametrize("data", [{}, {"kubeconfig": "users: [{}]"}])
def test_unsound_cluster_info_is_noted_and_not_used(cluster: Cluster, data: dict[str, str]) -> None:
    cluster.server.says = config_map(data)
    found = cluster.find(cluster.config())
    assert found.ca_pem == CA.pem
    assert "not used" in found.notes[0]


def test_a_file_without_ca_gets_it_from_a_server_that_this_machine_trusts(cluster: Cluster) -> None:
    server = cluster.stand(PUBLIC, status(404))
    server.says = published(server.url, CA)
    found = cluster.find(cluster.config(server=server.url, ca=None))
    assert found.ca_pem == CA.pem


def test_a_file_without_ca_gets_none_from_another_server(cluster: Cluster) -> None:
    cluster.server.says = published(cluster.server.url, CA)
    with pytest.raises(
        Unavailable, match="no CA, so this machine's own root certificates were used: put the"
    ) as caught:
        cluster.find(cluster.config(ca=None))
    assert caught.value.reason is Reason.SERVER_NOT_TRUSTED


def test_a_file_does_not_come_from_a_server_that_this_machine_does_not_trust(cluster: Cluster) -> None:
    with pytest.raises(Unavailable, match="root certificates were used: install the CA of that server"):
        cluster.find_at(f"{cluster.server.url}/discovery.conf")


def test_the_ca_may_stand_in_a_file_beside(cluster: Cluster) -> None:
    config = cluster.config(ca=None)
    config["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
    (cluster.folder / "ca.crt").write_bytes(CA.pem)
    assert cluster.find(config).ca_pem == CA.pem


def test_the_current_contexts_cluster_is_meant(cluster: Cluster) -> None:
    config = cluster.config()
    config["clusters"][0]["name"] = "ours"
    config["clusters"].append({"name": "theirs", "cluster": {"server": ANY_SERVER}})
    config["contexts"] = [
        {"name": "a", "context": {"cluster": "theirs"}},
        {"name": "b", "context": {"cluster": "ours"}},
    ]
    config["current-context"] = "b"
    assert cluster.find(config).info.server == cluster.server.url


# How it is reached


def test_a_file_comes_from_an_https_server_that_this_machine_trusts(cluster: Cluster) -> None:
    content = clusterinfo.build(cluster.server.url, CA.pem)
    files = cluster.stand(PUBLIC, script(status(503), Reply(body=content.encode())))
    assert cluster.find_at(f"{files.url}/a/b?signature=c").kubeconfig == content
    assert files.paths == ["/a/b?signature=c"] * 2
    assert files.headers <= QUIET


def redirect(cluster: Cluster) -> str:
    target = cluster.stand(PUBLIC, Reply(body=text_of(cluster.config()).encode()))
    return cluster.stand(PUBLIC, Reply(status=302, headers={"Location": target.url})).url + "/x"


def downgrade(cluster: Cluster) -> str:
    return cluster.stand(PUBLIC, Reply(status=301, headers={"Location": "http://127.0.0.1:1/x"})).url + "/x"


def served(says: Reply, ca: Ca = PUBLIC) -> Callable[[Cluster], str]:
    return lambda cluster: cluster.stand(ca, says).url + "/discovery.conf"


def over_input(data: bytes) -> Callable[[Cluster], str]:
    def make(cluster: Cluster) -> str:
        cluster.stdin = lambda: data
        return "-"

    return make


def oversized(cluster: Cluster) -> str:
    """Send what would be sound, but for its size."""
    return over_input((clusterinfo.build(cluster.server.url, CA.pem) + "#" * 2**20).encode())(cluster)


NOT_REACHED: dict[str, tuple[Callable[[Cluster], str], Reason]] = {
    "plain http": (lambda _: "http://127.0.0.1:1/x", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "another scheme": (lambda _: "file:///etc/passwd", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "upper case": (lambda _: "HTTP://127.0.0.1:1/x", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a user in the URL": (lambda _: "https://a:b@127.0.0.1:1/x", Reason.CLUSTER_INFO_MALFORMED),
    "a line end in the URL": (lambda _: "https://127.0.0.1:1/x\r\nA: b", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a fragment": (lambda _: "https://127.0.0.1:1/x#y", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "no file": (lambda cluster: str(cluster.folder / "none"), Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a folder": (lambda cluster: str(cluster.folder), Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a NUL in the path": (lambda _: "a\0b", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a redirect": (redirect, Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a redirect to http": (downgrade, Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "an untrusted server": (served(Reply(body=b"{}"), EVIL), Reason.SERVER_NOT_TRUSTED),
    "the cluster's CA for a public name": (served(Reply(body=b"{}"), CA), Reason.SERVER_NOT_TRUSTED),
    "not found": (served(status(404)), Reason.API_UNAVAILABLE),
    "compressed": (served(Reply(body=b"{}", headers={"Content-Encoding": "gzip"})), Reason.API_UNAVAILABLE),
    "too large": (served(Reply(body=b" " * (2**20 + 1))), Reason.API_UNAVAILABLE),
    "too large by input": (oversized, Reason.CLUSTER_INFO_MALFORMED),
    "no UTF-8": (over_input(b"\xff"), Reason.CLUSTER_INFO_MALFORMED),
    "nothing": (over_input(b""), Reason.CLUSTER_INFO_MALFORMED),
}


@pytest.mark.parametrize("case", NOT_REACHED)
def test_a_file_that_is_not_taken_from_there(cluster: Cluster, case: str) -> None:
    make, reason = NOT_REACHED[case]
    assert cluster.reason_at(make(cluster)) == reason
    assert cluster.server.seen == []


# What the server must prove


@pytest.mark.parametrize("ca", [EVIL, Ca("expired", starts=-600, lasts=-300), Ca("early", starts=300)])
def test_a_foreign_or_expired_ca_lets_no_server_pass(cluster: Cluster, ca: Ca) -> None:
    assert cluster.reason(cluster.config(ca=ca.pem)) == Reason.SERVER_NOT_TRUSTED
    assert cluster.server.seen == []
