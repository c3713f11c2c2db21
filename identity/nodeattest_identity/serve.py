"""Serves issuers' documents from a folder that ``issuer publish`` or the controller ``issuer`` writes.

A file is served only if it is what its path says: a configuration of the issuer that this path belongs to, or a key set
without a private member. The path alone decides: a cache in front may use it as its key.
Source: OpenID Connect Discovery 1.0 §4; Kubernetes pkg/routes/openidmetadata.go; RFC 9110 §8.8.3, §13.1.2 and §15.5.6.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import Counter

from nodeattest_identity.issuer import documents as docs
from nodeattest_identity.issuer.keys import KeysError, read_jwks
from nodeattest_identity.publish.store import DirectoryStore, PublishError
from nodeattest_kube.periodic import RateLimiter
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, SettingsError
from nodeattest_serving.http_server import Reply, refusal
from nodeattest_serving.program import Listener, ProgramMetrics, run_server
from nodeattest_serving.tls import ServingCertificate

_MAX_AGE: Final = 7 * 24 * 3600
_METHODS: Final = ("GET", "HEAD")
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,254}", re.ASCII)
"""No hidden file, so no state of a publisher, no way up, and no name that is too long for a file."""
_LIMITS: Final = ConnectionLimits(
    connections=512, connections_of_client=256, connection_seconds=600.0, idle_seconds=30.0
)
"""A cache in front opens many connections from few addresses; each costs some 300 KiB with TLS."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """All settings."""

    address: BindAddress
    directory: Path
    issuer_base: str
    """URL of the folder: the issuer ``<issuer_base>/a/b`` has its documents in ``a/b``."""
    certificate: Path | None = None
    key: Path | None = None
    """Both, or plain HTTP on a loopback address."""
    health: BindAddress | None = None
    max_age: int = docs.MAX_AGE
    """Seconds that caches may hold a document: a new key must be published so long before it signs."""

    def __post_init__(self) -> None:
        try:
            docs.issuer_url(self.issuer_base)
        except docs.UrlError as error:
            raise SettingsError(f"--issuer-base: {error}") from None
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("expected --tls-cert-file and --tls-private-key-file together, got one of them")
        if self.certificate is None and not self.address.is_loopback:
            raise SettingsError(
                f"expected --tls-cert-file and --tls-private-key-file, or a --bind-address that only this machine "
                f"reaches, such as 127.0.0.1:8080 behind a front that ends TLS, got {self.address} alone"
            )
        if not 0 <= self.max_age <= _MAX_AGE:
            raise SettingsError(f"--max-age: expected 0 to {_MAX_AGE} seconds, got {self.max_age}")


class Metrics(ProgramMetrics):
    """Counters of one issuer server."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Counter("nodeattest_issuer_requests", "Responses by status.", ("code",), registry=self.registry)
        self.turned_away = Counter(
            "nodeattest_issuer_connections_turned_away", "Connections over a limit.", registry=self.registry
        )


class DocumentFolder:
    """The documents below one URL."""

    def __init__(self, settings: ServeSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = settings.directory
        self._store = DirectoryStore(settings.directory)
        self._base = settings.issuer_base.removesuffix("/")
        self._headers = {"Cache-Control": f"public, max-age={settings.max_age}"}
        if settings.certificate is not None:
            self._headers["Strict-Transport-Security"] = "max-age=31536000"
        self._lines = RateLimiter(burst=20, per_second=0.1, clock=clock)
        self._valid: dict[str, str | None] = {}
        """Version of each file that passed validation."""

    def unready_reason(self) -> str | None:
        return None if self._directory.is_dir() else f"--dir: expected a folder, got none at {self._directory}"

    async def reply(self, request: web.BaseRequest) -> Reply:
        """Answer a request.

        1. The path is one of a document. 2. There is a file. 3. It is what its path says.
        """
        # 1
        root = urlsplit(self._base).path + "/"
        path = request.raw_path.partition("?")[0].removesuffix("/")
        name = path.removeprefix(root)
        is_configuration = f"/{name}".endswith(docs.CONFIGURATION_PATH)
        plain = f"/{name}".removesuffix(docs.CONFIGURATION_PATH).split("/")[1:]
        if not path.startswith(root) or not name or not all(map(_SEGMENT.fullmatch, plain)):
            return refusal(HTTPStatus.NOT_FOUND)
        try:
            # 2
            stored = await self._store.read(name)
            if stored is None:
                return refusal(HTTPStatus.NOT_FOUND)
            # 3
            if self._valid.get(name) != stored.e_tag:
                self._validate(name, stored.body, is_configuration=is_configuration)
                self._valid[name] = stored.e_tag
        except (PublishError, docs.DocumentError, KeysError) as error:
            if self._lines.take(""):
                log.warning("not serving a file: %s: %s", name, error)
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE)
        kind = docs.CONFIGURATION_TYPE if is_configuration else docs.JWKS_TYPE
        return document_reply(request, stored.body, {"Content-Type": kind, **self._headers})

    def _validate(self, name: str, body: bytes, *, is_configuration: bool) -> None:
        if not is_configuration:
            read_jwks(body)
            return
        url = docs.configuration_url(docs.parse_configuration(body).issuer)
        if url != f"{self._base}/{name}":
            raise docs.DocumentError(
                f"expected the configuration of the issuer at {self._base}/{name}, got that at {url}"
            )


def document_reply(request: web.BaseRequest, body: bytes, headers: Mapping[str, str]) -> Reply:
    """Answer a request for a document: 405, 400 for a request with a body, 304 if the client has it, or 200."""
    if request.method not in _METHODS:
        return refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ", ".join(_METHODS)})
    if request.body_exists:
        return refusal(HTTPStatus.BAD_REQUEST)
    etag = hashlib.sha256(body).hexdigest()[:32]
    headers = {"ETag": f'"{etag}"', **headers}
    if any(each.value in {etag, "*"} for each in request.if_none_match or ()):
        return Reply(status=HTTPStatus.NOT_MODIFIED, body=b"", headers=headers)
    return Reply(status=HTTPStatus.OK, body=body, headers=headers)


async def run(settings: ServeSettings) -> None:
    folder, metrics, tls = DocumentFolder(settings), Metrics(), None
    if reason := folder.unready_reason():
        raise SettingsError(reason)

    async def handle(request: web.BaseRequest, _client: str) -> Reply:
        reply = await folder.reply(request)
        metrics.answers.labels(str(reply.status.value)).inc()
        return reply

    if settings.certificate is not None and settings.key is not None:
        tls = ServingCertificate(settings.certificate, settings.key).context
    listener = Listener(handle, settings.address, tls, _LIMITS)
    listener.on_reject = metrics.turned_away.inc
    checks = {"documents": folder.unready_reason}
    await run_server(listener, (), health=settings.health, checks=checks, metrics=metrics)
