"""``spec.aws`` of a policy, and ``platforms.aws`` of the controller's configuration.

An empty list admits nobody. Endpoints and CAs are AWS's own, and credentials botocore's chain, unless named.
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/aws.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodeattest_providers.aws.protocol import PARTITION_NAME, partition_of
from nodeattest_providers.config_fields import check_keys, invalid, items, mapping, string_set, tags, text
from nodeattest_providers.errors import Denied
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import absolute_path, origin

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
    """Read the settings; unknown keys are errors that name the nearest known one. No settings admit nobody."""
    if not settings:
        return AwsPolicy()
    check_keys(settings, "spec.aws", _SETTINGS, _REQUIRED)
    vpcs = settings.get("vpcs")
    return AwsPolicy(
        accounts=string_set(settings["accounts"], "spec.aws.accounts", _ACCOUNT, "account IDs of 12 digits, in quotes"),
        regions=_regions(settings["regions"]),
        roles=string_set(settings["roles"], "spec.aws.roles", _ROLE, "names of roles, without path and ARN"),
        tags=tags(settings.get("tags", {}), "spec.aws.tags", longest_name=_MAX_TAG_KEY),
        vpcs=None if vpcs is None else string_set(vpcs, "spec.aws.vpcs", _VPC, "IDs such as vpc-0123456789abcdef0"),
    )


def _regions(value: JsonValue) -> frozenset[str]:
    where = "spec.aws.regions"
    regions = frozenset(text(item, where) for item in items(value, where))
    for region in regions:
        try:
            partition_of(region)
        except Denied as denied:
            raise invalid(where, denied.expected, denied.got) from None
    return regions


_PLATFORM: Final = "platforms.aws"
_PLATFORM_SETTINGS: Final = ("trustBundle", "endpoints", "caBundle", "proxy", "profile", "assumeRoles")
_ENDPOINTS: Final = ("sts", "ec2")
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
    """Read the settings; ``{}`` is AWS itself."""
    check_keys(settings, _PLATFORM, _PLATFORM_SETTINGS)
    endpoints = mapping(settings.get("endpoints", {}), f"{_PLATFORM}.endpoints")
    check_keys(endpoints, f"{_PLATFORM}.endpoints", _ENDPOINTS)
    return AwsPlatform(
        trust_bundle=absolute_path(settings, "trustBundle", _PLATFORM),
        sts=origin(endpoints, "sts", f"{_PLATFORM}.endpoints", ("https",)),
        ec2=origin(endpoints, "ec2", f"{_PLATFORM}.endpoints", ("https",)),
        ca_bundle=absolute_path(settings, "caBundle", _PLATFORM),
        proxy=origin(settings, "proxy", _PLATFORM, ("http", "https")),
        profile=text(settings["profile"], f"{_PLATFORM}.profile") if "profile" in settings else None,
        assume_roles=_roles(settings.get("assumeRoles", {})),
    )


def _roles(value: JsonValue) -> Mapping[str, str]:
    where = f"{_PLATFORM}.assumeRoles"
    roles: dict[str, str] = {}
    for account, role in mapping(value, where).items():
        if not _ACCOUNT.fullmatch(account):
            raise invalid(where, "account IDs of 12 digits", repr(account[:40]))
        arn = text(role, f"{where}[{account}]")
        match = _ROLE_ARN.fullmatch(arn)
        if match is None or match["account"] != account:
            raise invalid(f"{where}[{account}]", "the ARN of a role of that account", repr(arn[:120]))
        roles[account] = arn
    return MappingProxyType(roles)
