"""A small synchronous client of API servers, for filling and asking them in demos and tests.

Promises: JSON in and out, one connection a request, every refusal an ``ApiRefusal``. It reads kubeconfigs with
client-certificate data or a token; it has no retries, no cache and no watch beyond a bounded one.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast
from urllib.parse import urlencode, urlsplit

import yaml

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, load, map_at, maps_at, text_at

PatchKind = Literal["merge", "json"]
_PATCH_TYPES: Final[Mapping[PatchKind, str]] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}
_TIMEOUT: Final = 30.0  # seconds
_FIRST_ERROR: Final = 400


class ApiRefusal(Exception):
    """The server refused; ``status`` is its Status object."""

    def __init__(self, code: int, status: JsonMap) -> None:
        super().__init__(f"{code} {text_at(status, 'reason')}: {text_at(status, 'message')}")
        self.code = code
        self.status = status

    @property
    def reason(self) -> str:
        """Return the machine-readable reason."""
        return text_at(self.status, "reason")

    @property
    def fields(self) -> list[str]:
        """Return the fields that validation refused."""
        return [text_at(cause, "field") for cause in maps_at(self.status, "details", "causes")]


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to one API server as one user."""

    server: str
    tls: ssl.SSLContext
    headers: Mapping[str, str]
    timeout: float = _TIMEOUT

    @classmethod
    def from_kubeconfig(cls, path: Path, timeout: float = _TIMEOUT) -> Client:
        """Read the current context of a kubeconfig."""
        config = cast("JsonValue", yaml.safe_load(path.read_text(encoding="utf-8")))
        context = _named(config, "contexts", "context", text_at(config, "current-context"))
        cluster = _named(config, "clusters", "cluster", text_at(context, "cluster"))
        user = _named(config, "users", "user", text_at(context, "user"))
        tls = ssl.create_default_context(cadata=_decoded(cluster, "certificate-authority-data").decode())
        if "client-certificate-data" in user:
            pair = _decoded(user, "client-certificate-data") + _decoded(user, "client-key-data")
            load_certificate(tls, pair)
        token = text_at(user, "token")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return cls(text_at(cluster, "server"), tls, headers, timeout)

    def get(self, path: str, **query: str) -> JsonMap:
        """Return an object, or a list as the server sends it."""
        return self.request("GET", path, query=query)

    def find(self, path: str) -> JsonMap | None:
        """Return an object; None where there is none."""
        try:
            return self.get(path)
        except ApiRefusal as refusal:
            if refusal.code != http.HTTPStatus.NOT_FOUND:
                raise
            return None

    def list(self, path: str, **query: str) -> list[JsonMap]:
        """Return the items of a list."""
        return list(maps_at(self.get(path, **query), "items"))

    def create(self, path: str, value: JsonMap, **query: str) -> JsonMap:
        """POST the object to its collection."""
        return self.request("POST", path, value, query=query)

    def ensure(self, path: str, value: JsonMap) -> None:
        """POST the object to its collection; one of its name that is there stays as it is."""
        try:
            self.create(path, value)
        except ApiRefusal as refusal:
            if refusal.reason != "AlreadyExists":
                raise

    def replace(self, path: str, value: JsonMap, **query: str) -> JsonMap:
        """PUT the object."""
        return self.request("PUT", path, value, query=query)

    def patch(self, path: str, patch: JsonValue, kind: PatchKind = "merge", **query: str) -> JsonMap:
        """PATCH the object."""
        return self.request("PATCH", path, patch, content_type=_PATCH_TYPES[kind], query=query)

    def delete(self, path: str, options: JsonMap | None = None) -> JsonMap:
        """DELETE the object or the collection."""
        return self.request("DELETE", path, options)

    def watch(self, path: str, seconds: int = 1, **query: str) -> list[JsonMap]:
        """Return the events that come within some seconds."""
        asked = {**query, "watch": "true", "timeoutSeconds": str(seconds)}
        _, data = self.send("GET", path, query=asked)
        return [map_at(load(line)) for line in data.splitlines() if line]

    def request(
        self, method: str, path: str, body: JsonValue = None, *,
        content_type: str = "application/json", query: Mapping[str, str] | None = None,
    ) -> JsonMap:  # fmt: skip
        """Send one request and return the object that answers it; raises ApiRefusal."""
        _, data = self.send(method, path, body, content_type=content_type, query=query)
        return map_at(load(data))

    def send(
        self, method: str, path: str, body: JsonValue = None, *, content_type: str = "application/json",
        query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:  # fmt: skip
        """Send one request and return code and body as they are; raises ApiRefusal from 400 on."""
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else dump(body)
        sent = {
            **self.headers,
            **({"Content-Type": content_type} if data else {}),
            "Accept": "application/json",
            **(headers or {}),
        }
        where = urlsplit(self.server)
        connection = http.client.HTTPSConnection(
            where.hostname or "", where.port, timeout=self.timeout, context=self.tls
        )
        with closing(connection):
            connection.request(method, target, data, sent)
            answer = connection.getresponse()
            received = answer.read()
        if answer.status >= _FIRST_ERROR:
            raise ApiRefusal(answer.status, _status(received))
        return answer.status, received


def _status(data: bytes) -> JsonMap:
    try:
        return map_at(load(data))
    except ValueError:
        return {"message": data.decode(errors="replace")}


def _named(config: JsonValue, section: str, key: str, name: str) -> JsonMap:
    for item in maps_at(config, section):
        if text_at(item, "name") == name:
            return map_at(item, key)
    return {}


def _decoded(value: JsonMap, key: str) -> bytes:
    return base64.b64decode(text_at(value, key))


def load_certificate(tls: ssl.SSLContext, pair: bytes) -> None:
    """Take a certificate and its key, which ssl reads from a file only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(pair)
        file.flush()
        tls.load_cert_chain(file.name)
