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
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import IntegerJsonObject, JsonObject, ParseError
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
_ANY: Final = re.compile(r".{1,64}", re.DOTALL)
_TIME: Final = re.compile(r"[0-9]{2}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} -0000")


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


def parse_attested_document(content: bytes) -> AttestedDocument:
    """Read a document; anything else is ``Denied``."""
    try:
        document = strict_json.parse_object(content, max_size=_MAX_SIZE, floats=True)
    except ParseError as error:
        raise _malformed(error.got) from None
    times = mapping(document, "timeStamp")
    return AttestedDocument(
        vm_id=_text(document, "vmId", _UUID),
        subscription=_text(document, "subscriptionId", _UUID),
        nonce=_text(document, "nonce", _ANY),
        created=_time(times, "createdOn"),
        expires=_time(times, "expiresOn"),
    )


def _text(values: JsonObject, key: str, spelling: re.Pattern[str]) -> str:
    value = values.get(key)
    value = value.lower() if isinstance(value, str) else ""
    if not spelling.fullmatch(value):
        raise _malformed(f"another {key} or none")
    return value


def _time(values: JsonObject, key: str) -> datetime:
    value = _text(values, key, _TIME)
    try:
        return datetime.strptime(value, "%m/%d/%y %H:%M:%S -0000").replace(tzinfo=UTC)
    except ValueError:
        raise _malformed(f"{key} that is no time") from None


def _malformed(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected="an attested document of Azure's metadata service, api-version 2020-09-01",
        got=got,
        remedy="send the document of this machine's metadata service unchanged",
    )
