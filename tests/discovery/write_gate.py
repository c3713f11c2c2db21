"""A gate before an API server: it records each call, holds some, and tells of each before it passes it on."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from nodeattest_sandbox.control_plane import ControlPlane

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade"}


@dataclass
class Gate:
    """What passes, and what is to happen then."""

    kubeconfig: Path
    """Of the user that the gate was opened for; it leads through the gate."""
    calls: list[web.Request] = field(default_factory=list[web.Request])
    held: Callable[[web.Request], bool] = lambda _: False
    before: Callable[[web.Request], object] = lambda _: None


@asynccontextmanager
async def opened_gate(plane: ControlPlane, kubeconfig: Path) -> AsyncGenerator[Gate]:
    """Open a gate for a user; the gate has the API server's own certificate."""
    gate = Gate(kubeconfig.with_suffix(".gated"))
    context = _client_context(plane, kubeconfig)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(plane.pki.server_certificate, plane.pki.server_key)
    connector, timeout = aiohttp.TCPConnector(ssl=context, limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            gate.calls.append(request)
            if gate.held(request):
                await asyncio.Event().wait()
            gate.before(request)
            headers, body = _passing(request.headers), await request.read()
            url = plane.server + request.path_qs
            async with session.request(request.method, url, headers=headers, data=body or None) as answer:
                return await _pass_back(request, answer)

        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving).start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        _redirect(kubeconfig, plane.server, gate.kubeconfig, url)
        try:
            yield gate
        finally:
            await runner.cleanup()


def _client_context(plane: ControlPlane, kubeconfig: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(plane.ca_certificate))
    user: dict[str, Any] = json.loads(kubeconfig.read_bytes())["users"][0]["user"]
    pair = kubeconfig.with_suffix(".pair")
    pair.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
    context.load_cert_chain(pair)
    return context


def _redirect(kubeconfig: Path, server: str, target: Path, url: str) -> None:
    target.write_text(kubeconfig.read_text().replace(server, url))


def _passing(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


async def _pass_back(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_passing(answer.headers))
    await response.prepare(request)
    with suppress(aiohttp.ClientError, ConnectionError):
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
    return response
