"""What a node asks of its API server: to create, read and watch CertificateSigningRequests, and its configuration.

Promises: TLS 1.2 or newer, verified against the configured CA bundle only, and no kubelet, whose certificate the same
CA signs; no proxy, redirect or credential from the environment; no wait beyond the deadline; every answer becomes a
value, a ``Failure`` (no retry helps) or an ``UnreachableError`` (one may). One connection is kept alive between
requests; a watch that is left early costs it.
Source: Kubernetes API concepts (watch, resourceVersion); standard-library http.client.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Generator
from dataclasses import dataclass, field
from email.utils import mktime_tz, parsedate_tz
from typing import Final
from urllib.parse import urlencode

from nodeattest_authenticator.clock import Deadline
from nodeattest_authenticator.errors import Failure, Local
from nodeattest_authenticator.formats.csr_object import Csr
from nodeattest_authenticator.formats.csr_object import parse as parse_csr
from nodeattest_authenticator.formats.endpoint import Endpoint
from nodeattest_authenticator.formats.strict_json import Fields, FieldsError, parse_object
from nodeattest_discovery import tls
from nodeattest_providers.node_interface import JsonObject

__all__ = ["ForbiddenError", "HttpsApi", "Login", "UnreachableError", "client_context"]

_PATH: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_BODY_LIMIT: Final = 4 << 20
"""Bytes of one answer or watch event; etcd objects are at most 1.5 MiB."""
_WATCH_SECONDS: Final = 30
"""After this a silent watch is opened again, lest a dead connection swallow the certificate."""
_NET_SECONDS: Final = 10
"""For one connect, send or answer; a watch may be silent for longer."""


class UnreachableError(Exception):
    """The API server did not answer, or asked to come again; ``retry_after`` in seconds, None where it did not say."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ForbiddenError(Failure):
    """The API server knows who asks and does not let it. Right after a cluster's start that may still change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who asks: a bootstrap token, or the node by its certificate."""

    username: str
    """As the API server will name us."""
    token: str | None = field(default=None, repr=False)
    certificate_pem: bytes | None = None
    key_pem: bytes | None = field(default=None, repr=False)


def client_context(ca_pem: bytes, login: Login) -> ssl.SSLContext:
    """Make the TLS settings: one trust root, and our certificate when there is one."""
    if login.certificate_pem is None or login.key_pem is None:
        return tls.client_context(ca_pem)
    return tls.client_context(ca_pem, tls.ClientCertificate(login.certificate_pem, login.key_pem))


class HttpsApi:
    """One API server, one login, one deadline."""

    def __init__(
        self,
        endpoint: Endpoint,
        login: Login,
        *,
        ca_pem: bytes,
        deadline: Deadline,
        tls_server_name: str | None = None,
    ) -> None:
        self.username = login.username
        self.ahead: float | None = None
        """By how many seconds our clock was ahead of the server's at its last answer."""
        self._endpoint = endpoint
        self._deadline = deadline
        self._server_name = tls_server_name or endpoint.host
        self._context = client_context(ca_pem, login)
        self._headers = {"Accept": "application/json", "User-Agent": "kubelet-authenticator"}
        if login.token is not None:
            self._headers["Authorization"] = f"Bearer {login.token}"
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def server_certificate(self) -> bytes | None:
        """Return the server's certificate in DER, connecting first if need be."""
        with self._guard():
            peer = self._connect().sock
        return peer.getpeercert(binary_form=True) if isinstance(peer, ssl.SSLSocket) else None

    def create(self, manifest: JsonObject) -> Csr | None:
        """Create a CSR; None when its name is taken."""
        status, body = self._request("POST", _PATH, json.dumps(manifest).encode())
        if status == http.HTTPStatus.CONFLICT:
            return None
        return _csr(_object(status, body))

    def get(self, name: str) -> Csr | None:
        """Read a CSR; None when there is none."""
        status, body = self._request("GET", f"{_PATH}/{name}", None)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        return _csr(_object(status, body))

    def read(self, path: str) -> JsonObject | None:
        """Read any object; None when there is none."""
        status, body = self._request("GET", path, None)
        return None if status == http.HTTPStatus.NOT_FOUND else _object(status, body)

    def watch(self, csr: Csr) -> Generator[Csr | None]:
        """Yield the CSR at each change after ``csr``, None when it is deleted; ends when the server ends the watch."""
        seconds = max(1, min(_WATCH_SECONDS, round(self._deadline.left)))
        query = urlencode(
            {
                "watch": "1",
                "fieldSelector": f"metadata.name={csr.name}",
                "resourceVersion": csr.resource_version,
                "timeoutSeconds": str(seconds),
            }
        )
        with self._guard():
            response = self._send("GET", f"{_PATH}?{query}", None)
            if response.status == http.HTTPStatus.GONE:
                response.read(_BODY_LIMIT)
                return
            if response.status != http.HTTPStatus.OK:
                _object(response.status, response.read(_BODY_LIMIT))
        ended = False
        try:
            while not ended:
                line = self._line(response, seconds)
                if line is None:
                    ended = True
                    return
                kind, document = _event(line)
                if kind == "DELETED":
                    yield None
                elif kind in {"ADDED", "MODIFIED"}:
                    yield _csr(document)
                elif kind == "ERROR":  # mostly 410: the caller reads the object and watches from there
                    return
        finally:
            response.close()
            if not response.isclosed() or not ended:
                self.close()

    def _line(self, response: http.client.HTTPResponse, seconds: float) -> bytes | None:
        with self._guard():
            self._patience(min(self._deadline.left, seconds + _NET_SECONDS))
            line = response.readline(_BODY_LIMIT)
        if not line:
            return None
        if not line.endswith(b"\n"):
            raise UnreachableError("a watch event was cut off")
        return line

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        with self._guard():
            response = self._send(method, path, body)
            data = response.read(_BODY_LIMIT)
            if not response.isclosed():
                response.close()
                self.close()
            if len(data) >= _BODY_LIMIT:
                raise UnreachableError("the answer is too large")
        return response.status, data

    def _send(self, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        connection = self._connect()
        self._patience(min(self._deadline.left, _NET_SECONDS))
        connection.request(method, self._endpoint.prefix + path, body=body, headers=headers)
        response = connection.getresponse()
        self._note_time(response)
        if (
            response.status == http.HTTPStatus.TOO_MANY_REQUESTS
            or response.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
        ):
            response.read(_BODY_LIMIT)
            pause = _seconds(response.getheader("Retry-After"))
            raise UnreachableError(f"{self._endpoint.url}: HTTP status {response.status}", pause)
        return response

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None or self._connection.sock is None:
            patience = max(0.01, min(self._deadline.left, _NET_SECONDS))
            plain = socket.create_connection((self._endpoint.host, self._endpoint.port), timeout=patience)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                secure = self._context.wrap_socket(plain, server_hostname=self._server_name)
                _check_is_no_node(self._endpoint, secure)
            except BaseException:  # the watchdog may end it here, too
                plain.close()
                raise
            connection = http.client.HTTPConnection(self._endpoint.host, self._endpoint.port)
            connection.auto_open = 0
            connection.sock = secure
            self._connection = connection
        return self._connection

    def _patience(self, seconds: float) -> None:
        peer = self._connection.sock if self._connection is not None else None
        if isinstance(peer, ssl.SSLSocket):
            peer.settimeout(max(0.01, seconds))

    def _note_time(self, response: http.client.HTTPResponse) -> None:
        date = parsedate_tz(response.getheader("Date") or "")
        if date is not None:
            with contextlib.suppress(ValueError, OverflowError):
                self.ahead = self._deadline.clock.now() - mktime_tz(date)

    @contextlib.contextmanager
    def _guard(self) -> Generator[None]:
        """Translate foreign exceptions: the one place where those of the network end."""
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise _not_trusted(self._endpoint, error.verify_message) from None
        except TimeoutError:
            self.close()
            raise UnreachableError(f"{self._endpoint.url} gave no answer in time") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnreachableError(f"{self._endpoint.url}: {_said(error)}") from None
        except (UnreachableError, Failure):
            self.close()
            raise


def _event(line: bytes) -> tuple[str, JsonObject]:
    try:
        fields = Fields(parse_object(line))
        return fields.required("type"), fields.raw_object("object")
    except FieldsError as error:
        raise UnreachableError(f"a watch event makes no sense: {error}") from None


def _csr(document: JsonObject) -> Csr:
    try:
        return parse_csr(document)
    except FieldsError as error:
        raise UnreachableError(f"the answer makes no sense: {error}") from None


def _object(status: int, body: bytes) -> JsonObject:
    try:
        document = parse_object(body)
    except FieldsError:
        document = {}
    if status in {http.HTTPStatus.OK, http.HTTPStatus.CREATED}:
        return document
    message = document.get("message")
    said = message[:300] if isinstance(message, str) else f"HTTP status {status}"
    if status == http.HTTPStatus.UNAUTHORIZED:
        raise Failure(
            Local.CREDENTIAL_REJECTED,
            "the API server does not accept the bootstrap token or the node's certificate",
            remedy="join again with a token that has not expired and has the usage authentication (--token-file)",
        )
    if status == http.HTTPStatus.FORBIDDEN:
        remedy = "bind system:node-bootstrapper to the group of the bootstrap token (the controller does this)"
        raise ForbiddenError(Local.REQUEST_REFUSED, f"the API server forbids it: {said}", remedy=remedy)
    raise Failure(Local.REQUEST_REFUSED, f"the API server refuses the request: {said}", remedy="see its message")


def _check_is_no_node(endpoint: Endpoint, peer: ssl.SSLSocket) -> None:
    """Refuse a kubelet's certificate, and hang up."""
    if tls.is_kubelet_certificate(peer):
        peer.close()
        raise _not_trusted(endpoint, "it is a kubelet's, not an API server's")


def _not_trusted(endpoint: Endpoint, fault: str) -> Failure:
    return Failure(
        Local.SERVER_NOT_TRUSTED,
        f"the certificate of the API server at {endpoint.url} does not pass: {fault}",
        remedy="check the CA (join --ca-file), the server's name (--tls-server-name) and this machine's clock",
    )


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or 'no reason given'}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return f"its answer is no HTTP: {type(error).__name__}"


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
