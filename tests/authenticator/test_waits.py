"""What a command says while it waits: on standard error, in virtual time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from agent_cluster import FakeApi
from test_agent_parts import VirtualTime
from test_csr_submission import FILED, OURS, SIGNER, Server, certificate
from test_join import Joiner

from nodeattest_authenticator.console import reporting
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.csr_object import Csr
from nodeattest_authenticator.transport.api_client import ForbiddenError, UnreachableError
from nodeattest_discovery.node.clock import Clock, Deadline


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


def test_another_wait_is_told_at_once() -> None:
    said: list[str] = []
    deadline = Deadline.after(reporting(VirtualTime().clock, log=said.append), 150)
    for kind in ("a", "b", "a"):
        deadline.waits_for(kind, f"the {kind}")
    assert [line[-1] for line in said] == ["a", "b"]


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


def test_a_join_without_a_server_tells_its_waits(tmp_path: Path, api: FakeApi) -> None:
    done = Joiner(tmp_path, api).join(server="https://127.0.0.1:1", timeout="1")
    assert done.returncode == 1
    assert "for the API server: https://127.0.0.1:1: Connection refused" in done.stderr
