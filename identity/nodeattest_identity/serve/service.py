"""The paths of issuers' documents, and the answers to requests for them.

Promises: the path alone decides, never the ``Host`` header: a cache in front may use the path as its key. Responses are
made when keys change, and no request causes a read. Both documents of an issuer change at once; two issuers never share
a path; a path without a document yet is distinct from an unknown path.
GET and HEAD, with or without a final slash; query and ``Accept`` are ignored (kube-apiserver refuses HEAD with 405, and
``Accept: application/json`` on the key set with 406, which some relying parties send). Every other path is 404.
Source: OpenID Connect Discovery 1.0 §4; Kubernetes pkg/routes/openidmetadata.go; RFC 9110 §8.8.3, §13.1.2 and §15.5.6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
from nodeattest_serving.http_server import Reply, refusal
from nodeattest_serving.program import CounterFunc, ProgramMetrics

_MAX_CONDITIONS: Final = 1024
"""Characters of ``If-None-Match`` that are read; an entity tag of ours has 34."""
_METHODS: Final = ("GET", "HEAD")


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
    here = url if urlsplit(url).netloc.lower() == urlsplit(issuer).netloc.lower() and "?" not in url else own
    return IssuerPaths(
        issuer=issuer,
        jwks_uri=url,
        configuration_path=urlsplit(configuration_url(issuer)).path,
        jwks_path=urlsplit(here).path.removesuffix("/"),
    )


class RouteConflictError(ValueError):
    """A path is already used by another document."""


class RouteTable:
    """Documents by path, without a final slash."""

    def __init__(self, *, max_age: int, secure: bool) -> None:
        """``max_age``: seconds that caches may hold a document. ``secure``: send Strict-Transport-Security."""
        self._headers = {"Cache-Control": f"public, max-age={max_age}"}
        if secure:
            self._headers["Strict-Transport-Security"] = "max-age=31536000"
        self._documents: dict[str, Reply | None] = {}
        """None: nothing to serve there at the moment."""

    def open(self, paths: IssuerPaths) -> None:
        """Reserve the paths of an issuer; raises ``RouteConflictError``."""
        both = paths.configuration_path, paths.jwks_path
        for path in both:
            if path in self._documents:
                raise RouteConflictError(f"expected issuers with paths of their own, got two under {path}")
        if both[0] == both[1]:
            raise RouteConflictError(f"expected a key set beside the configuration, got both under {both[0]}")
        self._documents |= dict.fromkeys(both)

    def close(self, paths: IssuerPaths) -> None:
        """Remove an issuer."""
        for path in (paths.configuration_path, paths.jwks_path):
            self._documents.pop(path, None)

    def publish(self, paths: IssuerPaths, documents: Documents) -> None:
        """Serve these documents from now on."""
        self._documents[paths.configuration_path] = self._reply(documents.configuration, CONFIGURATION_TYPE)
        self._documents[paths.jwks_path] = self._reply(documents.jwks, JWKS_TYPE)

    def withdraw(self, paths: IssuerPaths) -> None:
        """Stop serving an issuer's documents, but keep its paths."""
        self._documents[paths.configuration_path] = self._documents[paths.jwks_path] = None

    def answer(self, request: web.BaseRequest) -> Reply:
        """Answer a request.

        1. The path is a document's. 2. GET or HEAD. 3. No body. 4. The document exists. 5. The client does not have it.
        """
        # 1
        path = request.raw_path.partition("?")[0].removesuffix("/")
        if path not in self._documents:
            return refusal(HTTPStatus.NOT_FOUND)
        # 2
        if request.method not in _METHODS:
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ", ".join(_METHODS)})
        # 3
        if request.body_exists:
            return refusal(HTTPStatus.BAD_REQUEST)
        # 4
        document = self._documents[path]
        if document is None:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE)
        # 5
        if matches(document.headers["ETag"], request.headers.getall("If-None-Match", [])):
            return Reply(status=HTTPStatus.NOT_MODIFIED, body=b"", headers=document.headers)
        return document

    def _reply(self, body: bytes, content_type: str) -> Reply:
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {"Content-Type": content_type, "ETag": etag, **self._headers}
        return Reply(status=HTTPStatus.OK, body=body, headers=headers)


def matches(etag: str, conditions: Sequence[str]) -> bool:
    """Whether ``If-None-Match`` names this entity, by weak comparison (RFC 9110 §8.8.3.2).

    One that is too long counts for none: the whole document is right, too.
    """
    if len(conditions) > _MAX_CONDITIONS or sum(map(len, conditions)) > _MAX_CONDITIONS:
        return False
    candidates = (candidate for condition in conditions for candidate in condition.split(","))
    return any(candidate.strip().removeprefix("W/") in {etag, "*"} for candidate in candidates)


class Metrics(ProgramMetrics):
    """Counters of one issuer server."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Counter("nodeattest_issuer_requests", "Responses by status.", ("code",), registry=self.registry)
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

    def read(self, issuer: str, *, keys: int, at: float) -> None:
        """Count a successful read, at seconds since the epoch."""
        self._reads.labels(issuer, "read").inc()
        self._read_at.labels(issuer).set(at)
        self._keys.labels(issuer).set(keys)

    def failed(self, issuer: str, outcome: str, *, withdrawn: bool) -> None:
        """Count a failed read; ``outcome`` is of a closed set. ``withdrawn``: the documents are no longer served."""
        self._reads.labels(issuer, outcome).inc()
        self._read_at.labels(issuer)
        keys = self._keys.labels(issuer)
        if withdrawn:
            keys.set(0)

    def forget(self, issuer: str) -> None:
        """Remove the series of an issuer."""
        for metric in (self._reads, self._read_at, self._keys):
            metric.remove_by_labels({"issuer": issuer})
