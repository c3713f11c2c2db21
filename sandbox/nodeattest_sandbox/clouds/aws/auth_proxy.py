"""The HTTPS front of STS and EC2: verifies who asks, lets pass what that one may do, and hands it on to moto.

moto knows no NitroTPM: the front adds ``tpmSupport`` to what it says of instances, and tells their endorsement keys.
Promises: nothing reaches moto without a good signature; GetCallerIdentity is for everybody, all else for those who were
given it; refusals have the bodies that AWS sends. A service can be told to throttle, to be down or to be slow.
Source: AWS, "Common errors" of STS and EC2, "GetInstanceTpmEkPub", "Query API request rate limits".
"""

from __future__ import annotations

import asyncio
import re
import uuid
from datetime import UTC, datetime
from html import unescape
from typing import Final
from urllib.parse import parse_qs

import aiohttp
from aiohttp import web

from nodeattest_sandbox.clouds.aws.sigv4 import Received, Refused, Scope, scope_of, verify
from nodeattest_sandbox.clouds.aws.state import Answering, Cloud, Mode

_FREE: Final = frozenset({"GetCallerIdentity"})
_TELL_KEY: Final = "GetInstanceTpmEkPub"
_HOSTS: Final = ("localhost", "127.0.0.1")
_XML: Final = "text/xml"
_JSON: Final = "application/json"
_FIELD: Final = re.compile(r"<(Account|Arn|UserId|Code|Message)>([^<]*)</")
_STS_ERROR: Final = (
    '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">\n  <Error>\n    <Type>Sender</Type>\n'
    "    <Code>{code}</Code>\n    <Message>{message}</Message>\n  </Error>\n"
    "  <RequestId>{request}</RequestId>\n</ErrorResponse>\n"
)
_EC2_ERROR: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message>'
    "</Error></Errors><RequestID>{request}</RequestID></Response>"
)

_EC2_KEY: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<GetInstanceTpmEkPubResponse '
    'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId><instanceId>{instance}</instanceId>'
    "<keyType>{kind}</keyType><keyFormat>{form}</keyFormat><keyValue>{value}</keyValue></GetInstanceTpmEkPubResponse>"
)


class AuthProxy:
    """Handles what comes in by HTTPS."""

    def __init__(self, cloud: Cloud, moto: str) -> None:
        self._cloud = cloud
        self._moto = moto
        self._session: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """Make the application."""
        app = web.Application(client_max_size=1 << 20)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, _app: web.Application) -> None:
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.Request) -> web.Response:
        received = Received(
            method=request.method,
            target=request.raw_path,
            headers={name.lower(): ",".join(request.headers.getall(name)) for name in request.headers},
            body=await request.read(),
        )
        service = "sts"
        try:
            scope = scope_of(received)
            service = scope.service
            await self._behave(service, self._cloud.answering.get(service, Answering()))
            action = self._admit(received, scope)
            self._cloud.calls[f"{service}:{action}"] += 1
            if action == _TELL_KEY:
                return _endorsement_key(received, scope, self._cloud)
            return _preferred(received, _with_tpms(await self._forward(received), self._cloud))
        except Refused as refused:
            self._cloud.calls[f"{service}:{refused.code}"] += 1
            return _preferred(received, _error(service, refused))

    @staticmethod
    async def _behave(service: str, answering: Answering) -> None:
        """Do as the service was told to."""
        match answering.mode:
            case Mode.UP:
                return
            case Mode.HANG:
                await asyncio.sleep(answering.seconds)
            case Mode.DOWN:
                raise Refused(503, "ServiceUnavailable", "The server has failed for a moment.")
            case Mode.THROTTLE if service == "ec2":
                raise Refused(503, "RequestLimitExceeded", "Request limit exceeded.")
            case Mode.THROTTLE:
                raise Refused(400, "Throttling", "Rate exceeded")

    def _admit(self, request: Received, scope: Scope) -> str:
        """Verify the signature and the permission; return the action."""
        _check_place(request, scope, self._cloud)
        principal = verify(request, scope, self._cloud.principals, now=datetime.now(UTC))
        actions = parse_qs(request.body.decode(errors="replace")).get("Action", [])
        if request.method != "POST" or len(actions) != 1:
            raise Refused(400, "MissingAction", "The request is missing an action or a required parameter.")
        action = actions[0]
        if action not in _FREE and action not in principal.may:
            code = "UnauthorizedOperation" if scope.service == "ec2" else "AccessDenied"
            raise Refused(403, code, "You are not authorized to perform this operation.")
        return action

    async def _forward(self, request: Received) -> web.Response:
        """Let moto answer; it finds service, region and account in the authorization header."""
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False)
        passed = ("authorization", "content-type", "x-amz-date", "x-amz-security-token")
        headers = {name: request.headers[name] for name in passed if name in request.headers}
        async with self._session.post(self._moto, data=request.body, headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=_XML)


def _preferred(request: Received, answer: web.Response) -> web.Response:
    """Give STS's answers as JSON to anyone who accepts that, as STS does; moto knows XML only."""
    body = answer.body
    if request.headers.get("accept") != _JSON or not isinstance(body, bytes) or b"sts.amazonaws.com" not in body:
        return answer
    found = {name: unescape(value) for name, value in _FIELD.findall(body.decode())}
    identity = {name: found[name] for name in ("Account", "Arn", "UserId") if name in found}
    said: dict[str, object] = {"GetCallerIdentityResponse": {"GetCallerIdentityResult": identity}}
    if "Code" in found:
        said = {"Error": {"Code": found["Code"], "Message": found.get("Message", ""), "Type": "Sender"}}
    return web.json_response(said, status=answer.status)


def _endorsement_key(request: Received, scope: Scope, cloud: Cloud) -> web.Response:
    """Tell the endorsement key of an instance in that region, in DER."""
    asked = parse_qs(request.body.decode(errors="replace"))
    instance, kind, form = (asked.get(name, [""])[0] for name in ("InstanceId", "KeyType", "KeyFormat"))
    machine = cloud.machines.get(instance)
    if machine is None or machine.place.region != scope.region:
        raise Refused(400, "InvalidInstanceID.NotFound", f"The instance ID '{instance}' does not exist")
    if kind not in machine.tpm_keys or form != "der":
        raise Refused(400, "UnsupportedOperation", "The instance has no such key.")
    text = _EC2_KEY.format(instance=instance, kind=kind, form=form, value=machine.tpm_keys[kind])
    return web.Response(text=text, content_type=_XML)


def _with_tpms(answer: web.Response, cloud: Cloud) -> web.Response:
    """Say of each instance of DescribeInstances whether it has a NitroTPM."""
    body = answer.body
    if not isinstance(body, bytes) or b"<DescribeInstancesResponse" not in body:
        return answer
    for name, machine in cloud.machines.items():
        if machine.tpm_keys:
            tag = f"<instanceId>{name}</instanceId>".encode()
            body = body.replace(tag, tag + b"<tpmSupport>v2.0</tpmSupport>")
    return web.Response(status=answer.status, body=body, content_type=_XML)


def _check_place(request: Received, scope: Scope, cloud: Cloud) -> None:
    """Let a regional endpoint serve its own service and region only; loopback serves all."""
    host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
    known = host in _HOSTS or host.startswith(f"{scope.service}.{scope.region}.")
    if scope.region not in cloud.regions or not known:
        raise Refused(403, "SignatureDoesNotMatch", "Credential should be scoped to a valid region.")


def _error(service: str, refused: Refused) -> web.Response:
    form = _EC2_ERROR if service == "ec2" else _STS_ERROR
    text = form.format(code=refused.code, message=_escaped(refused.message), request=uuid.uuid4())
    return web.Response(status=refused.status, text=text, content_type=_XML)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
