"""CertificateSigningRequest objects as the agent writes and reads them.

Promises: an API object becomes a frozen value or ``FieldsError``. Nothing is trusted beyond that: the certificate is
checked by ``certificate``, the challenge by the provider.
Source: certificates.k8s.io/v1.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field

from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_REASON,
    ANNOTATION_SUPPORTED_VERSIONS,
    SignerName,
)
from nodeattest_providers.node_interface import JsonObject, JsonValue

_REFUSING = ("Denied", "Failed")


@dataclass(frozen=True, slots=True)
class CsrCondition:
    """Why the controller refused a request."""

    reason: str
    message: str


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
    refused: CsrCondition | None
    certificate: bytes | None = field(repr=False)
    """PEM."""


def parse(document: JsonValue) -> Csr:
    """Parse an API object; raises ``FieldsError``."""
    fields = ConfigFields(document)
    metadata, spec = fields.object("metadata"), fields.object("spec")
    if metadata is None or spec is None:
        raise FieldsError("a CertificateSigningRequest without metadata or spec")
    annotations = metadata.object("annotations") or ConfigFields({})
    status = fields.object("status") or ConfigFields({})
    return Csr(
        name=metadata.required("name"),
        uid=metadata.required("uid"),
        resource_version=metadata.required("resourceVersion"),
        request=spec.required_octets("request"),
        signer_name=spec.required("signerName"),
        username=spec.text("username") or "",
        challenge=annotations.text(ANNOTATION_CHALLENGE),
        waiting=annotations.text(ANNOTATION_REASON),
        supported_versions=annotations.text(ANNOTATION_SUPPORTED_VERSIONS),
        provider_id=annotations.text(ANNOTATION_PROVIDER_ID),
        refused=_refusal(status.objects("conditions")),
        certificate=status.octets("certificate"),
    )


def manifest(
    name: str, request: bytes, *, signer_name: SignerName, usages: Sequence[str], expiration_seconds: int | None
) -> JsonObject:
    """Write the object to be created."""
    listed: list[JsonValue] = [*usages]
    spec: JsonObject = {
        "request": binascii.b2a_base64(request, newline=False).decode(),
        "signerName": signer_name,
        "usages": listed,
    }
    if expiration_seconds is not None:
        spec["expirationSeconds"] = expiration_seconds
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": spec,
    }


def _refusal(conditions: Sequence[ConfigFields]) -> CsrCondition | None:
    for condition in conditions:
        if condition.text("type") in _REFUSING:
            reason, message = condition.text("reason"), condition.text("message")
            return CsrCondition(reason or "Unspecified", message or "no message")
    return None
