"""Discovery by file: how a file is reached, what it may say, and what the server that it names must prove."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from lying_servers import (
    CLUSTER_INFO,
    QUIET,
    Ca,
    LyingServer,
    Reply,
    Says,
    VirtualTime,
    config_map,
    script,
    status,
)

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.by_file import by_file
from nodeattest_discovery.node.client import Found
from nodeattest_providers.errors import Denied, Reason, Unavailable

CA: Final = Ca()
EVIL: Final = Ca("evil")
PUBLIC: Final = Ca("public")
"""Whom this machine trusts for servers of public names, in the place of the system's CAs."""
SECRET: Final = "hunter2"
ANY_SERVER: Final = "https://127.0.0.1:1"

Config = dict[str, Any]


class Cluster:
    """One server of the cluster, and files that name it."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.time = VirtualTime()
        self.server = self.stand(CA, status(403, "Forbidden"))
        self.stdin: Callable[[], bytes] = lambda: b""

    def stand(self, ca: Ca, says: Says | Reply) -> LyingServer:
        return self.stack.enter_context(LyingServer(ca.server(), says))

    def config(self, *, server: str | None = None, ca: bytes | None = CA.pem, user: Config | None = None) -> Config:
        """Make a kubeconfig: one cluster, and perhaps one user, who is current."""
        cluster: Config = {"server": server or self.server.url}
        if ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
        config: Config = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
        if user is not None:
            config["users"] = [{"name": "node", "user": user}]
            config["contexts"] = [{"name": "main", "context": {"cluster": "", "user": "node"}}]
            config["current-context"] = "main"
        return config

    def write(self, content: Config | str | bytes, name: str = "discovery.conf") -> str:
        data = content if isinstance(content, bytes) else text_of(content).encode()
        (self.folder / name).write_bytes(data)
        return str(self.folder / name)

    def find(self, content: Config | str | bytes, *, allow_credentials: bool = False) -> Found:
        return self.find_at(self.write(content), allow_credentials=allow_credentials)

    def find_at(self, source: str, *, allow_credentials: bool = False) -> Found:
        environment = self.time.environment(limit=12, public_roots=PUBLIC.pem)
        return by_file(source, environment, stdin=self.stdin, allow_credentials=allow_credentials)

    def reason(self, content: Config | str | bytes, *, allow_credentials: bool = False) -> Reason:
        return self.reason_at(self.write(content), allow_credentials=allow_credentials)

    def reason_at(self, source: str, *, allow_credentials: bool = False) -> Reason:
        with pytest.raises((Denied, Unavailable)) as caught:
            self.find_at(source, allow_credentials=allow_credentials)
        assert isinstance(caught.value, Denied | Unavailable)
        assert SECRET not in str(caught.value)
        return caught.value.reason


def text_of(content: Config | str) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def published(server: str, *authorities: Ca) -> Reply:
    return config_map({"kubeconfig": clusterinfo.build(server, b"".join(ca.pem for ca in authorities))})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


# What a file may be


def test_a_file_that_kubespray_copies_needs_no_more_than_a_certificate_that_passes(cluster: Cluster) -> None:
    # It is the text of cluster-info, for clusters whose API servers let no anonymous reader in.
    content = clusterinfo.build(cluster.server.url, CA.pem)
    found = cluster.find(content)
    assert (found.info.server, found.info.ca_pem) == (cluster.server.url, CA.pem)
    assert found.asked == cluster.server.url
    assert "does not let us read" in found.notes[0]
    assert cluster.server.paths == [CLUSTER_INFO]
    assert cluster.server.headers <= QUIET


def test_cluster_info_changes_neither_server_nor_cas_of_the_file(cluster: Cluster) -> None:
    cluster.server.says = published(ANY_SERVER, EVIL)
    found = cluster.find(cluster.config())
    assert (found.info.server, found.info.ca_pem) == (cluster.server.url, CA.pem)
    assert ANY_SERVER in found.notes[0]


@pytest.mark.parametrize("data", [{}, {"kubeconfig": "users: [{}]"}])
def test_unsound_cluster_info_is_noted_and_not_used(cluster: Cluster, data: dict[str, str]) -> None:
    cluster.server.says = config_map(data)
    found = cluster.find(cluster.config())
    assert found.info.ca_pem == CA.pem
    assert "not used" in found.notes[0]


def test_a_file_without_ca_gets_it_from_a_server_that_this_machine_trusts(cluster: Cluster) -> None:
    server = cluster.stand(PUBLIC, status(404))
    server.says = published(server.url, CA)
    found = cluster.find(cluster.config(server=server.url, ca=None))
    assert found.info.ca_pem == CA.pem


def test_a_file_without_ca_gets_none_from_another_server(cluster: Cluster) -> None:
    cluster.server.says = published(cluster.server.url, CA)
    with pytest.raises(
        Unavailable, match="no CA, so this machine's own root certificates were used: put the"
    ) as caught:
        cluster.find(cluster.config(ca=None))
    assert caught.value.reason is Reason.SERVER_NOT_TRUSTED


def test_the_ca_may_stand_in_a_file_beside(cluster: Cluster) -> None:
    config = cluster.config(ca=None)
    config["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
    (cluster.folder / "ca.crt").write_bytes(CA.pem)
    assert cluster.find(config).info.ca_pem == CA.pem


# How it is reached


def test_a_file_comes_from_an_https_server_that_this_machine_trusts(cluster: Cluster) -> None:
    content = clusterinfo.build(cluster.server.url, CA.pem)
    files = cluster.stand(PUBLIC, script(status(503), Reply(body=content.encode())))
    assert cluster.find_at(f"{files.url}/a/b?signature=c").info == clusterinfo.parse(content)
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
    "another scheme": (lambda _: "file:///etc/passwd", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "upper case": (lambda _: "HTTP://127.0.0.1:1/x", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a user in the URL": (lambda _: "https://a:b@127.0.0.1:1/x", Reason.CLUSTER_INFO_MALFORMED),
    "a line end in the URL": (lambda _: "https://127.0.0.1:1/x\r\nA: b", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a fragment": (lambda _: "https://127.0.0.1:1/x#y", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "no file": (lambda cluster: str(cluster.folder / "none"), Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a folder": (lambda cluster: str(cluster.folder), Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a NUL in the path": (lambda _: "a\0b", Reason.DISCOVERY_FILE_NOT_ALLOWED),
    "a redirect": (redirect, Reason.DISCOVERY_FILE_NOT_ALLOWED),
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


# What it may not say


def with_cluster(**fields: object) -> Callable[[Cluster], Config]:
    def make(cluster: Cluster) -> Config:
        config = cluster.config()
        config["clusters"][0]["cluster"] |= fields
        return config

    return make


def with_user(**user: object) -> Callable[[Cluster], Config]:
    return lambda cluster: cluster.config(user=user)


def with_top(**fields: object) -> Callable[[Cluster], Config]:
    return lambda cluster: cluster.config() | fields


def with_ca_file(cluster: Cluster) -> Config:
    config = cluster.config(ca=None)
    config["clusters"][0]["cluster"]["certificate-authority"] = "/etc/hostname"
    return config


def runs(command: str) -> Callable[[Cluster], Config]:
    return with_user(exec={"apiVersion": "client.authentication.k8s.io/v1", "command": command})


def unmeant_user(cluster: Cluster) -> Config:
    return cluster.config() | {"users": [{"name": "other", "user": {"token": SECRET}}]}


def two_named(cluster: Cluster) -> Config:
    config = cluster.config()
    config["clusters"] = [{**config["clusters"][0], "name": name} for name in ("a", "b")]
    return config


def twice(cluster: Cluster) -> Config:
    config = cluster.config()
    config["clusters"] *= 2
    return config


MALFORMED, NOT_ALLOWED = Reason.CLUSTER_INFO_MALFORMED, Reason.DISCOVERY_FILE_NOT_ALLOWED
PEM: Final = base64.b64encode(CA.pem).decode()
REFUSED: dict[str, tuple[Callable[[Cluster], Config], Reason]] = {
    "no verification": (with_cluster(**{"insecure-skip-tls-verify": True}), NOT_ALLOWED),
    "plain http": (with_cluster(server="http://127.0.0.1:1"), NOT_ALLOWED),
    "a proxy": (with_cluster(**{"proxy-url": "http://127.0.0.1:1"}), MALFORMED),
    "no server": (with_cluster(server=""), MALFORMED),
    "an odd server name": (with_cluster(**{"tls-server-name": "a b"}), MALFORMED),
    "an unknown field of the cluster": (with_cluster(server_name="a"), MALFORMED),
    "a CA file that is not there": (
        with_cluster(**{"certificate-authority-data": "", "certificate-authority": "none"}),
        NOT_ALLOWED,
    ),
    "a password": (with_user(username="a", password=SECRET), NOT_ALLOWED),
    "a client certificate": (with_user(**{"client-certificate-data": PEM, "client-key-data": PEM}), NOT_ALLOWED),
    "an auth provider": (with_user(**{"auth-provider": {"name": "gcp"}}), NOT_ALLOWED),
    "impersonation": (with_user(**{"as": "admin"}), NOT_ALLOWED),
    "a command that ends alike": (runs("/opt/not-kubelet-authenticator"), NOT_ALLOWED),
    "a token of a user who is not meant": (unmeant_user, NOT_ALLOWED),
    "two clusters": (two_named, MALFORMED),
    "one name twice": (twice, MALFORMED),
    "a current context that is not there": (with_top(**{"current-context": "none"}), MALFORMED),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_says_too_much_or_too_little_is_refused_before_anybody_is_asked(
    cluster: Cluster, case: str
) -> None:
    make, reason = REFUSED[case]
    assert cluster.reason(make(cluster)) == reason
    assert cluster.server.seen == []


def runs_us(cluster: Cluster) -> Config:
    return runs("kubelet-authenticator")(cluster)


@pytest.mark.parametrize("make", [runs_us, with_ca_file])
def test_a_file_from_elsewhere_names_no_files_of_this_machine_and_no_command(
    cluster: Cluster, make: Callable[[Cluster], Config]
) -> None:
    cluster.stdin = text_of(make(cluster)).encode
    assert cluster.reason_at("-", allow_credentials=True) == NOT_ALLOWED


# Credentials, where they are allowed


def test_an_allowed_token_goes_to_the_verified_server_only(cluster: Cluster) -> None:
    found = cluster.find(cluster.config(user={"token": SECRET}), allow_credentials=True)
    assert found.token == SECRET
    assert ("authorization", f"Bearer {SECRET}") in cluster.server.seen[0].headers
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ({"token": "a\r\nB: c"}, MALFORMED),
        ({"token": "é"}, MALFORMED),
        ({"token": "a", "exec": {"command": "kubelet-authenticator"}}, MALFORMED),
        ({"token": "a", "username": "b", "password": "c"}, NOT_ALLOWED),
        ({"client-certificate-data": PEM, "client-key-data": PEM}, NOT_ALLOWED),
    ],
)
def test_a_credential_that_cannot_be_used_is_refused_even_if_allowed(
    cluster: Cluster, user: Config, reason: Reason
) -> None:
    assert cluster.reason(cluster.config(user=user), allow_credentials=True) == reason
    assert cluster.server.seen == []
