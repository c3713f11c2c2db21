"""CertificateSigningRequest objects as the agent writes and reads them.

Promises: an API object becomes a frozen value or ``FieldsError``. Nothing is trusted beyond that: the certificate is
checked by ``certificate``, the challenge by the provider.
Source: certificates.k8s.io/v1.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from nodeattest_authenticator.formats.strict_json import FieldsError
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import ParseError
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_REASON,
    ANNOTATION_SUPPORTED_VERSIONS,
    SignerName,
)
from nodeattest_providers.node_interface import JsonObject

_REFUSING = ("Denied", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Csr:
    """What matters of one object at one resource version."""

    name: str
    uid: str
    resource_version: str
    request: bytes = field(repr=False)
    signer_name: str
    username: str
    challenge: str | None = field(repr=False)
    waiting: str | None
    """Why the controller lets it wait."""
    supported_versions: str | None
    provider_id: str | None
    """The one that the controller wants; a claim, as every annotation is."""
    refused: tuple[str, str] | None
    """Reason and message of the refusal."""
    certificate: bytes | None = field(repr=False)
    """PEM."""


def parse(document: JsonObject) -> Csr:
    """Parse an API object; raises ``FieldsError``."""
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
    """Write the object to be created."""
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
