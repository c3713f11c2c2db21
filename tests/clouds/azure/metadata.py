"""A machine's metadata service: what it says of the machine, and the document that it signs.

Promises: the rules of the real one: the header ``Metadata: true`` is demanded, a forwarded request refused, the API's
version named; a nonce has at most 32 letters and digits. One service a machine, each at a port of its own, since
loopback has one address for all.
Source: Azure, "Instance Metadata Service".
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from clouds import cms
from clouds.azure.state import SandboxMachine
from clouds.serving import Reply, Request, as_json

_NONCE: Final = re.compile(r"[0-9A-Za-z]{1,32}")
_LIFE: Final = timedelta(hours=6)
_VERSION: Final = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}")


@dataclass
class Signing:
    """Who signs, and when it is; tests change both."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def content_of(machine: SandboxMachine, nonce: str, created: datetime, life: timedelta = _LIFE) -> dict[str, object]:
    """Say what a document says."""
    return {
        "licenseType": "",
        "nonce": nonce,
        "plan": {"name": "", "product": "", "publisher": ""},
        "sku": "12-gen2",
        "subscriptionId": machine.subscription,
        "timeStamp": {"createdOn": _time(created), "expiresOn": _time(created + life)},
        "vmId": machine.vm_id,
    }


def attested(signing: Signing, content: dict[str, object]) -> bytes:
    """Sign a document."""
    data = json.dumps(content, separators=(",", ":")).encode()
    return cms.azure_form(data, signing.key, signing.certificate).der()


def answer_metadata(
    machine: SandboxMachine,
    signing: Signing,
    identity: Callable[[str], dict[str, object] | None],
    request: Request,
) -> Reply:
    """Answer one machine's request; ``identity`` gives its managed identity's tokens."""
    status, answer = _answer(machine, signing, identity, request)
    return as_json(answer, status)


def _answer(
    machine: SandboxMachine,
    signing: Signing,
    identity: Callable[[str], dict[str, object] | None],
    request: Request,
) -> tuple[HTTPStatus, dict[str, object]]:
    query = request.parameters
    if request.headers.get("metadata") != "true" or "x-forwarded-for" in request.headers:
        return HTTPStatus.BAD_REQUEST, {"error": "Bad request. Required metadata header not specified"}
    if not _VERSION.fullmatch(query.get("api-version", "")):
        return HTTPStatus.BAD_REQUEST, {"error": "Bad request. api-version is invalid or was not specified"}
    if request.path == "/metadata/instance/compute":
        return HTTPStatus.OK, _compute(machine)
    if request.path == "/metadata/identity/oauth2/token":
        token = identity(query.get("resource", ""))
        return (HTTPStatus.OK, token) if token else (HTTPStatus.BAD_REQUEST, {"error": "invalid_resource"})
    if request.path != "/metadata/attested/document":
        return HTTPStatus.NOT_FOUND, {"error": "Not found"}
    return _document(machine, signing, query.get("nonce"))


def _document(machine: SandboxMachine, signing: Signing, asked: str | None) -> tuple[HTTPStatus, dict[str, object]]:
    """Sign a document; without a nonce, it is the time."""
    now = signing.now()
    nonce = now.strftime("%Y%m%d%H%M%S") if asked is None else asked
    if not _NONCE.fullmatch(nonce):
        return HTTPStatus.BAD_REQUEST, {"error": "Bad request. Invalid nonce"}
    signature = attested(signing, content_of(machine, nonce, now))
    return HTTPStatus.OK, {"encoding": "pkcs7", "signature": base64.b64encode(signature).decode()}


def _compute(machine: SandboxMachine) -> dict[str, object]:
    return {
        "azEnvironment": "AzurePublicCloud",
        "name": machine.computer_name,
        "resourceGroupName": machine.group,
        "resourceId": machine.resource_id,
        "subscriptionId": machine.subscription,
        "vmId": machine.vm_id,
        "vmScaleSetName": machine.scale_set or "",
    }


def _time(moment: datetime) -> str:
    return moment.strftime("%m/%d/%y %H:%M:%S -0000")
