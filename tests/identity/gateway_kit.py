"""A gateway behind kube-apiserver: the PKI of front proxies, an add-on that tells what reached it, clients."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from typing import Final, cast
from urllib.parse import unquote, urlsplit

from aiohttp import WSMsgType, web
from front_kit import LOOPBACK

from nodeattest_sandbox.client import Client

_LIMIT: Final = 60.0


@dataclass
class AddOn:
    """An add-on that answers with what reached it."""

    seen: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    port: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets ``/stream`` write its second half."""
    _runner: web.ServerRunner | None = None

    async def start(self, tls: ssl.SSLContext | None = None, host: str = LOOPBACK) -> None:
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0, ssl_context=tls).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = [(name.decode(), value.decode()) for name, value in request.raw_headers]
        told: dict[str, object] = {"method": request.method, "path": request.raw_path, "headers": headers}
        self.seen.append(told)
        path = request.raw_path.partition("?")[0]
        if path == "/ws":
            socket = web.WebSocketResponse(protocols=("echo",))
            await socket.prepare(request)
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(message.data[::-1])
            return socket
        if path == "/stream":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"first\n")
            await self.go_on.wait()
            await response.write(b"second\n")
            return response
        if path.startswith("/moved"):
            headers = {"Location": unquote(request.raw_path.partition("?to=")[2]), "Set-Cookie": "session=1"}
            return web.Response(status=int(path.rpartition("/")[2]), headers=headers)
        told["body"] = (await request.read()).decode()
        return web.json_response(told)


@contextmanager
def running_add_on(host: str) -> Generator[AddOn]:
    """Run one in a thread of its own, for tests that block."""
    loop, add_on = asyncio.new_event_loop(), AddOn()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(add_on.start(host=host), loop).result(_LIMIT)
        yield add_on
        asyncio.run_coroutine_threadsafe(add_on.stop(), loop).result(_LIMIT)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LIMIT)
        loop.close()


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)

    def header_of_request(self, name: str) -> list[str]:
        """Return what the add-on got under a name, if this is its answer."""
        headers = cast("list[tuple[str, str]]", self.json["headers"])
        return [value for each, value in headers if each.lower() == name.lower()]


def send(
    client: Client, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> Answer:
    """Send a request as a user of an API server, whatever comes back."""
    parts = urlsplit(client.server)
    sent = {**client.headers, **(headers or {})}
    return ask(client.tls, parts.port or 443, method, path, sent, body=body)


def ask(
    tls: ssl.SSLContext | None,
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    body: bytes | None = None,
    host: str = LOOPBACK,
) -> Answer:
    """Send a request to a server of this machine; ``tls``: None for plain HTTP."""
    if tls is None:
        connection = HTTPConnection(host, port, timeout=_LIMIT)
    else:
        connection = HTTPSConnection(host, port, context=tls, timeout=_LIMIT)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()
