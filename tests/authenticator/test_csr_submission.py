"""Requests to the API server end in time and size, are repeated as often as it helps, and say what they wait for."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from lying_servers import Ca, LyingServer, Reply, VirtualTime

from nodeattest_authenticator import console
from nodeattest_authenticator.api_client import (
    ApiServerClient,
    Credentials,
    Csr,
    ForbiddenError,
    UnreachableError,
    retry_until,
)
from nodeattest_authenticator.enrollment.csr_submission import CsrSession
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats.client_go import Cluster
from nodeattest_authenticator.state.records import SubmittedCsr
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.identifiers import ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import JsonObject

CA = Ca()
SIGNER = signer_for(ProviderName("challenge"), Purpose.CLIENT)
FILED = SubmittedCsr("a", b"request")
OURS = Csr(
    name="a",
    uid="1",
    resource_version="7",
    request=FILED.request,
    signer_name=SIGNER,
    username="u",
    challenge=None,
    waiting=None,
    supported_versions=None,
    provider_id=None,
    refused=None,
    certificate=None,
)

# One exchange, with a server that misbehaves


@contextmanager
def talking_to(reply: Reply, *, seconds: float = 60) -> Generator[ApiServerClient]:
    with LyingServer(CA.server(), reply) as server:
        cluster = Cluster(endpoint=Endpoint("127.0.0.1", server.port, ""), ca_pem=CA.pem)
        client = ApiServerClient(cluster, Credentials(username="u"), Deadline.after(Clock(), seconds))
        try:
            yield client
        finally:
            client.close()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        pytest.param(Reply(body=b"x" * 1000, slowly=0.02), "no whole answer in time", id="dripping"),
        pytest.param(Reply(body=b"x" * (5 << 20)), "cut off", id="too long"),
        pytest.param(Reply(body=b'{"type": "ADDED"'), "cut off", id="cut off"),
    ],
)
def test_a_watch_ends_in_time_and_size(reply: Reply, says: str) -> None:
    with talking_to(reply, seconds=2) as client, pytest.raises(UnreachableError, match=says):
        list(client.watch(OURS))


@pytest.mark.parametrize("status", [429, 503])
def test_requests_and_watches_are_told_when_to_come_again(status: int) -> None:
    with talking_to(Reply(status=status, headers={"Retry-After": "17"})) as client:
        for request in (lambda: client.read("/version"), lambda: list(client.watch(OURS))):
            with pytest.raises(UnreachableError) as caught:
                request()
            assert caught.value.retry_after == 17


@pytest.mark.parametrize("status", [403, 422])
def test_a_servers_message_can_neither_forge_lines_nor_steer_a_terminal(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"message": "no\r\nkubelet-authenticator: joined\x1b[2J\u202e\x9b" + "x" * 1000}).encode()
    with talking_to(Reply(status=status, body=body)) as client, pytest.raises(AgentError) as caught:
        client.read("/version")
    console.report(caught.value)
    assert len(str(caught.value)) < 800
    console.log("\x1b[2J\u202e\n")
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


# Repetition, in virtual time


Script = list[Csr | Exception]
FORBIDDEN = ForbiddenError(AgentReason.REQUEST_REFUSED, "no", remedy="none")


class Server(ApiServerClient):
    """An API server whose answers to create and watch are scripted; the last of each stays."""

    username = "u"
    clock_skew: float | None = None

    def __init__(self, *, creates: Script | None = None, watches: Script | None = None) -> None:
        self.creates, self.watches = creates or [OURS], watches or [UnreachableError("h")]
        self.time = VirtualTime()
        self.slept: list[float] = []

    def create(self, manifest: JsonObject) -> Csr | None:
        del manifest
        return self._next(self.creates)

    def get(self, name: str) -> Csr | None:
        del name
        return OURS

    def watch(self, csr: Csr) -> Generator[Csr | None]:
        del csr
        yield self._next(self.watches)

    def _next(self, script: Script) -> Csr:
        found = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(found, Exception):
            raise found
        return found

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time.sleep(seconds)

    def certified(self, seconds: float = 600, *, provider_id: str | None = "sandbox://0", log: bool = False) -> bytes:
        """Submit a request and wait for its certificate."""
        clock = replace(self.time.clock, sleep=self._sleep)
        clock = console.reporting(clock, log=self.time.told.append) if log else clock
        known = None if provider_id is None else ProviderID(provider_id)
        session = CsrSession(self, Deadline.after(clock, seconds), lambda: 0.5, known)
        submitted = session.submit(FILED, signer_name=SIGNER, usages=(), expiration_seconds=None)[0]
        return session.wait_for_decision(submitted, lambda csr: csr.certificate)


ISSUED = replace(OURS, certificate=b"pem")


def test_attempts_on_a_server_that_was_away_do_not_use_up_the_time_for_a_403() -> None:
    away: Script = [UnreachableError("away")] * 8
    assert Server(creates=[*away, *[FORBIDDEN] * 5, OURS], watches=[ISSUED]).certified() == b"pem"


def test_what_stays_forbidden_is_refused_after_six_answers() -> None:
    server = Server(creates=[FORBIDDEN])
    with pytest.raises(ForbiddenError):
        server.certified()
    assert len(server.slept) == 5


def test_a_watch_is_not_opened_again_before_the_server_said_so() -> None:
    server = Server(watches=[UnreachableError("busy", 17), ISSUED])
    assert server.certified() == b"pem"
    assert server.slept == [17]


def test_a_server_that_asks_for_more_time_than_there_is_ends_the_wait() -> None:
    server = Server(watches=[UnreachableError("busy", 10_000)])
    with pytest.raises(AgentError, match="was not decided in time"):
        server.certified(60)
    assert server.slept == [60]


@pytest.mark.parametrize(
    ("provider_id", "says"),
    [
        ("sandbox://0", "with provider ID 'sandbox://0' was not decided in time (it waits: MachineNotFound"),
        (None, "without a provider ID was not decided"),
    ],
)
def test_a_request_that_is_not_decided_names_the_provider_id_that_was_sent(provider_id: str | None, says: str) -> None:
    server = Server(watches=[replace(OURS, waiting="MachineNotFound: check it")])
    with pytest.raises(AgentError) as caught:
        server.certified(10, provider_id=provider_id)
    assert caught.value.reason == AgentReason.TIMEOUT
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("kind", "patience", "attempts"),
    [
        (FailureKind.DENIED, 60, 1),
        (FailureKind.USAGE, 60, 1),
        (FailureKind.TEMPORARY, 0, 1),
        (FailureKind.TEMPORARY, 60, 7),
    ],
)
def test_join_retries_temporary_failures_until_its_patience_ends(
    kind: FailureKind, patience: int, attempts: int
) -> None:
    virtual, tried = VirtualTime(), list[float]()

    def attempt() -> None:
        tried.append(virtual.moment)
        raise AgentError("APIUnavailable", "nobody is there", remedy="wait", kind=kind)

    with pytest.raises(AgentError):
        retry_until(attempt, Deadline.after(virtual.clock, patience), random=lambda: 0.0)
    assert len(tried) == attempts
    assert virtual.moment <= patience


# What is said of it


def test_a_wait_is_told_at_once_and_then_once_a_minute() -> None:
    virtual, said = VirtualTime(), list[str]()
    clock = replace(virtual.clock, now=lambda: virtual.moment)
    deadline = Deadline.after(console.reporting(clock, log=said.append), 150)
    told: list[float] = []
    while not deadline.passed:
        before = len(said)
        deadline.waits_for("cluster", "the cluster")
        told += [virtual.moment] * (len(said) - before)
        deadline.sleep(5)
    assert told == [0, 60, 120]
    assert set(said) == {"waiting until 1970-01-01T00:02:30Z for the cluster"}


def test_what_a_server_writes_makes_no_line_more() -> None:
    server = Server(watches=[replace(OURS, waiting=f"Reason{n}: x") for n in range(5000)])
    with suppress(AgentError):
        server.certified(50, log=True)
    assert len(server.watches) < 4990
    said = [line.rpartition("sandbox://0'")[2] for line in server.time.told]
    assert said == ["", ", which waits: Reason0: x"]


@pytest.mark.parametrize(
    ("server", "what"),
    [
        (Server(creates=[UnreachableError("h: Connection refused")]), "the API server: h: Connection refused"),
        (Server(creates=[ForbiddenError("Refused", "no role", remedy="bind it")]), "permission: no role"),
        (Server(), "the decision on request a with provider ID 'sandbox://0'"),
        (Server(watches=[replace(OURS, waiting="NotFound: x")]), "'sandbox://0', which waits: NotFound: x"),
    ],
)
def test_a_request_says_what_it_waits_for(server: Server, what: str) -> None:
    with suppress(AgentError):
        server.certified(300)
    assert any(line.endswith(what) for line in server.time.told)
