"""What a discovery file may say: one cluster, and no credential or command unless its reader allows it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from discovery_files import ANY_SERVER, CA, EVIL, SECRET, Cluster, Config, text_of
from lying_servers import status

from nodeattest_providers.errors import Reason


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


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


def runs(command: str) -> Callable[[Cluster], Config]:
    return with_user(exec={"apiVersion": "client.authentication.k8s.io/v1", "command": command})


def unmeant_user(cluster: Cluster) -> Config:
    return cluster.config() | {"users": [{"name": "other", "user": {"token": SECRET}}]}


def unnamed_besides(cluster: Cluster) -> Config:
    config = cluster.config(user={"exec": {"command": "kubelet-authenticator"}})
    config["clusters"].append({"name": "named", "cluster": {"server": ANY_SERVER}})
    config["contexts"][0]["context"]["cluster"] = "named"
    return config


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
    "a token": (with_user(token=SECRET), NOT_ALLOWED),
    "a password": (with_user(username="a", password=SECRET), NOT_ALLOWED),
    "a client certificate": (with_user(**{"client-certificate-data": PEM, "client-key-data": PEM}), NOT_ALLOWED),
    "an auth provider": (with_user(**{"auth-provider": {"name": "gcp"}}), NOT_ALLOWED),
    "impersonation": (with_user(**{"as": "admin"}), NOT_ALLOWED),
    "another command": (runs("/bin/sh"), NOT_ALLOWED),
    "a command that ends alike": (runs("/opt/not-kubelet-authenticator"), NOT_ALLOWED),
    "a token of a user who is not meant": (unmeant_user, NOT_ALLOWED),
    "an unnamed cluster besides the current one": (unnamed_besides, MALFORMED),
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


@pytest.mark.parametrize("path", ["certificate-authority", "tokenFile"])
def test_a_file_from_elsewhere_names_no_files_of_this_machine(cluster: Cluster, path: str) -> None:
    config = cluster.config() if path == "certificate-authority" else cluster.config(user={path: "/etc/hostname"})
    if path == "certificate-authority":
        config["clusters"][0]["cluster"] = {"server": cluster.server.url, path: "/etc/hostname"}
    cluster.stdin = text_of(config).encode
    assert cluster.reason_at("-", allow_credentials=True) == NOT_ALLOWED


def test_a_command_from_elsewhere_is_refused_even_if_it_is_ours(cluster: Cluster) -> None:
    cluster.stdin = text_of(runs("kubelet-authenticator")(cluster)).encode
    assert cluster.reason_at("-") == NOT_ALLOWED


# Credentials, where they are allowed


def test_an_allowed_token_goes_to_the_verified_server_only(cluster: Cluster) -> None:
    found = cluster.find(cluster.config(user={"token": SECRET}), allow_credentials=True)
    assert found.token == SECRET
    assert ("authorization", f"Bearer {SECRET}") in cluster.server.seen[0].headers
    assert SECRET not in repr(found)


def test_an_allowed_token_does_not_go_to_a_server_whose_certificate_does_not_pass(cluster: Cluster) -> None:
    evil = cluster.stand(EVIL, status(403))
    config = cluster.config(server=evil.url, user={"token": SECRET})
    assert cluster.reason(config, allow_credentials=True) == Reason.SERVER_NOT_TRUSTED
    assert evil.seen == []


CREDENTIALS_REFUSED: dict[str, tuple[Config, Reason]] = {
    "a token with a line end inside": ({"token": "a\r\nB: c"}, MALFORMED),
    "a token that is not ASCII": ({"token": "é"}, MALFORMED),
    "a token and a command": ({"token": "a", "exec": {"command": "kubelet-authenticator"}}, MALFORMED),
    "a token and a password": ({"token": "a", "username": "b", "password": "c"}, NOT_ALLOWED),
    "a client certificate": ({"client-certificate-data": PEM, "client-key-data": PEM}, NOT_ALLOWED),
}


@pytest.mark.parametrize("case", CREDENTIALS_REFUSED)
def test_a_credential_that_cannot_be_used_is_refused_even_if_allowed(cluster: Cluster, case: str) -> None:
    user, reason = CREDENTIALS_REFUSED[case]
    assert cluster.reason(cluster.config(user=user), allow_credentials=True) == reason
    assert cluster.server.seen == []
