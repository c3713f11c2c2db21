"""The paths of issuers' documents, the prepared response of each, and the answers to requests.

Promises: the path alone decides, never the ``Host`` header: a cache in front may use the path as its key. Responses are
made when keys change, and no request causes a read. Both documents of an issuer change at once; two issuers never share
a path; a path without a document yet is distinct from an unknown path.
GET and HEAD, with or without a final slash; query and ``Accept`` are ignored (kube-apiserver refuses HEAD with 405, and
``Accept: application/json`` on the key set with 406, which some relying parties send). Every other path is 404.
Source: OpenID Connect Discovery 1.0 §4; Kubernetes pkg/routes/openidmetadata.go; RFC 9110 §8.8.3, §13.1.2 and §15.5.6.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import Counter, Gauge

from nodeattest_identity.issuer.documents import (
    CONFIGURATION_TYPE,
    JWKS_TYPE,
    Documents,
    configuration_url,
    default_jwks_uri,
    issuer_url,
    jwks_url,
)
from nodeattest_serving.health import CounterFunc
from nodeattest_serving.program import ProgramMetrics
from nodeattest_serving.replies import Reply, refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerPaths:
    """An issuer and the paths of its documents."""

    issuer: str
    jwks_uri: str
    """The key set's URL in the configuration."""
    configuration_path: str
    jwks_path: str
    """Where the key set is served here; ``jwks_uri`` may lead to another server."""


def issuer_paths(issuer: str, jwks_uri: str | None = None) -> IssuerPaths:
    """Return the paths of an issuer, without a final slash; raises ``UrlError``."""
    own = default_jwks_uri(issuer_url(issuer))
    url = own if jwks_uri is None else jwks_url(jwks_uri)
    here = url if _origin(url) == _origin(issuer) and "?" not in url else own
    return IssuerPaths(
        issuer=issuer,
        jwks_uri=url,
        configuration_path=urlsplit(configuration_url(issuer)).path,
        jwks_path=urlsplit(here).path.removesuffix("/"),
    )


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


_ETAG_BYTES: Final = 16
"""Of the SHA-256 of a document."""


class RouteConflictError(ValueError):
    """A path is already used by another document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDocument:
    """The prepared responses of one document."""

    full: Reply
    unchanged: Reply
    """304, for a client that has it already."""
    etag: str


class RouteTable:
    """Prepared documents by path, without a final slash."""

    def __init__(self, *, max_age: int, secure: bool) -> None:
        """``max_age``: seconds that caches may hold a document. ``secure``: send Strict-Transport-Security."""
        self._headers: Mapping[str, str] = {
            "Cache-Control": f"public, max-age={max_age}",
            **({"Strict-Transport-Security": "max-age=31536000"} if secure else {}),
        }
        self._documents: dict[str, PreparedDocument | None] = {}
        """None: nothing to serve there at the moment."""

    def open(self, paths: IssuerPaths) -> None:
        """Reserve the paths of an issuer; raises ``RouteConflictError``."""
        both = paths.configuration_path, paths.jwks_path
        for path in both:
            if path in self._documents:
                raise RouteConflictError(f"expected issuers with paths of their own, got two under {path}")
        if both[0] == both[1]:
            raise RouteConflictError(f"expected a key set beside the configuration, got both under {both[0]}")
        for path in both:
            self._documents[path] = None

    def close(self, paths: IssuerPaths) -> None:
        """Remove an issuer."""
        for path in (paths.configuration_path, paths.jwks_path):
            self._documents.pop(path, None)

    def publish(self, paths: IssuerPaths, documents: Documents) -> None:
        """Serve these documents from now on."""
        self._documents[paths.configuration_path] = self._prepare(documents.configuration, CONFIGURATION_TYPE)
        self._documents[paths.jwks_path] = self._prepare(documents.jwks, JWKS_TYPE)

    def withdraw(self, paths: IssuerPaths) -> None:
        """Stop serving an issuer's documents, but keep its paths."""
        self._documents[paths.configuration_path] = self._documents[paths.jwks_path] = None

    def find(self, path: str) -> PreparedDocument | None:
        """Return the document of a path; None while it has none. Raises ``KeyError`` for an unknown path."""
        return self._documents[path.removesuffix("/")]

    def _prepare(self, body: bytes, content_type: str) -> PreparedDocument:
        digest = hashlib.sha256(body).digest()[:_ETAG_BYTES]
        etag = f'"{base64.urlsafe_b64encode(digest).rstrip(b"=").decode()}"'
        headers = {"Content-Type": content_type, "ETag": etag, **self._headers}
        return PreparedDocument(
            full=Reply(status=HTTPStatus.OK, body=body, headers=headers),
            unchanged=Reply(status=HTTPStatus.NOT_MODIFIED, body=b"", headers=headers),
            etag=etag,
        )


_MAX_CONDITIONS: Final = 1024
"""Characters of ``If-None-Match`` that are read; an entity tag of ours has 18."""
_METHODS: Final = ("GET", "HEAD")
_REFUSED_METHOD: Final = refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ", ".join(_METHODS)})
_REFUSED_PATH: Final = refusal(HTTPStatus.NOT_FOUND)
_REFUSED_BODY: Final = refusal(HTTPStatus.BAD_REQUEST)
_NOT_YET: Final = refusal(HTTPStatus.SERVICE_UNAVAILABLE)


_STATUSES: Final = (
    HTTPStatus.OK,
    HTTPStatus.NOT_MODIFIED,
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.SERVICE_UNAVAILABLE,
)


class Metrics(ProgramMetrics):
    """Counters of one issuer server."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = Counter("nodeattest_issuer_requests", "Responses by status.", ("code",), registry=self.registry)
        self._by_status = {status: self._answers.labels(str(status.value)) for status in _STATUSES}
        self.turned_away = CounterFunc(
            "nodeattest_issuer_connections_turned_away", "Connections over a limit.", registry=self.registry
        )
        self._reads = Counter(
            "nodeattest_issuer_reads",
            "Attempts to read an issuer's keys, by outcome.",
            ("issuer", "outcome"),
            registry=self.registry,
        )
        self._read_at = Gauge(
            "nodeattest_issuer_keys_read_timestamp_seconds",
            "When an issuer's keys were last read.",
            ("issuer",),
            registry=self.registry,
        )
        self._keys = Gauge(
            "nodeattest_issuer_keys",
            "Keys that are served of an issuer; 0 if none.",
            ("issuer",),
            registry=self.registry,
        )

    def answered(self, status: HTTPStatus) -> None:
        """Count a response."""
        self._by_status[status].inc()

    def read(self, issuer: str, *, keys: int, at: float) -> None:
        """Count a successful read, at seconds since the epoch."""
        self._reads.labels(issuer, "read").inc()
        self._read_at.labels(issuer).set(at)
        self._keys.labels(issuer).set(keys)

    def failed(self, issuer: str, outcome: str) -> None:
        """Count a failed read; ``outcome`` is of a closed set."""
        self._reads.labels(issuer, outcome).inc()
        self._read_at.labels(issuer)
        self._keys.labels(issuer)

    def withdrawn(self, issuer: str) -> None:
        """Note that an issuer's documents are no longer served."""
        self._keys.labels(issuer).set(0)

    def forget(self, issuer: str) -> None:
        """Remove the series of an issuer."""
        for metric in (self._reads, self._read_at, self._keys):
            metric.remove_by_labels({"issuer": issuer})


class IssuerService:
    """Responds from a route table."""

    def __init__(self, routes: RouteTable, metrics: Metrics) -> None:
        self._routes = routes
        self._metrics = metrics

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        """Respond to a request; the client does not matter."""
        del client
        reply = self._reply(request)
        self._metrics.answered(reply.status)
        return reply

    def _reply(self, request: web.BaseRequest) -> Reply:
        """Decide.

        1. The path is a document's. 2. GET or HEAD. 3. No body. 4. The document exists. 5. The client does not have it.
        """
        # 1
        try:
            document = self._routes.find(request.raw_path.partition("?")[0])
        except KeyError:
            return _REFUSED_PATH
        # 2
        if request.method not in _METHODS:
            return _REFUSED_METHOD
        # 3
        if request.body_exists:
            return _REFUSED_BODY
        # 4
        if document is None:
            return _NOT_YET
        # 5
        if matches(document.etag, request.headers.getall("If-None-Match", [])):
            return document.unchanged
        return document.full


def matches(etag: str, conditions: Sequence[str]) -> bool:
    """Whether ``If-None-Match`` names this entity, by weak comparison (RFC 9110 §8.8.3.2).

    One of more bytes than a client has answers of ours to name counts for none: the whole document is right, too.
    """
    if len(conditions) > _MAX_CONDITIONS or sum(map(len, conditions)) > _MAX_CONDITIONS:
        return False
    for condition in conditions:
        for candidate in condition.split(","):
            if candidate.strip().removeprefix("W/") in {etag, "*"}:
                return True
    return False
