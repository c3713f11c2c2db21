"""A gate before an API server: counts what passes, holds what a test wants held, tells before and after each write.

It speaks TLS with the API server's own certificate, so pins hold, and passes each client's identity on: bearer tokens
as they are, client certificates by minting an equal one (the tests own the CA). Nothing of the product is patched.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.control_plane import ControlPlane

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request at the gate."""

    method: str
    path: str
    user: str
    """The client certificate's CN, or an empty string."""


class Gate:
    """A reverse proxy in a thread of its own."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._stopping = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.server = ""
        self.calls: list[Call] = []
        self.held: Callable[[Call], bool] = lambda _: False
        self.before: Callable[[Call], bool] = lambda _: True
        """Called before a call is passed on; False drops the connection instead."""
        self.after: Callable[[Call], bool] = lambda _: True
        """Called when the answer is there; False drops the connection instead of passing it on."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kubeconfig(self, source: Path, target: Path) -> Path:
        """Write a copy of a kubeconfig that goes through the gate."""
        target.write_text(source.read_text().replace(self._plane.server, self.server))
        target.chmod(0o600)
        return target

    def _run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)  # pyright: ignore[reportArgumentType] - a coroutine

    async def _start(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._plane.pki.server_certificate, self._plane.pki.server_key)
        context.load_verify_locations(self._plane.ca_certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.server = f"https://{host}:{port}"

    async def _stop(self) -> None:
        self._stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()
        for session in self._sessions.values():
            await session.close()
        await asyncio.sleep(0.05)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.path, _common_name(request))
        self.calls.append(call)
        await asyncio.to_thread(self._wait_while_held, call)
        if not await asyncio.to_thread(self.before, call):
            return _drop(request)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        session = self._session(request)
        url = self._plane.server + request.path_qs
        body = await request.read()
        async with session.request(request.method, url, headers=headers, data=body or None) as answer:
            if not await asyncio.to_thread(self.after, call):
                return _drop(request)
            return await self._pass_back(request, answer)

    def _wait_while_held(self, call: Call) -> None:
        while self.held(call) and not self._stopping.is_set():
            time.sleep(0.02)

    async def _pass_back(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                response.headers[name] = value
        await response.prepare(request)
        with suppress(aiohttp.ClientError, ConnectionError):
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        return response

    def _session(self, request: web.Request) -> aiohttp.ClientSession:
        """Connect as the client: with an equal certificate, or with none."""
        user, groups = _common_name(request), _organizations(request)
        if user not in self._sessions:
            context = ssl.create_default_context(cafile=str(self._plane.ca_certificate))
            if user:
                self._present(context, user, groups)
            connector = aiohttp.TCPConnector(ssl=context, limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            self._sessions[user] = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        return self._sessions[user]

    def _present(self, context: ssl.SSLContext, user: str, groups: tuple[str, ...]) -> None:
        path = self._plane.directory / f"gate-{hashlib.sha256(user.encode()).hexdigest()[:16]}"
        found = json.loads(self._plane.pki.client_kubeconfig(path, self._plane.server, user, groups).read_text())
        credential: dict[str, str] = found["users"][0]["user"]
        chain = base64.b64decode(credential["client-certificate-data"])
        path.write_bytes(chain + base64.b64decode(credential["client-key-data"]))
        context.load_cert_chain(path)


def _drop(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def _peer(request: web.Request) -> x509.Certificate | None:
    tls = request.transport.get_extra_info("ssl_object") if request.transport else None
    der = tls.getpeercert(binary_form=True) if tls else None
    return x509.load_der_x509_certificate(der) if der else None


def _common_name(request: web.Request) -> str:
    peer = _peer(request)
    return str(peer.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value) if peer else ""


def _organizations(request: web.Request) -> tuple[str, ...]:
    peer = _peer(request)
    found = peer.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME) if peer else []
    return tuple(str(attribute.value) for attribute in found)
