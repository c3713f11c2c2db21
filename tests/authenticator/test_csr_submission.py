"""How often and when a request is repeated, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

import pytest
from test_api_client import WATCHED

from nodeattest_authenticator.enrollment.csr_submission import CsrSession
from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_authenticator.formats.csr_object import Csr
from nodeattest_authenticator.state.records import SubmittedCsr
from nodeattest_authenticator.transport.api_client import ApiServerClient, ForbiddenError, UnreachableError
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


def test_a_young_clusters_answers_leave_the_back_off_for_an_absent_one_short() -> None:
    server = Server(creates=[*(forbidden() for _ in range(5)), UnreachableError("away"), OURS])
    assert submitted(server) == OURS
    assert server.slept[-1] == 0.25


def test_a_watch_is_not_opened_again_before_the_server_said_so() -> None:
    issued = replace(OURS, certificate=b"pem")
    server = Server(creates=[OURS], watches=[UnreachableError("busy", 17), issued])
    assert server.session().wait_for_decision(OURS, certificate) == b"pem"
    assert server.slept == [17]


def test_a_server_that_asks_for_more_time_than_there_is_ends_the_wait() -> None:
    server = Server(creates=[OURS], watches=[UnreachableError("busy", 10_000)])
    with pytest.raises(AgentError) as caught:
        server.session(60).wait_for_decision(OURS, certificate)
    assert caught.value.reason == AgentReason.TIMEOUT
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
