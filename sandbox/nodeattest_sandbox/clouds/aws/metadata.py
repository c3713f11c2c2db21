"""An instance's metadata service: version 2 of the protocol, and on demand what it was before or nothing.

Promises: without a session token 401; a token is good for as long as was asked for; a request that a proxy forwarded
gets no token. Each instance has a port of its own, as link-local addresses are not to be had here, and so no hop limit:
on AWS the answer to the PUT travels one hop only unless the instance's options say more.
Source: AWS, "Use IMDSv2", "Instance metadata categories".
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from nodeattest_sandbox.clouds.aws.backend import SessionKeys
from nodeattest_sandbox.clouds.aws.documents import document, signature
from nodeattest_sandbox.clouds.aws.state import Cloud, Machine, Tokens

_TTL: Final = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN: Final = "X-aws-ec2-metadata-token"
_LONGEST: Final = 21600
"""Seconds."""
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_CREDENTIALS: Final = "iam/security-credentials/"


class MetadataApp:
    """Serves one instance."""

    def __init__(self, cloud: Cloud, machine: Machine, renew: Callable[[Machine], SessionKeys]) -> None:
        """``renew`` gives the role's credentials, new ones when the old ones end soon."""
        self._cloud = cloud
        self._machine = machine
        self._renew = renew
        self._tokens: dict[str, float] = {}

    def app(self) -> web.Application:
        """Make the application."""
        app = web.Application()
        app.router.add_put("/latest/api/token", self._token)
        app.router.add_get("/latest/{path:.*}", self._get)
        return app

    async def _token(self, request: web.Request) -> web.Response:
        if self._machine.tokens is Tokens.VERSION_1:
            return web.Response(status=405)
        if self._machine.tokens is Tokens.DISABLED or "X-Forwarded-For" in request.headers:
            return web.Response(status=403)
        seconds = request.headers.get(_TTL, "")
        if not seconds.isdecimal() or not 1 <= int(seconds) <= _LONGEST:
            return web.Response(status=400)
        token = secrets.token_urlsafe(40) + "=="
        self._tokens[token] = time.monotonic() + int(seconds)
        return web.Response(text=token, headers={_TTL: seconds})

    async def _get(self, request: web.Request) -> web.Response:
        if self._machine.tokens is Tokens.DISABLED:
            return web.Response(status=403)
        good = self._tokens.get(request.headers.get(_TOKEN, ""), 0.0) > time.monotonic()
        if not good and self._machine.tokens is not Tokens.VERSION_1:
            return web.Response(status=401)
        found = await asyncio.to_thread(self._read, request.match_info["path"])
        return web.Response(status=404) if found is None else web.Response(body=found, content_type="text/plain")

    def _read(self, path: str) -> bytes | None:
        place = self._machine.place
        content = document(place)
        match path.partition("/"):
            case ("dynamic", _, "instance-identity/document"):
                return content
            case ("dynamic", _, "instance-identity/rsa2048"):
                return signature(content, self._cloud.regions[place.region], now=datetime.now(UTC))
            case ("meta-data", _, item):
                return self._item(item)
            case _:
                return None

    def _item(self, item: str) -> bytes | None:
        place, role = self._machine.place, self._machine.role
        if role is not None and item in {_CREDENTIALS, _CREDENTIALS.rstrip("/")}:
            return role.encode()
        if role is not None and item == _CREDENTIALS + role:
            return _credentials(self._renew(self._machine))
        plain = {
            "instance-id": place.instance_id,
            "placement/availability-zone": place.zone,
            "placement/region": place.region,
            "local-ipv4": place.private_ip,
        }
        return plain[item].encode() if item in plain else None


def _credentials(keys: SessionKeys) -> bytes:
    values = {
        "Code": "Success",
        "LastUpdated": datetime.now(UTC).strftime(_TIME),
        "Type": "AWS-HMAC",
        "AccessKeyId": keys.access_key_id,
        "SecretAccessKey": keys.secret,
        "Token": keys.token,
        "Expiration": keys.expires.strftime(_TIME),
    }
    return json.dumps(values, indent=2).encode()
