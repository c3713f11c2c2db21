"""``platforms.azure`` of the controller's configuration: which Azure, by whom it is trusted, with which credentials.

Promises: a value, or ``Denied`` that names the field and the nearest known one. Endpoints are the cloud's own unless
named; no proxy unless one is named.
Leaves to others: reading the files (``trust_bundle``, ``api.tokens``, ``api.resource_manager``).
Source: Azure, "Azure Government endpoint mapping", "Azure China developer guide"; "Instance Metadata Service", table of
certificates by cloud. Azure Germany was closed in 2021.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from nodeattest_providers.config_fields import check_keys, invalid, mapping, text
from nodeattest_providers.node_interface import JsonValue

__all__ = ["CLOUDS", "AzureConfiguration", "Cloud", "ManagedIdentity", "WorkloadIdentity", "parse_configuration"]

_WHERE: Final = "platforms.azure"
_SETTINGS: Final = ("cloud", "trustBundle", "credential", "endpoints", "caBundle", "proxy")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One of Azure's clouds."""

    resource_manager: str
    authority: str
    signer: str
    """Name of whoever signs attested documents there; regions have names below it."""


CLOUDS: Final[Mapping[str, Cloud]] = MappingProxyType(
    {
        "AzurePublicCloud": Cloud(
            resource_manager="https://management.azure.com",
            authority="https://login.microsoftonline.com",
            signer="metadata.azure.com",
        ),
        "AzureUSGovernmentCloud": Cloud(
            resource_manager="https://management.usgovcloudapi.net",
            authority="https://login.microsoftonline.us",
            signer="metadata.azure.us",
        ),
        "AzureChinaCloud": Cloud(
            resource_manager="https://management.chinacloudapi.cn",
            authority="https://login.chinacloudapi.cn",
            signer="metadata.azure.cn",
        ),
    }
)
"""By the names that Cluster API's Azure provider uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadIdentity:
    """A service account's token, exchanged for Azure's."""

    tenant: str
    client: str
    token_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedIdentity:
    """The identity of the machine that the controller runs on."""

    client: str | None
    """Of a user-assigned identity; None: the system-assigned one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureConfiguration:
    """How the controller reaches Azure."""

    cloud: Cloud
    """Its endpoints are those in force."""
    audience: str
    """For whom tokens are: the cloud's own Resource Manager, wherever it is reached."""
    trust_bundle: Path | None = None
    """Authorities of those who sign attested documents; None: nobody is trusted."""
    credential: WorkloadIdentity | ManagedIdentity = field(default_factory=lambda: ManagedIdentity(client=None))
    ca_bundle: Path | None = None
    """PEM certificates of CAs for the endpoints; None: the system's."""
    proxy: str | None = field(default=None, repr=False)


def parse_configuration(settings: Mapping[str, JsonValue]) -> AzureConfiguration:
    """Read the settings; ``{}`` is Azure's public cloud, with nobody trusted to sign."""
    check_keys(settings, _WHERE, _SETTINGS)
    name = text(settings.get("cloud", "AzurePublicCloud"), f"{_WHERE}.cloud")
    known = CLOUDS.get(name)
    if known is None:
        raise invalid(f"{_WHERE}.cloud", " or ".join(CLOUDS), repr(name[:80]))
    endpoints = mapping(settings.get("endpoints", {}), f"{_WHERE}.endpoints")
    check_keys(endpoints, f"{_WHERE}.endpoints", ("resourceManager", "authority"))
    where = f"{_WHERE}.endpoints."
    cloud = Cloud(
        resource_manager=_url(endpoints, "resourceManager", where, ("https",)) or known.resource_manager,
        authority=_url(endpoints, "authority", where, ("https",)) or known.authority,
        signer=known.signer,
    )
    return AzureConfiguration(
        cloud=cloud,
        audience=known.resource_manager,
        trust_bundle=_path(settings, "trustBundle", f"{_WHERE}."),
        credential=_credential(settings.get("credential", {"managedIdentity": {}})),
        ca_bundle=_path(settings, "caBundle", f"{_WHERE}."),
        proxy=_url(settings, "proxy", f"{_WHERE}.", ("http", "https")),
    )


def _credential(value: JsonValue) -> WorkloadIdentity | ManagedIdentity:
    where = f"{_WHERE}.credential"
    kinds = mapping(value, where)
    check_keys(kinds, where, ("workloadIdentity", "managedIdentity"))
    if len(kinds) != 1:
        raise invalid(where, "one of workloadIdentity and managedIdentity", f"{len(kinds)} of them")
    if "managedIdentity" in kinds:
        where += ".managedIdentity"
        managed = mapping(kinds["managedIdentity"], where)
        check_keys(managed, where, ("clientID",))
        return ManagedIdentity(client=_uuid(managed, "clientID", where) if "clientID" in managed else None)
    where += ".workloadIdentity"
    workload = mapping(kinds["workloadIdentity"], where)
    needed = ("tenantID", "clientID", "tokenFile")
    check_keys(workload, where, needed, needed)
    token_file = _path(workload, "tokenFile", f"{where}.")
    if token_file is None:
        raise AssertionError("a required key is there")
    return WorkloadIdentity(
        tenant=_uuid(workload, "tenantID", where), client=_uuid(workload, "clientID", where), token_file=token_file
    )


def _uuid(values: Mapping[str, JsonValue], name: str, where: str) -> str:
    value = text(values[name], f"{where}.{name}")
    if not _UUID.fullmatch(value):
        raise invalid(f"{where}.{name}", "a UUID", repr(value[:80]))
    return value.lower()


def _path(values: Mapping[str, JsonValue], name: str, where: str) -> Path | None:
    if name not in values:
        return None
    path = Path(text(values[name], where + name))
    if not path.is_absolute():
        raise invalid(where + name, "an absolute path", repr(str(path)[:80]))
    return path


def _url(values: Mapping[str, JsonValue], name: str, where: str, schemes: tuple[str, ...]) -> str | None:
    """Read scheme, host and port; anything more in a URL would change what is asked."""
    if name not in values:
        return None
    url = text(values[name], where + name)
    expected = f"{' or '.join(f'{scheme}://' for scheme in schemes)} and a host, perhaps a port"
    try:
        parts = urlsplit(url)
        is_plain = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise invalid(where + name, expected, "another URL") from None
    rest = parts.path.strip("/") + parts.query + parts.fragment
    if not is_plain or parts.scheme not in schemes or rest or "@" in parts.netloc:
        raise invalid(where + name, expected, "another URL")
    return f"{parts.scheme}://{parts.netloc}"
