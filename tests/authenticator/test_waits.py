"""What a command says while it waits: on standard error and to systemd, in virtual time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from agent_cluster import FakeApi
from discovered_cluster import Discoverer
from test_agent_parts import VirtualTime
from test_csr_submission import FILED, OURS, SIGNER, Server, certificate
from test_join import Joiner

from nodeattest_authenticator.commands.cli import main
from nodeattest_authenticator.console import notify_status, reporting
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.csr_object import Csr
from nodeattest_authenticator.state.lock import exclusive
from nodeattest_authenticator.state.storage import Storage
from nodeattest_authenticator.transport.api_client import ForbiddenError, UnreachableError
from nodeattest_discovery.node.clock import Clock, Deadline


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The value of NOTIFY_SOCKET, and the socket that it names."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@nodeattest-{uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as receiver:
        receiver.bind(name.replace("@", "\0"))
        yield name, receiver


def received(receiver: socket.socket) -> list[str]:
    said: list[str] = []
    while True:
        try:
            said.append(receiver.recv(4096).decode())
        except BlockingIOError:
            return said


def test_a_wait_is_told_at_once_and_then_once_a_minute(systemd: tuple[str, socket.socket]) -> None:
    virtual, said = VirtualTime(), list[str]()
    deadline = Deadline.after(reporting(virtual.clock, log=said.append, notify_socket=systemd[0]), 150)
    told: list[float] = []
    while not deadline.passed:
        before = len(said)
        deadline.waits_for("cluster", "the cluster")
        told += [virtual.time] * (len(said) - before)
        deadline.sleep(5)
    assert told == [1000, 1060, 1120]
    assert set(said) == {"waiting until 1970-01-01T00:19:10Z for the cluster"}
    assert received(systemd[1]) == [f"STATUS={line}" for line in said]


def test_another_wait_is_told_at_once() -> None:
    said: list[str] = []
    deadline = Deadline.after(reporting(VirtualTime().clock, log=said.append, notify_socket=None), 150)
    for kind in ("a", "b", "a"):
        deadline.waits_for(kind, f"the {kind}")
    assert [line[-1] for line in said] == ["a", "b"]


def test_what_a_server_writes_makes_no_line_more() -> None:
    said: list[str] = []
    server = Server(creates=[OURS], watches=[replace(OURS, waiting=f"Reason{n}: x") for n in range(5000)])
    session = server.session(50)
    clock = reporting(session.deadline.clock, log=said.append, notify_socket=None)
    session = replace(session, deadline=replace(session.deadline, clock=clock))
    with suppress(AgentError):
        submitted = session.submit(FILED, signer_name=SIGNER, usages=(), expiration_seconds=None)[0]
        session.wait_for_decision(submitted, certificate)
    assert len(server.watches) < 4990
    assert [line.rpartition("sandbox://0'")[2] for line in said] == ["", ", which waits: Reason0: x"]


def test_a_status_is_one_variable_whatever_it_says(systemd: tuple[str, socket.socket]) -> None:
    notify_status("a\nMAINPID=1", systemd[0])
    assert received(systemd[1]) == ["STATUS=a\\nMAINPID=1"]


@pytest.mark.parametrize("address", [None, "", "relative", "vsock:2:1", "/nonexistent/notify", "@" + "a" * 200])
def test_where_nobody_listens_nothing_happens(address: str | None) -> None:
    notify_status("a", address)


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


def test_a_lock_says_who_is_waited_for(tmp_path: Path) -> None:
    virtual, said = VirtualTime(), list[str]()
    storage, deadline = Storage(str(tmp_path / "state")), Deadline.after(heard(virtual.clock, said), 1)
    with exclusive(storage, deadline), pytest.raises(AgentError), exclusive(storage, deadline):
        pass
    assert set(said) == {f"another kubelet-authenticator, which holds {tmp_path}/state/lock"}


def test_a_join_without_a_server_tells_its_waits_and_leaves_the_reason_as_status(
    tmp_path: Path, api: FakeApi, systemd: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd[0])
    done = Joiner(tmp_path, api).join(server="https://127.0.0.1:1", timeout="1")
    assert done.returncode == 1
    assert "for the API server: https://127.0.0.1:1: Connection refused" in done.stderr
    said = received(systemd[1])
    assert any(line.startswith("STATUS=waiting until ") for line in said)
    assert said[-1].startswith("STATUS=APIUnavailable: ")


def test_a_join_that_worked_leaves_no_status(
    tmp_path: Path, api: FakeApi, systemd: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd[0])
    assert Joiner(tmp_path, api).join().returncode == 0
    assert received(systemd[1])[-1] == "STATUS="


@pytest.mark.parametrize("command", ["credential", "adopt --provider tpm --kubeconfig none", "status", "evidence"])
def test_a_command_that_is_no_unit_of_ours_leaves_the_status_of_the_unit_that_runs_it(
    tmp_path: Path, systemd: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd[0])
    assert main(["kubelet-authenticator", *command.split(), "--config", str(tmp_path / "none")]) != 0
    assert received(systemd[1]) == []


def test_discovery_tells_whom_it_asks(tmp_path: Path, api: FakeApi) -> None:
    done = Discoverer(tmp_path, api).join(discovery_server="127.0.0.1:1", discovery_timeout="1")
    assert "for an answer of https://127.0.0.1:1\n" in done.stderr
    assert "for another answer: https://127.0.0.1:1: Connection refused\n" in done.stderr


def test_a_clock_that_nobody_listens_to_waits_in_silence() -> None:
    Deadline.after(Clock(), 1).waits_for("nothing", "nothing")
