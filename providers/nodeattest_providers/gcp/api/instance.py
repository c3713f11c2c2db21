"""What the Compute API says of an instance. ``FIELDS`` asks for no metadata: it holds the bootstrap data.

Source: Compute Engine API v1, ``Instance``, ``instances.list``, ``instances.getShieldedInstanceIdentity``; Google,
"Internal DNS names".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from cryptography.hazmat.primitives.serialization import load_pem_public_key

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.identifiers import is_dns_name
from nodeattest_providers.keys import check_key_type, endorsement_fingerprint
from nodeattest_providers.node_interface import JsonObject, JsonValue

_INSTANCE_FIELDS: Final = (
    "id,name,zone,status,hostname,labels,serviceAccounts/email,shieldedInstanceConfig,"
    "networkInterfaces(networkIP,ipv6Address,ipv6AccessType,accessConfigs/natIP,ipv6AccessConfigs/externalIpv6)"
)
FIELDS: Final = f"items({_INSTANCE_FIELDS}),nextPageToken"
"""The partial response that is asked for (Google, "Improve performance": the ``fields`` parameter)."""
_ID: Final = re.compile(r"[0-9]{1,20}")
"""An unsigned 64-bit number; JSON has it as a string."""
_ENDORSEMENT_KEYS: Final = ("encryptionKey", "eccP256EncryptionKey")
"""RSA-2048 and P-256; ``signingKey`` and its kin are attestation keys of Google's own template."""
_MAX_VALUES: Final = 50_000
"""Of an answer; a page of sixty instances has some 10,000."""
_MAX_LABEL: Final = 64
"""Characters of a key that a message shows (RFC 1035 §2.3.4)."""
_MAX_TOKEN: Final = 2048
RUNNING: Final = "RUNNING"
"""The status of an instance that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """One instance, as the platform knows it now."""

    place: InstanceRef
    number: str
    """Its numeric ID: a VM of the same name that is recreated has another."""
    status: str
    labels: Mapping[str, str] = field(repr=False)
    service_accounts: frozenset[str]
    has_vtpm: bool
    has_secure_boot: bool
    has_integrity_monitoring: bool
    addresses: tuple[tuple[str, str], ...]
    """(type, address) pairs as in ``Machine.status.addresses``."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list; each item is read on its own, so that one that nobody can read hides no other."""

    items: tuple[JsonObject, ...] = field(repr=False)
    next_token: str | None = field(repr=False)


def parse_page(data: bytes) -> Page:
    """Read an answer of ``instances.list``."""
    answer = _object(data)
    items = answer.get("items", [])
    token = answer.get("nextPageToken")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _malformed("items")
    if token is not None and not (isinstance(token, str) and 0 < len(token) <= _MAX_TOKEN):
        raise _malformed("nextPageToken")
    return Page(tuple(cast("list[JsonObject]", items)), token)


def parse_instance(item: JsonObject, place: InstanceRef) -> ComputeInstance:
    """Read an instance that was asked for by its place."""
    number, status = item.get("id"), item.get("status")
    if not isinstance(number, str) or not _ID.fullmatch(number):
        raise _malformed("id")
    if not isinstance(status, str) or not status.isascii() or not status.isupper():
        raise _malformed("status")
    if item.get("name") != place.name or _text(item, "zone").rpartition("/")[2] != place.zone:
        raise _malformed("name or zone")
    shielded = _mapping(item, "shieldedInstanceConfig")
    return ComputeInstance(
        place=place,
        number=number,
        status=status,
        labels={key: _text(labels, key) for labels in [_mapping(item, "labels")] for key in labels},
        service_accounts=frozenset(_text(account, "email") for account in _list(item, "serviceAccounts")),
        has_vtpm=shielded.get("enableVtpm") is True,
        has_secure_boot=shielded.get("enableSecureBoot") is True,
        has_integrity_monitoring=shielded.get("enableIntegrityMonitoring") is True,
        addresses=tuple(dict.fromkeys(_addresses(item, place))),
    )


def _addresses(item: JsonObject, place: InstanceRef) -> Iterator[tuple[str, str]]:
    """List what reaches the instance: its interfaces' addresses, its name, its zonal DNS name.

    The global DNS name of old projects is left out: another zone's instance may have the same.
    """
    for interface in _list(item, "networkInterfaces"):
        yield from _address("InternalIP", interface, "networkIP")
        is_external = interface.get("ipv6AccessType") == "EXTERNAL"
        yield from _address("ExternalIP" if is_external else "InternalIP", interface, "ipv6Address")
        for access in _list(interface, "accessConfigs"):
            yield from _address("ExternalIP", access, "natIP")
        for access in _list(interface, "ipv6AccessConfigs"):
            yield from _address("ExternalIP", access, "externalIpv6")
    yield "Hostname", place.name
    hostname = _text(item, "hostname") if "hostname" in item else ""
    if is_dns_name(hostname):
        yield "Hostname", hostname
    if ":" not in place.project:
        yield "InternalDNS", f"{place.name}.{place.zone}.c.{place.project}.internal"


def _address(kind: str, holder: JsonObject, key: str) -> Iterator[tuple[str, str]]:
    if key not in holder:
        return
    try:
        yield kind, str(ipaddress.ip_address(_text(holder, key)))
    except ValueError:
        raise _malformed(key) from None


def parse_instance_identity(data: bytes) -> frozenset[str]:
    """Read the endorsement keys' fingerprints (``sha256:<hex>`` of the SubjectPublicKeyInfo); none before there are."""
    answer = _object(data)
    entries = (_mapping(answer, name) for name in _ENDORSEMENT_KEYS)
    return frozenset(_fingerprint(_text(entry, "ekPub")) for entry in entries if entry.get("ekPub"))


def _fingerprint(pem: str) -> str:
    try:
        return endorsement_fingerprint(check_key_type(load_pem_public_key(pem.encode())))
    except X509_ERRORS:
        raise _malformed("ekPub") from None


def _object(data: bytes) -> JsonObject:
    try:
        return strict_json.parse_object(data, max_size=None, max_values=_MAX_VALUES)
    except ParseError:
        raise _malformed("JSON") from None


def _mapping(holder: JsonObject, key: str) -> JsonObject:
    value = holder.get(key, {})
    if not isinstance(value, dict):
        raise _malformed(key)
    return value


def _list(holder: JsonObject, key: str) -> list[JsonObject]:
    value: JsonValue = holder.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _malformed(key)
    return cast("list[JsonObject]", value)


def _text(holder: JsonObject, key: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise _malformed(key if key.isascii() and len(key) <= _MAX_LABEL else "a label")
    return value


def _malformed(what: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected=f"an answer of the Compute API with a readable {what}",
        got="another",
        remedy="check that platforms.gcp.endpoints.compute is the Compute Engine API",
    )
