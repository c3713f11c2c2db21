"""Asking the sandbox AWS as anybody on the network could: by plain HTTP, and by requests signed with botocore."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPSConnection
from typing import Protocol, cast
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Keys

from clouds.aws.cloud import REGION, Credentials, SandboxAws

IDENTITY = b"Action=GetCallerIdentity&Version=2011-06-15"


class _Signed(Protocol):
    headers: Mapping[str, str]
    context: dict[str, str]


class _Auth(Protocol):
    def headers_to_sign(self, request: _Signed) -> object: ...
    def signed_headers(self, headers_to_sign: object) -> str: ...
    def canonical_request(self, request: _Signed) -> str: ...
    def string_to_sign(self, request: _Signed, canonical_request: str) -> str: ...
    def signature(self, string_to_sign: str, request: _Signed) -> str: ...
    def scope(self, request: _Signed) -> str: ...


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str


def ask(method: str, url: str, headers: Mapping[str, str] | None = None) -> Reply:
    """Ask a metadata service."""
    parts = urlsplit(url)
    return _ask(HTTPConnection(parts.netloc, timeout=60), method, parts.path, headers or {})


def signed(
    aws: SandboxAws,
    keys: Credentials,
    body: bytes = IDENTITY,
    *,
    service: str = "sts",
    region: str = REGION,
    host: str = "",
    at: datetime | None = None,
) -> dict[str, str]:
    """Sign a request to the front; returns its headers."""
    auth = cast("_Auth", SigV4Auth(Keys(keys.access_key_id, keys.secret, keys.token), service, region))
    host = host or aws.front.removeprefix("https://")
    date = (at or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        "host": host,
        "x-amz-date": date,
        "x-amz-security-token": keys.token,
    }
    request = cast("_Signed", AWSRequest(method="POST", url=f"https://{host}/", data=body, headers=headers))
    request.context["timestamp"] = date
    names = auth.signed_headers(auth.headers_to_sign(request))
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    credential = f"Credential={auth.scope(request)}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": f"AWS4-HMAC-SHA256 {credential}"}


def send(aws: SandboxAws, headers: Mapping[str, str], body: bytes = IDENTITY) -> Reply:
    """Send a request to the front."""
    tls = ssl.create_default_context(cafile=str(aws.ca_file))
    connection = HTTPSConnection(aws.front.removeprefix("https://"), timeout=60, context=tls)
    return _ask(connection, "POST", "/", headers, body)


def _ask(
    connection: HTTPConnection, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
) -> Reply:
    with closing(connection):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Reply(answer.status, answer.read().decode())
