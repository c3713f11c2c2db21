"""The HTTP of clouds: a node's metadata service, and the controller's clients and their shared answers; all bounded."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nodeattest_authenticator.commands.report import fingerprint
from nodeattest_providers.aws.attestor import AwsAttestor
from nodeattest_providers.cloud_http import (
    CloudHttp,
    ExchangeError,
    Lookup,
    SingleFlight,
    retry_after_seconds,
)
from nodeattest_providers.errors import Unavailable
from nodeattest_providers.metadata_service import LIMIT, MetadataService
from nodeattest_providers.platform import CallOutcome
from nodeattest_sandbox.pki import server_tls


@contextmanager
def serving(*answers: bytes, seen: list[bytes] | None = None) -> Generator[int]:
    """Answer one connection after the other with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    asked = connection.recv(65536)
                    if seen is not None:
                        seen.append(asked)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(5)


def service(port: int, timeout: float = 60.0, *, sleep: Callable[[float], None] = time.sleep) -> MetadataService:
    return MetadataService(
        f"http://127.0.0.1:{port}", name="the cloud's metadata service", timeout=timeout, sleep=sleep
    )


def answering(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


DRIPPING = b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n"


@pytest.mark.parametrize("what", ["head", "body"])
def test_a_service_that_drips_is_left_when_the_time_of_the_whole_request_is_over(what: str) -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: " if what == "head" else DRIPPING)
                while not over.wait(0.05):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            with pytest.raises(Unavailable, match=r"did not answer within 0\.5 s"):
                service(listener.getsockname()[1], 0.5).ask("GET", "/")
        finally:
            over.set()
            thread.join(5)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answering("302 Found", b"", "Location: http://127.0.0.1:1/"), "status 302"),
        (answering("401 Unauthorized", b"secret"), "status 401"),
        (answering("200 OK", b"x" * (LIMIT + 1)), f"more than {LIMIT} bytes"),
        (b"not HTTP at all\r\n\r\n", "gave no HTTP answer"),
        (answering("200 OK", b"short").replace(b"Content-Length: 5", b"Content-Length: 50"), "gave no HTTP answer"),
    ],
)
def test_whatever_else_comes_is_unavailable_and_says_what_in_one_line(answer: bytes, said: str) -> None:
    with serving(answer) as port, pytest.raises(Unavailable) as caught:
        service(port).get("/document?nonce=abc")
    assert said in caught.value.detail
    assert "the cloud's metadata service at 127.0.0.1" in caught.value.detail
    assert not any(word in str(caught.value) for word in ("\n", "abc", "secret"))


BUSY = ["410 Gone", "429 Too Many Requests", "500 Internal Server Error", "503 Service Unavailable"]


@pytest.mark.parametrize("status", BUSY)
def test_a_busy_service_is_asked_again_with_growing_pauses(status: str) -> None:
    busy, pauses = answering(status, b""), list[float]()
    with serving(busy, busy, answering("200 OK", b"document")) as port:
        assert service(port, sleep=pauses.append).get("/") == b"document"
    assert pauses == [1, 2]


@pytest.mark.parametrize("status", BUSY)
def test_a_service_that_stays_busy_is_unavailable_and_the_remedy_is_to_wait(status: str) -> None:
    pauses = list[float]()
    with serving(*[answering(status, b"")] * 5) as port, pytest.raises(Unavailable) as caught:
        service(port, sleep=pauses.append).get("/document?nonce=abc")
    assert f"is busy or unavailable: it answered /document with status {status[:3]} at attempt 5" in caught.value.detail
    assert caught.value.remedy.startswith("try again")
    assert pauses == [1, 2, 4, 8]


def test_all_requests_of_one_service_share_twenty_seconds_of_pauses() -> None:
    busy, pauses = answering("503 Service Unavailable", b""), list[float]()
    with serving(*[busy] * 13) as port:
        asked = service(port, sleep=pauses.append)
        for attempts in (5, 3, 2, 2, 1):
            with pytest.raises(Unavailable, match=f"at attempt {attempts}"):
                asked.get("/")
    assert pauses == [1, 2, 4, 8, 1, 2, 1, 1]


def test_the_evidence_command_waits_for_a_busy_service() -> None:
    busy, pauses = answering("503 Service Unavailable", b""), list[float]()
    place = b'{"region": "us-east-1", "availabilityZone": "us-east-1a", "instanceId": "i-0123456789abcdef0"}'
    with serving(busy, answering("200 OK", b"token"), busy, answering("200 OK", place)) as port:
        attestor = AwsAttestor({"metadataEndpoint": f"http://127.0.0.1:{port}"}, sleep=pauses.append)
        assert fingerprint(attestor) == {"providerID": "aws:///us-east-1a/i-0123456789abcdef0"}
    assert pauses == [1, 1]


def test_a_service_that_is_not_there_or_says_nothing_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Unavailable, match="did not answer within"):
            service(port, 0.5).get("/")
    with pytest.raises(Unavailable, match="cannot be reached: Connection refused"):
        service(port).get("/")


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


def client(ca: Path | None = None, seconds: float = 30.0) -> CloudHttp:
    return CloudHttp(
        trust=lambda: ssl.create_default_context(cafile=ca), proxy=None, seconds=seconds, answer_bytes=64, connections=1
    )


async def test_an_answer_that_comes_late_in_a_connection_is_nobodys() -> None:
    answers, late, served = iter((b"me", b"us")), asyncio.Event(), list[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + next(answers))
        await late.wait()
        writer.write(OK + b"no")
        await reader.read()  # open for as long as the client keeps it
        writer.close()

    http, server = client(), await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    first = await http.exchange("GET", url, headers={})
    late.set()
    await asyncio.sleep(0.05)
    second = await http.exchange("GET", url, headers={})
    await http.aclose()
    await asyncio.gather(*filter(None, served))
    server.close()
    assert (first.body, second.body) == (b"me", b"us")


@pytest.mark.parametrize("body", [b"us", bytes(99)], ids=["whole", "broken off"])
def test_closing_ends_a_tls_connection_whose_peer_does_not(tmp_path: Path, body: bytes) -> None:
    ca, context = server_tls(tmp_path, "loopback")
    over = threading.Event()

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def serve(listener: socket.socket) -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as accepted:
            accepted.recv(4096)
            accepted.sendall(answering("200 OK", body))
            over.wait(30)

    async def ask(url: str) -> int:
        http, opened = client(ca), open_files()
        with contextlib.suppress(ExchangeError):
            await http.exchange("GET", url, headers={})
        await http.aclose()
        return open_files() - opened

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve, listener)
        left = asyncio.run(ask(f"https://127.0.0.1:{listener.getsockname()[1]}/"))
        over.set()
        served.result()
    assert left == 1  # the server's own socket


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (answering("200 OK", bytes(99)), CallOutcome.FAILED),
        (b"SSH-2.0-x\r\n\r\n", CallOutcome.FAILED),
    ],
)
async def test_without_a_whole_answer_within_bounds_the_outcome_is_told(answer: bytes, outcome: CallOutcome) -> None:
    http = client()
    with serving(answer) as port, pytest.raises(ExchangeError) as error:
        await http.exchange("GET", f"http://127.0.0.1:{port}/", headers={})
    await http.aclose()
    assert error.value.outcome is outcome


async def test_an_api_that_drips_is_left_when_the_time_of_the_whole_request_is_over() -> None:
    over, served = asyncio.Event(), list[asyncio.Task[None] | None]()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6000\r\n\r\n")
        while not over.is_set():
            writer.write(b" ")
            await asyncio.sleep(0.05)
        writer.close()

    http, server = client(seconds=0.5), await asyncio.start_server(serve, "127.0.0.1", 0)
    with pytest.raises(ExchangeError) as error:
        await http.exchange("GET", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", headers={})
    await http.aclose()
    over.set()
    await asyncio.gather(*filter(None, served))
    server.close()
    assert error.value.outcome is CallOutcome.TIMED_OUT


async def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    http = client()
    with serving(answering("200 OK", b"us")) as port:
        answer = await http.exchange("GET", f"http://127.0.0.1:{port}/", headers={})
    await http.aclose()
    assert answer.body == b"us"


class Asked:
    """Answers with a key's number; hangs for the scopes in ``hanging``, fails where told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.hanging: set[str] = set()
        self.fails = False
        self.go_on = asyncio.Event()

    async def __call__(self, scope: str, keys: Sequence[int]) -> Mapping[int, str]:
        self.calls.append((scope, list(keys)))
        if scope in self.hanging:
            await self.go_on.wait()
        if self.fails:
            raise ValueError("once")
        return {key: f"{scope}{key}" for key in keys if key >= 0}


def lookup(asked: Asked, now: Callable[[], float] = lambda: 0.0) -> Lookup[str, int, str]:
    return Lookup(asked, seconds=10.0, window=0.0, monotonic=now)


async def test_keys_that_are_wanted_together_are_one_call_of_at_most_so_many() -> None:
    asked = Asked()
    values = lookup(asked)
    found = await asyncio.gather(*(values.get("a", number) for number in range(-1, 66)))
    assert found == [None, *(f"a{number}" for number in range(66))]
    assert [len(keys) for _, keys in asked.calls] == [60, 7]


async def test_two_calls_of_a_scope_are_under_way_and_the_others_gather() -> None:
    asked = Asked()
    asked.hanging.add("a")
    values = lookup(asked)
    waiting: list[asyncio.Future[str | None]] = []
    for number in range(5):
        waiting.append(asyncio.ensure_future(values.get("a", number)))
        await asyncio.sleep(0.01)
    assert await values.get("b", 1) == "b1"
    assert [keys for scope, keys in asked.calls if scope == "a"] == [[0], [1]]
    waiting.pop(0).cancel()  # whoever gives up does not take the answer from others
    asked.go_on.set()
    assert await asyncio.gather(*waiting) == [f"a{number}" for number in range(1, 5)]
    assert asked.calls[-1] == ("a", [2, 3, 4])


async def test_a_failed_call_fails_those_that_waited_for_it_and_no_more() -> None:
    asked = Asked()
    asked.fails = True
    values = lookup(asked)
    errors = await asyncio.gather(*(values.get("a", number) for number in range(3)), return_exceptions=True)
    assert [type(error) for error in errors] == [ValueError] * 3
    asked.fails = False
    assert await values.get("a", 0) == "a0"


async def test_calls_under_way_end_when_asked_to() -> None:
    flights: SingleFlight[str, bool] = SingleFlight()
    waiting = asyncio.ensure_future(flights.share("a", asyncio.Event().wait))
    await asyncio.sleep(0)
    await flights.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_value_is_used_again_for_its_seconds_and_a_fresh_one_is_of_a_new_call() -> None:
    asked, now = Asked(), [100.0]
    values = lookup(asked, lambda: now[0])
    for later, fresh, calls in ((0.0, False, 1), (9.9, False, 1), (0.2, False, 2), (0.0, True, 3)):
        now[0] += later
        assert await values.get("a", 1, fresh=fresh) == "a1"
        assert len(asked.calls) == calls
    for calls in (4, 5):  # what is missing is not remembered
        assert await values.get("a", -1) is None
        assert len(asked.calls) == calls


async def test_ten_thousand_values_are_remembered_at_most() -> None:
    asked = Asked()
    values = lookup(asked)
    await asyncio.gather(*(values.get("a", number) for number in range(10_001)))
    for key, more in ((10_000, 0), (0, 1)):  # the oldest is forgotten
        calls = len(asked.calls)
        assert await values.get("a", key) == f"a{key}"
        assert len(asked.calls) == calls + more


async def test_what_is_gone_or_expired_is_forgotten() -> None:
    class Value:
        pass

    now, missing = [100.0], set[int]()

    async def ask(_: str, keys: Sequence[int]) -> Mapping[int, Value]:
        return {key: Value() for key in keys if key not in missing}

    values: Lookup[str, int, Value] = Lookup(ask, seconds=10.0, window=0.0, monotonic=lambda: now[0])
    found = weakref.ref(await values.get("a", 1) or now)
    assert await values.get("a", 1) is found()
    missing.add(1)
    assert await values.get("a", 1, fresh=True) is None
    assert await values.get("a", 1) is None
    held = weakref.ref(await values.get("a", 2) or now)
    now[0] += 11
    await values.get("a", 3)
    gc.collect()
    assert (found(), held()) == (None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7), ("0", 1), ("99999", 120), ("9" * 400, 120), ("", 15), ("-1", 15), ("1.5", 15), ("٣", 15), ("soon", 15)],
)
def test_a_wait_that_an_answer_asks_for_is_seconds_within_bounds(text: str, seconds: float) -> None:
    assert retry_after_seconds(text, default=15, longest=120) == seconds
