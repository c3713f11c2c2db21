"""How a demo or a test moves the sandbox AWS: launches, sessions, switches. JSON over loopback.

Promises: nothing without the secret that the starter was given. Not a part of AWS.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from aiohttp import web

from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.clouds.aws.backend import Backend, SessionKeys
from nodeattest_sandbox.clouds.aws.documents import Placement
from nodeattest_sandbox.clouds.aws.metadata import MetadataApp
from nodeattest_sandbox.clouds.aws.state import Answering, Cloud, Machine, Mode, Tokens

__all__ = ["Control"]

_EARLY: Final = timedelta(minutes=5)
"""Before they end, the metadata service gives out new credentials."""
_Order = Mapping[str, object]


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
        orders: Mapping[str, Callable[[_Order], Awaitable[object]]] = {
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
            return web.json_response(await order(cast("_Order", await request.json())))

        app.router.add_post("/{order}", handle)
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, _app: web.Application) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _launch(self, order: _Order) -> object:
        account, region, zone = (str(order[key]) for key in ("account", "region", "zone"))
        role = cast("str | None", order["role"])
        tags = cast("Mapping[str, str]", order["tags"])
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
        port = await self._serve(machine)
        return {
            "account": account,
            "region": region,
            "zone": made.zone,
            "instance_id": made.instance_id,
            "private_dns": made.private_dns,
            "private_ip": made.private_ip,
            "metadata_endpoint": f"http://{LOOPBACK}:{port}",
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

    async def _session(self, order: _Order) -> object:
        account, role, session = (str(order[key]) for key in ("account", "role", "session"))
        region, seconds = str(order["region"]), int(str(order["seconds"]))
        made = await asyncio.to_thread(self._backend.assume, account, role, session, region=region, seconds=seconds)
        self._cloud.admit(account, made, frozenset(cast("list[str]", order["may"])))
        return {"access_key_id": made.access_key_id, "secret": made.secret, "token": made.token}

    async def _change(self, order: _Order) -> object:
        account, region, action = (str(order[key]) for key in ("account", "region", "action"))
        arguments = cast("dict[str, object]", order["arguments"])
        await asyncio.to_thread(self._backend.change, account, region, action, **arguments)
        return {}

    async def _metadata(self, order: _Order) -> object:
        machine = self._cloud.machines[str(order["instance_id"])]
        machine.tokens = Tokens(str(order["tokens"]))
        role = cast("str | None", order["role"])
        if role != machine.role:
            machine.role, machine.keys = role, None
        return {}

    async def _tpm(self, order: _Order) -> object:
        self._cloud.machines[str(order["instance_id"])].tpm_keys = cast("Mapping[str, str]", order["keys"])
        return {}

    async def _answer(self, order: _Order) -> object:
        answering = Answering(Mode(str(order["mode"])), float(str(order["seconds"])))
        self._cloud.answering[str(order["service"])] = answering
        return {}

    async def _calls(self, _order: _Order) -> object:
        return dict(self._cloud.calls)
