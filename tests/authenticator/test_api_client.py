"""Requests to the API server end in time and size, whatever the server does."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lying_servers import Ca, LyingServer, Reply

from nodeattest_authenticator import console
from nodeattest_authenticator.api_client import ApiServerClient, Credentials, Csr, UnreachableError
from nodeattest_authenticator.console import log, report
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.kubeconfig import Cluster
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_parsing.endpoint import Endpoint

CA = Ca()
WATCHED = Csr(
    name="a",
    uid="1",
    resource_version="7",
    request=b"",
    signer_name="s",
    username="u",
    challenge=None,
    waiting=None,
    supported_versions=None,
    provider_id=None,
    refused=None,
    certificate=None,
)
LARGE = 5 << 20


@contextmanager
def talking_to(reply: Reply, *, seconds: float = 60) -> Generator[ApiServerClient]:
    with LyingServer(CA.server(), reply) as server:
        deadline = Deadline.after(Clock(), seconds)
        cluster = Cluster(endpoint=Endpoint("127.0.0.1", server.port, ""), ca_pem=CA.pem)
        client = ApiServerClient(cluster, Credentials(username="u"), deadline)
        try:
            yield client
        finally:
            client.close()


def unreachable(client: ApiServerClient) -> UnreachableError:
    with pytest.raises(UnreachableError) as caught:
        client.read("/version")
    return caught.value


def test_a_dripping_watch_does_not_stretch_the_deadline() -> None:
    with (
        talking_to(Reply(body=b"x" * 1000, slowly=0.02), seconds=2) as client,
        pytest.raises(UnreachableError, match="no whole answer in time"),
    ):
        list(client.watch(WATCHED))


@pytest.mark.parametrize("body", [b"x" * LARGE, b'{"type": "ADDED"'], ids=["too long", "cut off"])
def test_an_event_that_is_not_whole_ends_the_watch(body: bytes) -> None:
    with talking_to(Reply(body=body)) as client, pytest.raises(UnreachableError):
        list(client.watch(WATCHED))


@pytest.mark.parametrize("status", [429, 503])
def test_requests_and_watches_are_told_when_to_come_again(status: int) -> None:
    with talking_to(Reply(status=status, headers={"Retry-After": "17"})) as client:
        assert unreachable(client).retry_after == 17
        with pytest.raises(UnreachableError) as caught:
            list(client.watch(WATCHED))
        assert caught.value.retry_after == 17


@pytest.mark.parametrize("status", [403, 422])
def test_a_servers_message_can_neither_forge_lines_nor_steer_a_terminal(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"message": "no\r\nkubelet-authenticator: joined\x1b[2J\u202e\x9b" + "x" * 1000}).encode()
    with talking_to(Reply(status=status, body=body)) as client, pytest.raises(AgentError) as caught:
        client.read("/version")
    report(caught.value)
    assert len(str(caught.value)) < 800
    log("\x1b[2J\u202e\n")
    first, second, *others = capsys.readouterr().err.split("\n")
    assert first.isprintable()
    assert "joined\\x1b[2J" in first
    assert second == "kubelet-authenticator: \\x1b[2J\\u202e\\n"
    assert others == [""]


def test_standard_error_is_written_in_one_place() -> None:
    folder = Path(console.__file__).parent
    writers = {path.name for path in folder.rglob("*.py") if "stderr" in path.read_text(encoding="utf-8")}
    assert writers == {"console.py"}


def test_one_connection_serves_several_requests() -> None:
    with talking_to(Reply(body=b"{}")) as client:
        assert client.read("/version") == {}
        certificate = client.server_certificate()
        assert client.read("/version") == {}
        assert client.server_certificate() is not None
        assert client.server_certificate() == certificate
