"""Connections take small buffers where Python lets them, and serve all the same."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import selector_events, sslproto
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web

from nodeattest_sandbox.pki import ClusterPki
from nodeattest_serving.listener import Listener
from nodeattest_serving.read_buffers import PLAIN_READ, TLS_READ, set_buffer, use_small_buffers
from nodeattest_serving.replies import Reply
from nodeattest_serving.settings import BindAddress, ConnectionLimits

LOOPBACK = "127.0.0.1"
LIMIT = 90.0
"""Seconds for all that is waited for here."""
BODY = bytes(range(256)) * (16 << 10)
"""4 MiB: far more than all buffers on the way."""


async def answer(_request: web.BaseRequest, _client: str) -> Reply:
    return Reply(status=HTTPStatus.OK, body=BODY, headers={})


class Usual:
    max_size = 256 * 1024


class Absent:
    pass


class OfAnotherType:
    max_size = "256 KiB"


class Smaller:
    max_size = 1024


def test_a_read_buffer_is_made_small_once_and_for_all() -> None:
    assert set_buffer(Usual, TLS_READ)
    assert set_buffer(Usual, TLS_READ)
    assert Usual.max_size == TLS_READ


@pytest.mark.parametrize("protocol", [Absent, OfAnotherType, Smaller, "no class"])
def test_a_python_that_reads_otherwise_is_left_alone(protocol: object) -> None:
    before: object = getattr(protocol, "max_size", None)
    assert not set_buffer(protocol, TLS_READ)
    assert getattr(protocol, "max_size", None) == before


def test_this_python_has_the_buffers_that_are_made_small() -> None:
    use_small_buffers()
    assert sslproto.SSLProtocol.max_size == TLS_READ
    assert getattr(selector_events, "_SelectorSocketTransport").max_size == PLAIN_READ  # noqa: B009 - a private name


async def test_a_slow_client_gets_a_whole_answer_and_one_that_leaves_in_its_midst_takes_no_place(
    tmp_path: Path,
) -> None:
    pki = ClusterPki.make(tmp_path, "serving")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki.server_certificate, pki.server_key)
    knowing = ssl.create_default_context(cafile=pki.ca_certificate)
    listener = Listener(answer, BindAddress(LOOPBACK, 0), tls, ConnectionLimits(connections=1, connections_of_client=1))
    await listener.start()

    async def asked() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:  # a place is free when the server, too, has seen the end
            try:
                reader, writer = await asyncio.open_connection(LOOPBACK, listener.port, ssl=knowing, limit=4096)
                writer.write(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
            except (OSError, asyncio.IncompleteReadError):
                continue
            return reader, writer

    said = bytearray()
    try:
        async with asyncio.timeout(LIMIT):
            for _ in range(3):
                _, writer = await asked()
                writer.transport.abort()
            reader, writer = await asked()
            while piece := await reader.read(4096):
                said += piece
                await asyncio.sleep(0)
            writer.close()
    finally:
        await listener.stop()
    assert said == BODY
