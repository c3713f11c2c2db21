"""``spec.aws`` of a policy, and ``platforms.aws`` of the controller's configuration.

An empty list admits nobody. Endpoints and CAs are AWS's own, and credentials botocore's chain, unless named.
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/aws.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodeattest_providers.aws.protocol import PARTITION_NAME, partition_of
from nodeattest_providers.config_fields import Section, invalid, text
from nodeattest_providers.errors import Denied
from nodeattest_providers.node_interface import JsonValue

_REQUIRED: Final = ("accounts", "regions", "roles")
_SETTINGS: Final = (*_REQUIRED, "tags", "vpcs")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_ROLE: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{1,64}")
"""IAM, "IAM and AWS STS quotas": the name, without its path, which no ARN of a session shows."""
_VPC: Final = re.compile(r"vpc-(?:[0-9a-f]{17}|[0-9a-f]{8})")
_MAX_TAG_KEY: Final = 128
"""Characters; EC2, "Tag restrictions"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsPolicy:
    """What a cluster's operator decided about instances."""

    accounts: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    """Names of roles that only EC2 may assume: anyone else who may could choose another instance's name."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Each with exactly this value."""
    vpcs: frozenset[str] | None = None
    """None: any."""


def parse_policy(settings: Mapping[str, JsonValue]) -> AwsPolicy:
    """Read ``spec.aws``; no settings admit nobody."""
    if not settings:
        return AwsPolicy()
    section = Section(settings, "spec.aws", _SETTINGS, _REQUIRED)
    regions = frozenset(text(item, section.at("regions")) for item in section.items("regions"))
    for region in regions:
        try:
            partition_of(region)
        except Denied as denied:
            raise invalid(section.at("regions"), denied.expected, denied.got) from None
    vpcs = section.strings("vpcs", _VPC, "IDs such as vpc-0123456789abcdef0")
    return AwsPolicy(
        accounts=section.strings("accounts", _ACCOUNT, "account IDs of 12 digits, in quotes"),
        regions=regions,
        roles=section.strings("roles", _ROLE, "names of roles, without path and ARN"),
        tags=section.tags("tags", longest_name=_MAX_TAG_KEY),
        vpcs=vpcs if "vpcs" in section else None,
    )


_PLATFORM_SETTINGS: Final = ("trustBundle", "endpoints", "caBundle", "proxy", "profile", "assumeRoles")
_ROLE_ARN: Final = re.compile(rf"arn:(?:{PARTITION_NAME}):iam::(?P<account>[0-9]{{12}}):role/[\x21-\x7e]{{1,576}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsPlatform:
    """How the controller reaches AWS."""

    trust_bundle: Path | None = None
    """Certificates of the regions that sign identity documents; None: none is trusted."""
    sts: str | None = None
    """``https://host[:port]`` in place of every region's STS; what is signed stays the region's own host."""
    ec2: str | None = None
    ca_bundle: Path | None = None
    """PEM certificates of CAs for both; None: the system's."""
    proxy: str | None = field(default=None, repr=False)
    profile: str | None = None
    """A profile of the shared AWS configuration files; None: boto3's own chain."""
    assume_roles: Mapping[str, str] = field(default_factory=dict[str, str])
    """By account: the role to assume for reading its instances."""


def parse_platform(settings: Mapping[str, JsonValue]) -> AwsPlatform:
    """Read ``platforms.aws``; ``{}`` is AWS itself."""
    section = Section(settings, "platforms.aws", _PLATFORM_SETTINGS)
    endpoints = section.section("endpoints", ("sts", "ec2"))
    return AwsPlatform(
        trust_bundle=section.path("trustBundle"),
        sts=endpoints.origin("sts"),
        ec2=endpoints.origin("ec2"),
        ca_bundle=section.path("caBundle"),
        proxy=section.origin("proxy", ("http", "https")),
        profile=section.text("profile") or None,
        assume_roles=MappingProxyType(dict(_roles(section.mapping("assumeRoles"), section.at("assumeRoles")))),
    )


def _roles(roles: Mapping[str, JsonValue], where: str) -> Iterator[tuple[str, str]]:
    for account, role in roles.items():
        if not _ACCOUNT.fullmatch(account):
            raise invalid(where, "account IDs of 12 digits", repr(account[:40]))
        arn = text(role, f"{where}[{account}]")
        match = _ROLE_ARN.fullmatch(arn)
        if match is None or match["account"] != account:
            raise invalid(f"{where}[{account}]", "the ARN of a role of that account", repr(arn[:120]))
        yield account, arn
