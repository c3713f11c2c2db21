"""D4: strangers from 200 addresses, against the webhook's answers to API servers."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from bootstrap_config_kit import answer_of, config, review
from catalogue import Expected, Row, Verdict, attacks
from fake_api import FakeApi
from front_kit import LOOPBACK, Authority
from virtual import advance, run_virtually

from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH
from nodeattest_controller.controllers.bootstrap_config.server import WebhookServer
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import Settings

HOST: Final = "127.0.0.1"
ADDRESSES: Final = 200
ROUND_TRIP: Final = 0.1
"""Seconds."""


class Strangers:
    def __init__(self, port: int, ca_file: Path) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._opened = 0
        self.connected = asyncio.Event()
        """Set once all connections were opened."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(ADDRESSES):
                for kind in (self._half_open, self._slow_handshake, self._idle):
                    group.create_task(self._again_and_again(kind, f"127.0.{1 + number // 100}.{1 + number % 100}"))

    async def _again_and_again(self, kind: Callable[[str], Awaitable[None]], address: str) -> None:
        while True:
            with suppress(OSError):
                await kind(address)
            await advance(ROUND_TRIP)

    async def _half_open(self, address: str) -> None:
        """Connect, and send nothing."""
        await self._hold(address)

    async def _slow_handshake(self, address: str) -> None:
        """Send a ClientHello without its last byte."""
        outgoing = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            self._tls.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST).do_handshake()
        await self._hold(address, first=outgoing.read()[:-1])

    async def _idle(self, address: str) -> None:
        """Send nothing after the handshake; without a client certificate, the server may end it then."""
        await self._hold(address, tls=self._tls)

    async def _hold(self, address: str, *, tls: ssl.SSLContext | None = None, first: bytes = b"") -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port, local_addr=(address, 0))
        self._opened += 1
        if self._opened == 3 * ADDRESSES:
            self.connected.set()
        try:
            if tls is not None:
                await writer.start_tls(tls, server_hostname=HOST)
            writer.write(first)
            await reader.read()
        finally:
            writer.transport.abort()


CALLS: Final = 3
FLOOD: Final = 60
TIMEOUT: Final = 5.0
"""Seconds, as in manifests/webhook."""
REVIEW: Final = json.dumps(review({**config(), "kind": "Pod"})).encode()
"""Its answer needs no read of the API server."""
REQUEST: Final = (
    f"POST {PATH}?timeout=5s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(REVIEW)}\r\n\r\n"
).encode() + REVIEW


class LogLines(logging.Handler):
    """Counts lines."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.levelno >= logging.WARNING


async def is_answered(port: int, tls: ssl.SSLContext) -> bool:
    """Call the webhook as an API server does, over a connection of its own."""
    head, _, body = (await answer_to(REQUEST, port, tls)).partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 200 ") and answer_of(body)["allowed"] is True


async def answer_to(request: bytes, port: int, tls: ssl.SSLContext) -> bytes:
    """Return what the webhook answers; nothing where it does not."""
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            await advance(ROUND_TRIP)
            await writer.start_tls(tls, server_hostname=LOOPBACK)
            await advance(ROUND_TRIP)
            writer.write(request)
            answer = await reader.read()
            writer.transport.abort()
    except OSError:  # a TimeoutError is one
        return b""
    return answer


def settings_of(directory: Path, **more: object) -> tuple[Settings, ssl.SSLContext]:
    """Return the settings of a webhook with a certificate, and what its callers trust."""
    authority = Authority()
    certificate, key = authority.certify(directory)
    certificate.rename(directory / "tls.crt")
    key.rename(directory / "tls.key")
    ca = directory / "ca.crt"
    ca.write_bytes(authority.pem)
    address = {"webhook_bind_address": f"{LOOPBACK}:0", "webhook_cert_dir": str(directory)}
    made = Settings(identity="a", **address, **more)  # pyright: ignore[reportArgumentType] - the cases name real fields
    return made, ssl.create_default_context(cafile=ca)


@asynccontextmanager
async def served(settings: Settings) -> AsyncGenerator[WebhookServer]:
    """Serve a webhook."""
    async with WebhookServer(settings, FakeApi(), Metrics()) as webhook:
        yield webhook


def beside_strangers(directory: Path, *, shows_certificate: bool) -> Expected:
    """Count the answered calls of an API server that calls one by one."""
    clients, client_ca = Authority("API servers"), directory / "clients.crt"
    client_ca.write_bytes(clients.pem)
    settings, tls = settings_of(directory, webhook_client_ca_file=client_ca if shows_certificate else None)
    if shows_certificate:
        tls.load_cert_chain(*clients.certify(directory / "client", "kube-apiserver", client=True))

    async def calls() -> int:
        async with served(settings) as webhook:
            strangers = Strangers(webhook.port, directory / "ca.crt")
            running = asyncio.create_task(strangers.run())
            await strangers.connected.wait()
            count = sum([await is_answered(webhook.port, tls) for _ in range(CALLS)])
            running.cancel()
            await asyncio.wait([running])
            return count

    assert run_virtually(calls()) == CALLS
    return Expected(Verdict.SHED, "")


def lines(directory: Path) -> Expected:
    """Send what is no AdmissionReview, and count what is logged of it."""
    settings, tls = settings_of(directory)
    logged = LogLines()
    logging.getLogger("nodeattest_controller").addHandler(logged)

    async def floods() -> int:
        async with served(settings) as webhook:
            request = REQUEST.replace(REVIEW, b"{" + b" " * (len(REVIEW) - 2) + b"}")
            answers = [await answer_to(request, webhook.port, tls) for _ in range(FLOOD)]
            return sum(answer.startswith(b"HTTP/1.1 400 ") for answer in answers)

    assert run_virtually(floods()) == FLOOD
    logging.getLogger("nodeattest_controller").removeHandler(logged)
    assert 0 < logged.count < FLOOD / 2
    return Expected(Verdict.SHED, "")


def from_elsewhere(directory: Path) -> Expected:
    settings, tls = settings_of(directory, webhook_allowed_cidrs=("192.0.2.0/24",))

    async def calls() -> int:
        async with served(settings) as webhook:
            return sum([await is_answered(webhook.port, tls) for _ in range(CALLS)])

    assert run_virtually(calls()) == 0
    return Expected(Verdict.SHED, "")


Case = Callable[[Path], Expected]
CASES: Final[Mapping[str, Case]] = {
    "D4-190": partial(beside_strangers, shows_certificate=False),
    "D4-191": partial(beside_strangers, shows_certificate=True),
    "D4-194": lines,
    "D4-195": from_elsewhere,
}


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_strangers_lose_no_call_of_an_api_server(row: Row, case: Case, tmp_path: Path) -> None:
    assert case(tmp_path) == row.expected
