"""A sidecar: authenticates the caller of each request, authorizes, and forwards to the add-on.

The add-on gets a request only with a verified caller's name or, on open paths, without any; no credential in either
case. A response or a WebSocket ends when the token does. The log names the caller, and never a token or a query.
Source: companion proposal 003, "Proposed Pattern v2" and "Considerations".
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import Counter, Gauge

from nodeattest_identity.addon.sidecar.caller import (
    Caller,
    CallerVerifier,
    bearer,
    identity_headers,
    require_allowed,
    require_no_token_in_query,
)
from nodeattest_identity.proxy.forward import ForwardOptions
from nodeattest_identity.proxy.refusals import ProxyLimits, Refusal, RefusalError
from nodeattest_identity.proxy.request import CREDENTIALS, PathRule, RequestTarget, read_target
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_serving.bounded_server import BindAddress, SettingsError
from nodeattest_serving.connection_slots import share_of_owner
from nodeattest_serving.http_server import ServerConnection
from nodeattest_serving.program import ProgramMetrics, run_server
from nodeattest_serving.tls import ServingCertificate

_CHALLENGE: Final = 'Bearer error="invalid_token"'
"""RFC 6750 §3.1; the cause is in our log only."""
_CREDENTIALS: Final = frozenset({Refusal.CREDENTIALS_MISSING, Refusal.CREDENTIALS_REFUSED})
_ID: Final = "X-Request-Id"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """Addresses, allowed users and limits."""

    address: BindAddress
    upstream: BindAddress
    """The add-on, on a loopback address."""
    certificate: Path | None = None
    key: Path | None = None
    """Both, or plain HTTP."""
    health: BindAddress | None = None
    open_paths: tuple[PathRule, ...] = ()
    """Paths without authentication; forwarded without credentials and without an identity."""
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    """Who is allowed; both empty: every authenticated user."""
    send_groups: bool = False
    """Whether the add-on gets the groups, one ``X-Authenticated-Groups`` header each."""
    deny_status: HTTPStatus = HTTPStatus.UNAUTHORIZED
    """Status of a request without valid credentials: 401, or 403 as in the first design."""
    max_user_requests: int = 64
    """In flight, WebSockets included."""
    limits: ProxyLimits = field(default_factory=ProxyLimits)

    def __post_init__(self) -> None:
        if not self.upstream.is_loopback:
            raise SettingsError(f"--upstream: expected 127.0.0.1:port or [::1]:port, got {self.upstream}")
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("--tls-cert-file: expected --tls-private-key-file beside it, got one of the two")


class Metrics(ProgramMetrics):
    """Counters of one sidecar."""

    def __init__(self) -> None:
        super().__init__()
        self.forwarded = Counter(
            "nodeattest_sidecar_forwarded",
            "Requests that were forwarded, by class of the response status.",
            ("code",),
            registry=self.registry,
        )
        self.refused = Counter(
            "nodeattest_sidecar_refused", "Requests that were refused, by reason.", ("reason",), registry=self.registry
        )
        self.open = Gauge("nodeattest_sidecar_requests_open", "Requests in flight.", registry=self.registry)
        self.turned_away = Counter(
            "nodeattest_sidecar_connections_turned_away", "Connections over the limit.", registry=self.registry
        )


class Sidecar(ProxyServer):
    """Authenticates and forwards requests."""

    def __init__(
        self, settings: SidecarSettings, verifier: CallerVerifier, metrics: Metrics, *, clock: Callable[[], float]
    ) -> None:
        """``clock``: monotonic seconds. Raises ``SettingsError``."""
        tls = None
        if settings.certificate is not None and settings.key is not None:
            tls = ServingCertificate(settings.certificate, settings.key).context
        limits = settings.limits
        most = min(settings.max_user_requests, share_of_owner(limits.connections))
        super().__init__(settings.address, tls, limits, user_requests=most, clock=clock)
        self._settings, self._verifier, self._metrics = settings, verifier, metrics
        self.on_reject = metrics.turned_away.inc
        metrics.open.set_function(lambda: self.in_flight)

    def count_invalid(self, refusal: Refusal, /) -> None:
        self._metrics.refused.labels(refusal.value).inc()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        request_id = secrets.token_hex(8)
        caller: Caller | None = None
        try:
            target = read_target(request.raw_path)
            require_no_token_in_query(target)
            is_open = any(rule.fullmatch(target.path) for rule in self._settings.open_paths)
            caller = None if is_open else await self._caller(request)
            response = await self._forward(request, target, caller, request_id)
        except RefusalError as refused:
            self._metrics.refused.labels(refused.reason).inc()
            self._log_decision(request_id, caller, f"refused, {refused.reason}", f": {refused.detail}")
            if refused.refusal in _CREDENTIALS and self._settings.deny_status is HTTPStatus.FORBIDDEN:
                refused.status, refused.headers = HTTPStatus.FORBIDDEN, {}  # no hint how to authenticate
            raise
        except asyncio.CancelledError:
            self._log_decision(request_id, caller, "ended, the client went away")
            raise
        self._metrics.forwarded.labels(f"{response.status // 100}xx").inc()
        self._log_decision(request_id, caller, "forwarded", f", {response.status}")
        return response

    async def _caller(self, request: web.BaseRequest) -> Caller:
        """Authenticate and authorize; raises ``RefusalError``.

        1. There is one bearer token. 2. It is valid. 3. Its user is allowed.
        """
        # 1
        token = bearer(request.raw_headers)
        # 2
        try:
            caller = await self._verifier.verify(token)
        except Denied as denied:
            detail = f"{denied.reason}, expected {denied.expected}, got {denied.got}"
            raise RefusalError(Refusal.CREDENTIALS_REFUSED, detail, headers={"WWW-Authenticate": _CHALLENGE}) from None
        except Unavailable as unavailable:
            raise RefusalError(Refusal.VERIFICATION_UNAVAILABLE, unavailable.detail) from None
        # 3
        require_allowed(caller, self._settings.users, self._settings.groups)
        return caller

    async def _forward(
        self, request: web.BaseRequest, target: RequestTarget, caller: Caller | None, request_id: str
    ) -> web.StreamResponse:
        settings = self._settings
        seconds = settings.limits.request_seconds
        inject = [(_ID, request_id)]
        if caller is not None:
            inject += identity_headers(caller, groups=settings.send_groups)
            seconds = min(seconds, caller.expires - self._verifier.now())
        options = ForwardOptions(
            upstream=settings.upstream,
            target=target,
            deadline=asyncio.get_running_loop().time() + seconds,
            inject=inject,
            without=CREDENTIALS if caller is None else frozenset(),
        )
        with self.in_progress(None if caller is None else caller.user):
            if caller is not None and isinstance(request.protocol, ServerConnection):
                request.protocol.keep(caller.user)
            return await self.forwarder.forward(request, options)

    def _log_decision(self, request_id: str, caller: Caller | None, kind: str, detail: str = "") -> None:
        """Log a decision: user, audience, key; of the request only our own id."""
        if caller is None:
            self.log_limited(kind, f"request {request_id}: {kind}{detail}; user -")
            return
        who = caller.user, caller.audience, caller.key_id
        log.info("request %s: %s%s; user %a, aud %s, kid %a", request_id, kind, detail, *who)


async def run(
    settings: SidecarSettings,
    verifier: CallerVerifier,
    *,
    unready_reason: Callable[[], str | None],
    tasks: Iterable[Callable[[], Coroutine[None, None, None]]],
) -> None:
    """Serve until cancelled; raises ``SettingsError``.

    ``unready_reason`` returns why no token can be verified now; ``tasks`` run beside the server.
    """
    metrics = Metrics()
    sidecar = Sidecar(settings, verifier, metrics, clock=time.monotonic)
    await run_server(sidecar, tasks, health=settings.health, checks={"verifiers": unready_reason}, metrics=metrics)
