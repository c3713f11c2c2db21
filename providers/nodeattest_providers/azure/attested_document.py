"""The evidence of ``azure``, its nonce, and the attested document inside.

Fields that are not used may be there: Azure adds some.
Source: docs/wire-format.md, "azure/v1"; Azure, "Instance Metadata Service" (attested data).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import IntegerJsonObject, JsonObject, JsonValue, ParseError
from nodeattest_providers.canonical_json import Fields, b64encode
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName

PROVIDER: Final = ProviderName("azure")
VERSION: Final = 1
MAX_SIGNATURE: Final = 16 * 1024
"""Bytes of the signed document; Azure's have about 3 KiB."""
NONCE: Final = 32
"""Characters: as many as Azure takes, 128 bits."""


@dataclass(frozen=True, slots=True)
class AzureEvidence:
    """The attested document as the metadata service signed it."""

    signature: bytes = field(repr=False)

    def to_json(self) -> IntegerJsonObject:
        """Write the evidence block's object."""
        return {"signature": b64encode(self.signature)}


def parse_evidence(data: IntegerJsonObject) -> AzureEvidence:
    """Read the evidence block's object; anything outside the schema is ``Denied``."""
    fields = Fields.of(data, "azure/v1", ("signature",))
    return AzureEvidence(fields.octets("signature", 1, MAX_SIGNATURE))


def nonce_for(binding: bytes) -> str:
    """Spell the nonce that binds a document to a request: the first half of the binding digest, in hex."""
    return binding.hex()[:NONCE]


_MAX_SIZE: Final = 8 * 1024
"""Bytes; Azure's have about 300."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MAX_NONCE: Final = 64
_TIME: Final = re.compile(r"[0-9]{2}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} -0000")
_TIME_FORMAT: Final = "%m/%d/%y %H:%M:%S -0000"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedDocument:
    """What the document says that is used here."""

    vm_id: str
    """Lower case."""
    subscription: str
    """Lower case."""
    nonce: str
    created: datetime
    expires: datetime


class _NotADocumentError(ValueError):
    """Carries what was found, as a message."""


def parse_attested_document(content: bytes) -> AttestedDocument:
    """Read a document; anything else is ``Denied``."""
    try:
        return _read(content)
    except _NotADocumentError as error:
        raise Denied(
            Reason.PLATFORM_DOCUMENT_MALFORMED,
            expected="an attested document of Azure's metadata service, api-version 2020-09-01",
            got=str(error),
            remedy="send the document of this machine's metadata service unchanged",
        ) from None


def _read(content: bytes) -> AttestedDocument:
    try:
        document = strict_json.parse_object(content, max_size=_MAX_SIZE, floats=True)
    except ParseError as error:
        raise _NotADocumentError(error.got) from None
    times = _mapping(document.get("timeStamp"), "timeStamp")
    return AttestedDocument(
        vm_id=_uuid(document, "vmId"),
        subscription=_uuid(document, "subscriptionId"),
        nonce=_text(document, "nonce", _MAX_NONCE),
        created=_time(times, "createdOn"),
        expires=_time(times, "expiresOn"),
    )


def _mapping(value: JsonValue, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise _NotADocumentError(f"{what} that is no object")
    return value


def _text(values: JsonObject, key: str, longest: int) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise _NotADocumentError(f"{key} that is no text of 1 to {longest} characters")
    return value


def _uuid(values: JsonObject, key: str) -> str:
    value = _text(values, key, _MAX_NONCE).lower()
    if not _UUID.fullmatch(value):
        raise _NotADocumentError(f"{key} that is no UUID")
    return value


def _time(values: JsonObject, key: str) -> datetime:
    value = _text(values, key, _MAX_NONCE)
    try:
        if _TIME.fullmatch(value):
            return datetime.strptime(value, _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        pass
    raise _NotADocumentError(f"{key} that is no time as MM/DD/YY HH:MM:SS -0000")
