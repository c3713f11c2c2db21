"""The evidence of ``azure``, its nonce, the attested document inside, and provider IDs.

Fields of the document that are not used may be there: Azure adds some.
Source: docs/wire-format.md, "azure/v1"; Azure, "Instance Metadata Service" (attested data), "Naming rules and
restrictions for Azure resources"; cloud-provider-azure (resource group in lower case).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import IntegerJsonObject, JsonObject, ParseError
from nodeattest_providers.canonical_json import Fields, encoded
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, printable

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
        return encoded(signature=self.signature)


def parse_evidence(data: IntegerJsonObject) -> AzureEvidence:
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


PREFIX: Final = "azure://"
ResourceKey = tuple[str, str, str, str]
"""Subscription, resource group, scale set (or nothing) and name, in lower case."""
GROUP: Final = r"[-A-Za-z0-9_.()]{0,89}[-A-Za-z0-9_()]"
"""Azure takes other letters, too; none of them has one lower case everywhere."""
NAME: Final = r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,63}"
_ID: Final = re.compile(
    r"/subscriptions/(?P<subscription>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    rf"/resourceGroups/(?P<group>{GROUP})/providers/Microsoft\.Compute/"
    rf"(?:virtualMachineScaleSets/(?P<scale_set>{NAME})/virtualMachines/(?P<instance>[0-9]{{1,10}})"
    rf"|virtualMachines/(?P<name>{NAME}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRef:
    """One virtual machine, or one instance of a uniform scale set."""

    subscription: str
    group: str
    scale_set: str | None
    """Of an instance of a uniform scale set; a flexible one's machines are named by themselves."""
    name: str

    @property
    def key(self) -> ResourceKey:
        """What two names of one machine have in common."""
        return (self.subscription, self.group.lower(), (self.scale_set or "").lower(), self.name.lower())

    @property
    def resource_id(self) -> str:
        owner = f"virtualMachineScaleSets/{self.scale_set}/" if self.scale_set else ""
        group = f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
        return f"{group}/providers/Microsoft.Compute/{owner}virtualMachines/{self.name}"


def parse_provider_id(text: str) -> InstanceRef:
    found = _parse(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    if found is None or found.group != found.group.lower():
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected="azure:///subscriptions/<ID>/resourceGroups/<group in lower case>/providers/Microsoft.Compute/…",
            got=printable(text),
            remedy="compare the Machine's spec.providerID with what the metadata service says of the machine",
        )
    return found


def provider_id_of(resource_id: str) -> str | None:
    """Make the provider ID of a machine that the metadata service names; None for another text."""
    found = _parse(resource_id)
    if found is None:
        return None
    return PREFIX + replace(found, group=found.group.lower()).resource_id


def _parse(resource_id: str) -> InstanceRef | None:
    match = _ID.fullmatch(resource_id)
    if match is None:
        return None
    return InstanceRef(
        subscription=match["subscription"],
        group=match["group"],
        scale_set=match["scale_set"],
        name=match["name"] or match["instance"],
    )
