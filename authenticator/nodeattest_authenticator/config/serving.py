"""The section ``serving`` of the agent's configuration: the names wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError
from nodeattest_providers.identifiers import is_dns_name
from nodeattest_providers.node_interface import JsonObject, JsonValue

_MOST_NAMES: Final = 32
"""docs/wire-format.md, "names in a serving request"."""


@dataclass(frozen=True, slots=True)
class SubjectNames:
    """Subject alternative names, each kind sorted, none twice."""

    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join((*self.dns_names, *self.ip_addresses))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """What was configured; None where the default is wanted."""

    dns_names: tuple[str, ...] | None = None
    """The DNS names wanted. None: the node's name."""
    ip_addresses: tuple[str, ...] | None = None
    """The addresses wanted. None: those from which this machine reaches the API server."""

    def to_json(self) -> JsonObject:
        """Write the section."""
        lists = {"dnsNames": self.dns_names, "ipAddresses": self.ip_addresses}
        return {name: list[JsonValue](values) for name, values in lists.items() if values is not None}


def parse_serving(fields: ConfigFields) -> ServingSettings:
    """Parse the section; raises ``FieldsError``."""
    dns_names, addresses = fields.texts("dnsNames"), fields.texts("ipAddresses")
    fields.end()
    for name in dns_names or ():
        if not is_dns_name(name):
            raise FieldsError("serving.dnsNames must be DNS names in lower case, without wildcard or final dot")
    canonical = None if addresses is None else tuple(_address(text) for text in addresses)
    for names in (dns_names or (), canonical or ()):
        if len(set(names)) != len(names):
            raise FieldsError("serving names the same thing twice")
    if _count(dns_names) + _count(canonical) > _MOST_NAMES:
        raise FieldsError(f"serving must have at most {_MOST_NAMES} names")
    if dns_names == () and canonical == ():
        raise FieldsError("serving.dnsNames and serving.ipAddresses must not both be empty")
    return ServingSettings(dns_names=dns_names, ip_addresses=canonical)


def _address(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        raise FieldsError("serving.ipAddresses must be IP addresses") from None
    if isinstance(address, IPv6Address) and (address.ipv4_mapped is not None or address.scope_id is not None):
        raise FieldsError("serving.ipAddresses must be IPv4 addresses in their own form, and IPv6 ones without zone")
    return str(address)


def _count(names: Sequence[str] | None) -> int:
    return 1 if names is None else len(names)
