"""How often and when a request is repeated, and what is said while it waits, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace

import pytest
from test_agent_parts import VirtualTime
from test_api_client import WATCHED

from nodeattest_authenticator.api_client import ApiServerClient, Csr, ForbiddenError, UnreachableError
from nodeattest_authenticator.console import reporting
from nodeattest_authenticator.enrollment.csr_submission import CsrSession
from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_authenticator.state.records import SubmittedCsr
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_providers.identifiers import ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import JsonObject

SIGNER = signer_for(ProviderName("challenge"), Purpose.CLIENT)
FILED = SubmittedCsr("a", b"request")
OURS = replace(WATCHED, request=FILED.request, signer_name=SIGNER, username="u")


class Server(ApiServerClient):
    """An API server whose answers to create and watch are scripted; the last of each stays."""

    username = "u"
    clock_skew: float | None = None

    def __init__(self, *, creates: list[Csr | Exception], watches: list[Csr | Exception] | None = None) -> None:
        self.creates, self.watches = creates, watches or []
        self.time = 0.0
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

    def _next(self, script: list[Csr | Exception]) -> Csr:
        found = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(found, Exception):
            raise found
        return found

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def session(self, seconds: float = 600) -> CsrSession:
        clock = Clock(monotonic=lambda: self.time, sleep=self.sleep)
        return CsrSession(self, Deadline.after(clock, seconds), lambda: 0.5, ProviderID("sandbox://0"))


def forbidden() -> Exception:
    return ForbiddenError(AgentReason.REQUEST_REFUSED, "no", remedy="none")


def submitted(server: Server) -> Csr:
    return server.session().submit(FILED, signer_name=SIGNER, usages=(), expiration_seconds=None)[0]


def certificate(csr: Csr) -> bytes | None:
    return csr.certificate


@pytest.mark.parametrize("away", [lambda: UnreachableError("away")])
def test_attempts_on_a_server_that_was_away_do_not_use_up_the_time_for_a_403(away: Callable[[], Exception]) -> None:
    server = Server(creates=[*(away() for _ in range(8)), *(forbidden() for _ in range(5)), OURS])
    assert submitted(server) == OURS


def test_what_stays_forbidden_is_refused_after_six_answers() -> None:
    server = Server(creates=[forbidden()])
    with pytest.raises(ForbiddenError):
        submitted(server)
    assert len(server.slept) == 5


def test_a_watch_is_not_opened_again_before_the_server_said_so() -> None:
    issued = replace(OURS, certificate=b"pem")
    server = Server(creates=[OURS], watches=[UnreachableError("busy", 17), issued])
    assert server.session().wait_for_decision(OURS, certificate) == b"pem"
    assert server.slept == [17]


def test_a_server_that_asks_for_more_time_than_there_is_ends_the_wait() -> None:
    server = Server(creates=[OURS], watches=[UnreachableError("busy", 10_000)])
    with pytest.raises(AgentError, match="was not decided in time"):
        server.session(60).wait_for_decision(OURS, certificate)
    assert server.slept == [60]


def test_a_request_that_is_not_decided_names_the_provider_id_that_was_sent() -> None:
    server = Server(creates=[OURS], watches=[replace(OURS, waiting="MachineNotFound: check it")])
    with pytest.raises(AgentError) as caught:
        server.session(10).wait_for_decision(OURS, certificate)
    assert caught.value.reason == AgentReason.TIMEOUT
    assert "with provider ID 'sandbox://0' was not decided in time (it waits: MachineNotFound" in caught.value.message
    without = replace(server.session(10), provider_id=None)
    with pytest.raises(AgentError, match="without a provider ID was not decided"):
        without.wait_for_decision(OURS, certificate)


# What is said of it


def test_a_wait_is_told_at_once_and_then_once_a_minute() -> None:
    virtual, said = VirtualTime(), list[str]()
    deadline = Deadline.after(reporting(virtual.clock, log=said.append), 150)
    told: list[float] = []
    while not deadline.passed:
        before = len(said)
        deadline.waits_for("cluster", "the cluster")
        told += [virtual.time] * (len(said) - before)
        deadline.sleep(5)
    assert told == [1000, 1060, 1120]
    assert set(said) == {"waiting until 1970-01-01T00:19:10Z for the cluster"}


def test_what_a_server_writes_makes_no_line_more() -> None:
    said: list[str] = []
    server = Server(creates=[OURS], watches=[replace(OURS, waiting=f"Reason{n}: x") for n in range(5000)])
    session = server.session(50)
    clock = reporting(session.deadline.clock, log=said.append)
    session = replace(session, deadline=replace(session.deadline, clock=clock))
    with suppress(AgentError):
        submitted = session.submit(FILED, signer_name=SIGNER, usages=(), expiration_seconds=None)[0]
        session.wait_for_decision(submitted, certificate)
    assert len(server.watches) < 4990
    assert [line.rpartition("sandbox://0'")[2] for line in said] == ["", ", which waits: Reason0: x"]


def heard(clock: Clock, said: list[str]) -> Clock:
    def on_wait(kind: str, what: str, until: float) -> None:
        del kind, until
        said.append(what)

    return replace(clock, on_wait=on_wait)


def waits(server: Server) -> list[str]:
    """Submit a request and wait for its certificate for five minutes; returns what was waited for."""
    said: list[str] = []
    session = server.session(300)
    clock = heard(session.deadline.clock, said)
    session = replace(session, deadline=replace(session.deadline, clock=clock))
    with suppress(AgentError):
        submitted = session.submit(FILED, signer_name=SIGNER, usages=(), expiration_seconds=None)[0]
        session.wait_for_decision(submitted, certificate)
    return said


@pytest.mark.parametrize(
    ("creates", "watches", "what"),
    [
        ([UnreachableError("h: Connection refused")], [], "the API server: h: Connection refused"),
        ([ForbiddenError("Refused", "no role", remedy="bind it")], [], "permission: no role"),
        ([OURS], [UnreachableError("h")], "the decision on request a with provider ID 'sandbox://0'"),
        ([OURS], [replace(OURS, waiting="MachineNotFound: x")], "'sandbox://0', which waits: MachineNotFound: x"),
    ],
)
def test_a_request_says_what_it_waits_for(
    creates: list[Csr | Exception], watches: list[Csr | Exception], what: str
) -> None:
    assert any(line.endswith(what) for line in waits(Server(creates=creates, watches=watches)))
