"""``spec.azure`` of a policy, and ``platforms.azure`` of the controller's configuration.

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

from nodeattest_providers.azure.protocol import GROUP, NAME
from nodeattest_providers.config_fields import Section, invalid
from nodeattest_providers.node_interface import JsonValue

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
    if not settings:
        return AzurePolicy()
    section = Section(settings, "spec.azure", _SETTINGS, _REQUIRED)
    tags = section.tags("tags", longest_name=_MAX_TAG_NAME)
    lower = {name.lower(): wanted for name, wanted in tags.items()}
    if len(lower) != len(tags):
        raise invalid(section.at("tags"), "names without case, none twice", "one of them twice")
    return AzurePolicy(
        subscriptions=_names(section, "subscriptions", _UUID),
        groups=_names(section, "resourceGroups", re.compile(GROUP)),
        scale_sets=_names(section, "scaleSets", re.compile(NAME)) if "scaleSets" in section else None,
        tags=MappingProxyType(lower),
    )


def _names(section: Section, key: str, spelling: re.Pattern[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in section.strings(key, spelling, f"{key} as Azure spells them"))


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
    audience: str
    """For whom tokens are: the cloud's own Resource Manager, wherever it is reached."""
    trust_bundle: Path | None = None
    """Authorities of those who sign attested documents; None: nobody is trusted."""
    credential: WorkloadIdentity | ManagedIdentity = field(default_factory=lambda: ManagedIdentity(client=None))
    ca_bundle: Path | None = None
    """PEM certificates of CAs for the endpoints; None: the system's."""
    proxy: str | None = field(default=None, repr=False)


def parse_platform(settings: Mapping[str, JsonValue]) -> AzurePlatform:
    """Read ``platforms.azure``; ``{}`` is Azure's public cloud, with nobody trusted to sign."""
    section = Section(settings, "platforms.azure", _PLATFORM_SETTINGS)
    known = CLOUDS[section.choice("cloud", CLOUDS, "AzurePublicCloud")]
    endpoints = section.section("endpoints", ("resourceManager", "authority"))
    return AzurePlatform(
        cloud=Cloud(
            resource_manager=endpoints.origin("resourceManager") or known.resource_manager,
            authority=endpoints.origin("authority") or known.authority,
            signer=known.signer,
        ),
        audience=known.resource_manager,
        trust_bundle=section.path("trustBundle"),
        credential=_credential(section) if "credential" in section else ManagedIdentity(client=None),
        ca_bundle=section.path("caBundle"),
        proxy=section.origin("proxy", ("http", "https")),
    )


def _credential(platform: Section) -> WorkloadIdentity | ManagedIdentity:
    section = platform.section("credential", ("workloadIdentity", "managedIdentity"))
    if ("workloadIdentity" in section) == ("managedIdentity" in section):
        both = "2 of them" if section else "0 of them"
        raise invalid(section.where, "one of workloadIdentity and managedIdentity", both)
    if "managedIdentity" in section:
        identity = section.section("managedIdentity", ("clientID",))
        return ManagedIdentity(client=_uuid(identity, "clientID") if "clientID" in identity else None)
    keys = ("tenantID", "clientID", "tokenFile")
    identity = section.section("workloadIdentity", keys, keys)
    return WorkloadIdentity(
        tenant=_uuid(identity, "tenantID"),
        client=_uuid(identity, "clientID"),
        token_file=identity.path("tokenFile") or Path(),
    )


def _uuid(section: Section, key: str) -> str:
    return section.spelled(key, _UUID, "a UUID").lower()
