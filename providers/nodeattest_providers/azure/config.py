"""``spec.azure`` of a policy, and ``platforms.azure`` of the controller's configuration.

Without subscriptions and groups nobody is admitted. Endpoints are the cloud's own unless named.
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/azure.md; Azure, "Azure Government endpoint mapping",
"Azure China developer guide", "Instance Metadata Service" (certificates by cloud).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodeattest_providers.azure.provider_id import GROUP, NAME
from nodeattest_providers.config_fields import check_keys, invalid, mapping, string_set, tags, text
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import absolute_path, origin

_REQUIRED: Final = ("subscriptions", "resourceGroups")
_SETTINGS: Final = (*_REQUIRED, "scaleSets", "tags")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MAX_TAG_NAME: Final = 512
"""Characters; Azure, "Use tags to organize your Azure resources"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AzurePolicy:
    """What a cluster's operator decided about virtual machines; names in lower case, since Azure ignores case."""

    subscriptions: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    scale_sets: frozenset[str] | None = None
    """Names of scale sets; None: machines of any, and of none."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name in lower case, each with exactly this value."""


def parse_policy(settings: Mapping[str, JsonValue]) -> AzurePolicy:
    """Read the settings; unknown keys are errors that name the nearest known one. No settings admit nobody."""
    if not settings:
        return AzurePolicy()
    check_keys(settings, "spec.azure", _SETTINGS, _REQUIRED)
    return AzurePolicy(
        subscriptions=_names(settings, "subscriptions", _UUID),
        groups=_names(settings, "resourceGroups", re.compile(GROUP)),
        scale_sets=_names(settings, "scaleSets", re.compile(NAME)) if "scaleSets" in settings else None,
        tags=_tags(settings.get("tags", {})),
    )


def _names(settings: Mapping[str, JsonValue], key: str, spelling: re.Pattern[str]) -> frozenset[str]:
    found = string_set(settings[key], f"spec.azure.{key}", spelling, f"{key} as Azure spells them")
    return frozenset(name.lower() for name in found)


def _tags(value: JsonValue) -> Mapping[str, str]:
    found = tags(value, "spec.azure.tags", longest_name=_MAX_TAG_NAME)
    lower = {name.lower(): wanted for name, wanted in found.items()}
    if len(lower) != len(found):
        raise invalid("spec.azure.tags", "names without case, none twice", "one of them twice")
    return MappingProxyType(lower)


_PLATFORM: Final = "platforms.azure"
_PLATFORM_SETTINGS: Final = ("cloud", "trustBundle", "credential", "endpoints", "caBundle", "proxy")


@dataclass(frozen=True, slots=True)
class Cloud:
    """One of Azure's clouds."""

    resource_manager: str
    authority: str
    signer: str
    """Name of the signer of attested documents there; regions have names below it."""


CLOUDS: Final[Mapping[str, Cloud]] = MappingProxyType(
    {
        "AzurePublicCloud": Cloud(
            "https://management.azure.com", "https://login.microsoftonline.com", "metadata.azure.com"
        ),
        "AzureUSGovernmentCloud": Cloud(
            "https://management.usgovcloudapi.net", "https://login.microsoftonline.us", "metadata.azure.us"
        ),
        "AzureChinaCloud": Cloud(
            "https://management.chinacloudapi.cn", "https://login.chinacloudapi.cn", "metadata.azure.cn"
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
class AzurePlatform:
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


def parse_platform(settings: Mapping[str, JsonValue]) -> AzurePlatform:
    """Read the settings; ``{}`` is Azure's public cloud, with nobody trusted to sign."""
    check_keys(settings, _PLATFORM, _PLATFORM_SETTINGS)
    name = text(settings.get("cloud", "AzurePublicCloud"), f"{_PLATFORM}.cloud")
    known = CLOUDS.get(name)
    if known is None:
        raise invalid(f"{_PLATFORM}.cloud", " or ".join(CLOUDS), repr(name[:80]))
    endpoints = mapping(settings.get("endpoints", {}), f"{_PLATFORM}.endpoints")
    check_keys(endpoints, f"{_PLATFORM}.endpoints", ("resourceManager", "authority"))
    where = f"{_PLATFORM}.endpoints"
    cloud = Cloud(
        resource_manager=origin(endpoints, "resourceManager", where, ("https",)) or known.resource_manager,
        authority=origin(endpoints, "authority", where, ("https",)) or known.authority,
        signer=known.signer,
    )
    return AzurePlatform(
        cloud=cloud,
        audience=known.resource_manager,
        trust_bundle=absolute_path(settings, "trustBundle", _PLATFORM),
        credential=_credential(settings.get("credential", {"managedIdentity": {}})),
        ca_bundle=absolute_path(settings, "caBundle", _PLATFORM),
        proxy=origin(settings, "proxy", _PLATFORM, ("http", "https")),
    )


def _credential(value: JsonValue) -> WorkloadIdentity | ManagedIdentity:
    where = f"{_PLATFORM}.credential"
    kinds = mapping(value, where)
    check_keys(kinds, where, ("workloadIdentity", "managedIdentity"))
    if len(kinds) != 1:
        raise invalid(where, "one of workloadIdentity and managedIdentity", f"{len(kinds)} of them")
    ((kind, content),) = kinds.items()
    where = f"{where}.{kind}"
    fields = mapping(content, where)
    if kind == "managedIdentity":
        check_keys(fields, where, ("clientID",))
        return ManagedIdentity(client=_uuid(fields, "clientID", where) if "clientID" in fields else None)
    check_keys(fields, where, ("tenantID", "clientID", "tokenFile"), ("tenantID", "clientID", "tokenFile"))
    return WorkloadIdentity(
        tenant=_uuid(fields, "tenantID", where),
        client=_uuid(fields, "clientID", where),
        token_file=absolute_path(fields, "tokenFile", where) or Path(),
    )


def _uuid(values: Mapping[str, JsonValue], name: str, where: str) -> str:
    value = text(values[name], f"{where}.{name}")
    if not _UUID.fullmatch(value):
        raise invalid(f"{where}.{name}", "a UUID", repr(value[:80]))
    return value.lower()
