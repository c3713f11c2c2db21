"""A node asks its cloud's metadata service over a real connection: bounded, direct, one line when it fails."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import pytest

from nodeattest_authenticator.commands.report import fingerprint
from nodeattest_providers.aws.attestor import AwsAttestor
from nodeattest_providers.errors import Unavailable
from nodeattest_providers.metadata_service import LIMIT, MetadataService


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
