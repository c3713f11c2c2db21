"""A machine's metadata service: what it says of the machine, and the document that it signs.

As the real one, it demands the header ``Metadata: true`` and a nonce of at most 32 letters and digits. Each machine has
one at a port of its own.
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


@dataclass
class Signing:
    """Who signs."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey


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
    machine: SandboxMachine, signing: Signing, identity: Callable[[str], dict[str, object] | None], request: Request
) -> Reply:
    """Answer one machine's request; ``identity`` gives its managed identity's tokens."""
    query = request.parameters
    if request.headers.get("metadata") != "true" or "api-version" not in query:
        return as_json({"error": "Bad request"}, HTTPStatus.BAD_REQUEST)
    match request.path:
        case "/metadata/instance/compute":
            return as_json({"name": machine.computer_name, "resourceId": machine.resource_id, "vmId": machine.vm_id})
        case "/metadata/identity/oauth2/token" if token := identity(query.get("resource", "")):
            return as_json(token)
        case "/metadata/attested/document" if _NONCE.fullmatch(query.get("nonce", "")):
            signature = attested(signing, content_of(machine, query["nonce"], datetime.now(UTC)))
            return as_json({"encoding": "pkcs7", "signature": base64.b64encode(signature).decode()})
        case _:
            return as_json({"error": "Bad request"}, HTTPStatus.BAD_REQUEST)


def _time(moment: datetime) -> str:
    return moment.strftime("%m/%d/%y %H:%M:%S -0000")
