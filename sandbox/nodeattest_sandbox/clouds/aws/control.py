"""How a demo or a test moves the sandbox AWS: launches, sessions, switches. JSON over loopback.

Promises: nothing without the secret that the starter was given. Not a part of AWS.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from aiohttp import web

from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.clouds.aws.backend import Backend, SessionKeys
from nodeattest_sandbox.clouds.aws.documents import Placement
from nodeattest_sandbox.clouds.aws.metadata import MetadataApp
from nodeattest_sandbox.clouds.aws.state import Answering, Cloud, Machine, Mode, Tokens

_EARLY: Final = timedelta(minutes=5)
"""Before they end, the metadata service gives out new credentials."""


class Control:
    """Carries out orders."""

    def __init__(self, cloud: Cloud, backend: Backend, secret: str) -> None:
        self._cloud = cloud
        self._backend = backend
        self._secret = secret
        self._runners: list[web.AppRunner] = []

    def app(self) -> web.Application:
        """Make the application."""
        app = web.Application()
        orders: Mapping[str, Callable[..., Awaitable[object]]] = {
            "launch": self._launch,
            "session": self._session,
            "change": self._change,
            "metadata": self._metadata,
            "tpm": self._tpm,
            "answer": self._answer,
            "calls": self._calls,
        }

        async def handle(request: web.Request) -> web.Response:
            if not hmac.compare_digest(request.headers.get("Authorization", ""), self._secret):
                return web.Response(status=403)
            order = orders.get(request.match_info["order"])
            if order is None:
                return web.Response(status=404)
            return web.json_response(await order(**cast("dict[str, Any]", await request.json())))

        app.router.add_post("/{order}", handle)
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, _app: web.Application) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _launch(self, account: str, region: str, zone: str, role: str | None, tags: Mapping[str, str]) -> object:
        made = await asyncio.to_thread(self._backend.launch, account, region, zone, role=role, tags=tags)
        place = Placement(
            account=account,
            region=region,
            zone=made.zone,
            instance_id=made.instance_id,
            image=made.image,
            kind=made.kind,
            private_ip=made.private_ip,
            pending=made.launched,
        )
        machine = Machine(place=place, role=role, tokens=Tokens.REQUIRED)
        self._cloud.machines[made.instance_id] = machine
        return {
            "account": account,
            "region": region,
            "zone": made.zone,
            "instance_id": made.instance_id,
            "private_dns": made.private_dns,
            "private_ip": made.private_ip,
            "metadata_endpoint": f"http://{LOOPBACK}:{await self._serve(machine)}",
        }

    async def _serve(self, machine: Machine) -> int:
        """Start the instance's metadata service."""
        runner = web.AppRunner(MetadataApp(self._cloud, machine, self._renew).app(), access_log=None)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, 0).start()
        return int(runner.addresses[0][1])

    def _renew(self, machine: Machine) -> SessionKeys:
        place, keys = machine.place, machine.keys
        if keys is None or keys.expires < datetime.now(UTC) + _EARLY:
            role = machine.role or ""
            made = self._backend.assume(place.account, role, place.instance_id, region=place.region)
            keys = machine.keys = self._cloud.admit(place.account, made)
        return keys

    async def _session(
        self, *, account: str, role: str, session: str, region: str, seconds: int, may: list[str]
    ) -> object:
        made = await asyncio.to_thread(self._backend.assume, account, role, session, region=region, seconds=seconds)
        self._cloud.admit(account, made, frozenset(may))
        return {"access_key_id": made.access_key_id, "secret": made.secret, "token": made.token}

    async def _change(self, account: str, region: str, action: str, arguments: Mapping[str, object]) -> object:
        await asyncio.to_thread(self._backend.change, account, region, action, **arguments)
        return {}

    async def _metadata(self, instance_id: str, tokens: str, role: str | None) -> object:
        machine = self._cloud.machines[instance_id]
        machine.tokens = Tokens(tokens)
        if role != machine.role:
            machine.role, machine.keys = role, None
        return {}

    async def _tpm(self, instance_id: str, keys: Mapping[str, str]) -> object:
        self._cloud.machines[instance_id].tpm_keys = keys
        return {}

    async def _answer(self, service: str, mode: str, seconds: float) -> object:
        self._cloud.answering[service] = Answering(Mode(mode), seconds)
        return {}

    async def _calls(self) -> object:
        return dict(self._cloud.calls)
