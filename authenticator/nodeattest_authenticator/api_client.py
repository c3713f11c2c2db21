"""The node's client of its API server: creates, reads and watches CertificateSigningRequests, and reads other objects.

The server is verified against the configured CA bundle only, and nothing waits beyond the deadline. Each answer becomes
a value, an ``AgentError`` (a retry does not help) or an ``UnreachableError`` (a retry may help).
Out of scope: the limits of one exchange (``nodeattest_discovery.node.https``) and retries (``csr_submission``).
Source: certificates.k8s.io/v1; Kubernetes API concepts (watch, resourceVersion); RFC 9110 §10.2.3 (Retry-After).
"""

from __future__ import annotations

import binascii
import contextlib
import http
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from email.utils import mktime_tz, parsedate_tz
from functools import partial
from typing import Final, TypeVar
from urllib.parse import urlencode

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats.client_go import Cluster
from nodeattest_authenticator.formats.strict_json import FieldsError, parse_config_object
from nodeattest_authenticator.settings import Settings
from nodeattest_discovery.node import https
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.node.https import HttpsClient, HttpsError, Response, UntrustedServerError
from nodeattest_discovery.tls import ClientCertificate
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import ParseError
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_REASON,
    ANNOTATION_SUPPORTED_VERSIONS,
    SignerName,
    printable,
)
from nodeattest_providers.node_interface import JsonObject

FIRST_BOOT: Final = 1200
"""Seconds to retry on first boot: longer than clouds take, and a little longer than Cluster API's tokens live."""
_PAUSE: Final = 10.0
"""Minimum seconds between two attempts. Up to as many are added at random, so that machines do not retry together."""
T = TypeVar("T")


def retry_until(attempt: Callable[[], T], deadline: Deadline, *, random: Callable[[], float]) -> T:
    """Retry while the failure is temporary and the deadline leaves time for another attempt. Raises ``AgentError``."""
    while True:
        try:
            return attempt()
        except AgentError as failure:
            pause = _PAUSE * (1 + random())
            if failure.kind is not FailureKind.TEMPORARY or deadline.left < pause:
                raise
            deadline.waits_for("another attempt", f"another attempt: {failure}")
            deadline.sleep(pause)


_PATH: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_BODY_LIMIT: Final = 4 << 20
"""Bytes of one answer or watch event; etcd objects are at most 1.5 MiB."""
_WATCH_SECONDS: Final = 30
"""Seconds after which a silent watch is reopened, in case its connection is dead."""


class UnreachableError(Exception):
    """The API server did not answer, or asked to retry. ``retry_after``: seconds, or None if it did not say."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ForbiddenError(AgentError):
    """The API server answered 403. Shortly after a cluster's start this may be temporary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of a request: a bootstrap token or the node's certificate."""

    username: str
    """The username by which the API server knows the credentials."""
    token: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None


class ApiServerClient:
    """A client for one API server with one identity and one deadline. It keeps one connection alive."""

    def __init__(self, cluster: Cluster, credentials: Credentials, deadline: Deadline) -> None:
        self.username = credentials.username
        self.clock_skew: float | None = None
        """Seconds by which this machine's clock was ahead of the server's at the last answer."""
        self._endpoint = cluster.endpoint
        self._deadline = deadline
        headers = {"User-Agent": "kubelet-authenticator"}
        if credentials.token is not None:
            headers["Authorization"] = f"Bearer {credentials.token}"
        trust = https.Verified(
            ca_pem=cluster.ca_pem, server_name=cluster.tls_server_name, client=credentials.certificate
        )
        self._https = HttpsClient(cluster.endpoint, trust, deadline, headers=headers)

    def close(self) -> None:
        """Close the connection."""
        self._https.close()

    def server_certificate(self) -> bytes | None:
        """Return the server's certificate in DER. Connect first if necessary."""
        with self._errors():
            return self._https.server_certificate()

    def create(self, manifest: JsonObject) -> Csr | None:
        """Create a CSR. Return None if its name is taken."""
        answer = self._request("POST", _PATH, json.dumps(manifest).encode())
        return None if answer.status == http.HTTPStatus.CONFLICT else _csr(_object(answer))

    def get(self, name: str) -> Csr | None:
        """Read a CSR. Return None if it does not exist."""
        document = self.read(f"{_PATH}/{name}")
        return None if document is None else _csr(document)

    def read(self, path: str) -> JsonObject | None:
        """Read any object. Return None if it does not exist."""
        answer = self._request("GET", path)
        return None if answer.status == http.HTTPStatus.NOT_FOUND else _object(answer)

    def watch(self, csr: Csr) -> Generator[Csr | None]:
        """Yield the CSR at each change after ``csr``, or None if it is deleted, until the server ends the watch."""
        seconds = max(1, min(_WATCH_SECONDS, round(self._deadline.left)))
        query = urlencode(
            {
                "watch": "1",
                "fieldSelector": f"metadata.name={csr.name}",
                "resourceVersion": csr.resource_version,
                "timeoutSeconds": str(seconds),
            }
        )
        path = f"{self._endpoint.prefix}{_PATH}?{query}"
        with (
            self._errors(),
            self._https.stream(path, seconds=seconds + https.SECONDS, line_limit=_BODY_LIMIT) as answer,
        ):
            if answer.status != http.HTTPStatus.OK:
                whole = self._checked(answer.whole())
                if whole.status != http.HTTPStatus.GONE:
                    _object(whole)
                return
            for line in answer.lines:
                kind, document = _event(line)
                if kind == "DELETED":
                    yield None
                elif kind in {"ADDED", "MODIFIED"}:
                    yield _csr(document)
                elif kind == "ERROR":  # usually 410 Gone: the caller reads the object and watches again
                    return

    def _request(self, method: str, path: str, body: bytes | None = None) -> Response:
        with self._errors():
            answer = self._https.request(method, self._endpoint.prefix + path, body=body, limit=_BODY_LIMIT)
        return self._checked(answer)

    def _checked(self, answer: Response) -> Response:
        """Record the clock skew. Raises ``UnreachableError`` for 429 and 5xx."""
        date = parsedate_tz(answer.header("date") or "")
        if date is not None:
            with contextlib.suppress(ValueError, OverflowError):
                self.clock_skew = self._deadline.clock.now() - mktime_tz(date)
        if answer.status == http.HTTPStatus.TOO_MANY_REQUESTS or answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            said = f"{self._endpoint.url}: HTTP status {answer.status}"
            raise UnreachableError(said, _seconds(answer.header("retry-after")))
        return answer

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        """Convert errors of the HTTPS client."""
        try:
            yield
        except UntrustedServerError as error:
            raise AgentError(
                AgentReason.SERVER_NOT_TRUSTED,
                f"the certificate of the API server at {self._endpoint.url} is not trusted: {error}",
                remedy="check the CA (join --ca-file), the server's name (--tls-server-name) and this machine's clock",
            ) from None
        except HttpsError as error:
            raise UnreachableError(f"{self._endpoint.url}: {error}") from None


def _event(line: bytes) -> tuple[str, JsonObject]:
    try:
        event = parse_config_object(line)
    except FieldsError as error:
        raise UnreachableError(f"invalid watch event: {error}") from None
    return text(event, "type"), mapping(event, "object")


def _csr(document: JsonObject) -> Csr:
    try:
        return parse_csr_object(document)
    except FieldsError as error:
        raise UnreachableError(f"invalid answer: {error}") from None


def _object(answer: Response) -> JsonObject:
    try:
        document = parse_config_object(answer.body)
    except FieldsError:
        document = {}
    if answer.status in {http.HTTPStatus.OK, http.HTTPStatus.CREATED}:
        return document
    message = text(document, "message")
    said = printable(message, 300) if message else f"HTTP status {answer.status}"
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        raise AgentError(
            AgentReason.CREDENTIAL_REJECTED,
            "the API server does not accept the bootstrap token or the node's certificate",
            remedy="join again with a token that has not expired and has the usage authentication (--token-file)",
        )
    if answer.status == http.HTTPStatus.FORBIDDEN:
        remedy = "bind system:node-bootstrapper to the group of the bootstrap token (the controller does this)"
        raise ForbiddenError(AgentReason.REQUEST_REFUSED, f"the API server forbids it: {said}", remedy=remedy)
    raise AgentError(
        AgentReason.REQUEST_REFUSED, f"the API server refuses the request: {said}", remedy="see its message"
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


_SECONDS: Final = 3.0
"""Seconds for one server. All servers together get half of the remaining time."""


def select_server(settings: Settings, deadline: Deadline, log: Callable[[str], None]) -> Settings:
    """Return the settings with the first server that answers and is trusted, or unchanged if none answers."""
    discovery = settings.discovery
    if discovery is None or set(discovery.servers) <= {settings.endpoint}:
        return settings
    endpoints = tuple(dict.fromkeys((settings.endpoint, *discovery.servers)))
    cluster = settings.cluster
    end = Deadline.after(deadline.clock, deadline.left / 2)
    for endpoint in endpoints:
        limit = Deadline.after(deadline.clock, min(_SECONDS, end.left))
        fault = "there is no time left" if end.passed else probe(replace(cluster, endpoint=endpoint), limit)
        if fault is None:
            return replace(settings, cluster=replace(cluster, endpoint=endpoint))
        log(f"skipping the API server {endpoint.url}: {fault}")
    return settings


def probe(cluster: Cluster, deadline: Deadline) -> str | None:
    """Return why a server cannot be used, or None if it answers and is trusted. No credential is sent."""
    with contextlib.closing(ApiServerClient(cluster, Credentials(username=""), deadline)) as api:
        try:
            api.server_certificate()
        except UnreachableError as error:
            return str(error)
        except AgentError as failure:
            return failure.message
    return None


_REFUSING = ("Denied", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Csr:
    """The fields of a CertificateSigningRequest that the agent uses, at one resource version."""

    name: str
    uid: str
    resource_version: str
    request: bytes = field(repr=False)
    signer_name: str
    username: str
    challenge: str | None = field(repr=False)
    waiting: str | None
    """Why the controller has not decided yet."""
    supported_versions: str | None
    provider_id: str | None
    """The provider ID that the controller asks for. Anyone with access to annotations can write it."""
    refused: tuple[str, str] | None
    """Reason and message of the refusal."""
    certificate: bytes | None = field(repr=False)
    """PEM."""


def parse_csr_object(document: JsonObject) -> Csr:
    """Parse a CertificateSigningRequest. Raises ``FieldsError``."""
    annotation, metadata = partial(text, document, "metadata", "annotations"), partial(text, document, "metadata")
    certificate = text(document, "status", "certificate")
    try:
        csr = Csr(
            name=metadata("name"),
            uid=metadata("uid"),
            resource_version=metadata("resourceVersion"),
            request=decode_base64(text(document, "spec", "request")),
            signer_name=text(document, "spec", "signerName"),
            username=text(document, "spec", "username"),
            challenge=annotation(ANNOTATION_CHALLENGE) or None,
            waiting=annotation(ANNOTATION_REASON) or None,
            supported_versions=annotation(ANNOTATION_SUPPORTED_VERSIONS) or None,
            provider_id=annotation(ANNOTATION_PROVIDER_ID) or None,
            refused=_refusal(items(document, "status", "conditions")),
            certificate=decode_base64(certificate) if certificate else None,
        )
    except ParseError:
        raise FieldsError("a CertificateSigningRequest whose request or certificate is not base64") from None
    if not (csr.name and csr.uid and csr.resource_version and csr.request and csr.signer_name):
        raise FieldsError("a CertificateSigningRequest without name, UID, version, request or signer")
    return csr


def manifest(
    name: str, request: bytes, *, signer_name: SignerName, usages: Sequence[str], expiration_seconds: int | None
) -> JsonObject:
    """Return the CertificateSigningRequest to create."""
    spec: JsonObject = {
        "request": binascii.b2a_base64(request, newline=False).decode(),
        "signerName": signer_name,
        "usages": [*usages],
    }
    if expiration_seconds is not None:
        spec["expirationSeconds"] = expiration_seconds
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": spec,
    }


def _refusal(conditions: Sequence[JsonObject]) -> tuple[str, str] | None:
    for condition in conditions:
        if text(condition, "type") in _REFUSING:
            return text(condition, "reason") or "Unspecified", text(condition, "message") or "no message"
    return None
