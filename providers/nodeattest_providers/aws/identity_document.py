"""The instance identity document: what AWS says of an instance, read closely where it matters.

Promises: any bytes give a value or ``Denied``; no key occurs twice, and the fields that are read have their type
and spelling. AWS adds fields over the years: those are let through unread, since the whole document is signed.
Source: AWS, "Instance identity documents".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.errors import ParseError
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.aws.protocol import MAX_DOCUMENT
from nodeattest_providers.errors import Denied, Reason

_SPELLINGS: Final = {
    "accountId": re.compile(r"[0-9]{12}"),
    "availabilityZone": re.compile(r"[a-z0-9-]{1,40}"),
    "instanceId": re.compile(r"i-[0-9a-f]{8,17}"),
    "pendingTime": re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"),
    "region": re.compile(r"[a-z0-9-]{1,24}"),
}
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class _NotADocumentError(ValueError):
    """Carries what was found, as a message that holds no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityDocument:
    """What is read."""

    account: str
    region: str
    zone: str
    instance_id: str
    pending: datetime
    """When the instance was started last."""


def parse_identity_document(data: bytes) -> IdentityDocument:
    """Read a document; anything else is ``Denied``."""
    try:
        values = _object(data)
        spelt = {name: _spelt(values, name) for name in _SPELLINGS}
        pending = datetime.strptime(spelt["pendingTime"], _TIME).replace(tzinfo=UTC)
    except _NotADocumentError as error:
        raise _malformed(str(error)) from None
    except ValueError:
        raise _malformed("a pendingTime that is no time") from None
    return IdentityDocument(
        account=spelt["accountId"],
        region=spelt["region"],
        zone=spelt["availabilityZone"],
        instance_id=spelt["instanceId"],
        pending=pending,
    )


def _object(data: bytes) -> JsonObject:
    try:
        return strict_json.parse_object(data, max_size=MAX_DOCUMENT, floats=True)
    except ParseError as error:
        raise _NotADocumentError(error.got) from None


def _spelt(values: JsonObject, name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or not _SPELLINGS[name].fullmatch(value):
        raise _NotADocumentError(f"{name} {'missing' if name not in values else 'of another form'}")
    return value


def _malformed(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected="an instance identity document",
        got=got,
        remedy="send what the metadata service gives as dynamic/instance-identity/document, unchanged",
    )
