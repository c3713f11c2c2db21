"""A handshake that the client ends, because it does not know the server's CA, costs the listener nothing."""

from __future__ import annotations

import asyncio
import logging
import ssl
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web

from nodeattest_sandbox.pki import ClusterPki
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits
from nodeattest_serving.listener import Listener
from nodeattest_serving.replies import Reply

LOOPBACK = "127.0.0.1"
LIMIT = 60.0
"""Seconds for all that is waited for here."""


async def answer(_request: web.BaseRequest, _client: str) -> Reply:
    return Reply(status=HTTPStatus.OK, body=b"here", headers={})


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_that_refuse_the_certificate_take_no_place_and_log_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: ssl.TLSVersion
) -> None:
    pki = ClusterPki.make(tmp_path, "serving")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki.server_certificate, pki.server_key)
    ignorant, knowing = ssl.create_default_context(), ssl.create_default_context(cafile=pki.ca_certificate)
    ignorant.maximum_version = version
    listener = Listener(answer, BindAddress(LOOPBACK, 0), tls, ConnectionLimits(connections=2, connections_of_client=2))
    await listener.start()
    try:
        async with asyncio.timeout(LIMIT):
            for _ in range(5):
                with pytest.raises(ssl.SSLCertVerificationError):
                    await asyncio.open_connection(LOOPBACK, listener.port, ssl=ignorant)
            said = b""
            while not said:  # a place is free when the server, too, has seen the end
                reader, writer = await asyncio.open_connection(LOOPBACK, listener.port, ssl=knowing)
                writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                said = await reader.read()
                writer.close()
    finally:
        await listener.stop()
    assert said.endswith(b"here")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
