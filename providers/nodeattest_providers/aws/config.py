"""The ``aws`` section of a NodeAttestationPolicy: which instances may join, read into one frozen value.

Promises: a value, or ``Denied`` with ``PolicyInvalid`` that says which setting and what it should be. What is not
listed is not allowed: an empty list lets nobody in. Nothing in it says where AWS is or by whom it is trusted.
Leaves to others: applying it (``verifier``), the controller's own side (``config``).
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/aws.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from nodeattest_providers.aws.provider_id import partition_of
from nodeattest_providers.config_fields import check_keys, invalid, items, mapping, string_set, text
from nodeattest_providers.errors import Denied
from nodeattest_providers.node_interface import JsonValue

__all__ = ["AwsPolicy", "parse_policy"]

_REQUIRED: Final = ("accounts", "regions", "roles")
_SETTINGS: Final = (*_REQUIRED, "tags", "vpcs")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_ROLE: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{1,64}")
"""IAM, "IAM and AWS STS quotas": the name, without its path, which no ARN of a session shows."""
_VPC: Final = re.compile(r"vpc-(?:[0-9a-f]{17}|[0-9a-f]{8})")
_MAX_TAG_KEY: Final = 128
_MAX_TAG_VALUE: Final = 256
"""Characters; EC2, "Tag restrictions"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsPolicy:
    """What a cluster's operator decided about instances."""

    accounts: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    """Names of roles that only EC2 may assume: whoever else may could choose another instance's name."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Each with exactly this value."""
    vpcs: frozenset[str] | None = None
    """None: any."""


def parse_policy(settings: Mapping[str, JsonValue]) -> AwsPolicy:
    """Read the settings; unknown keys are errors that name the nearest known one. No settings let nobody in."""
    if not settings:
        return AwsPolicy()
    check_keys(settings, "spec.aws", _SETTINGS, _REQUIRED)
    vpcs = settings.get("vpcs")
    return AwsPolicy(
        accounts=string_set(settings["accounts"], "spec.aws.accounts", _ACCOUNT, "account IDs of 12 digits, in quotes"),
        regions=_regions(settings["regions"]),
        roles=string_set(settings["roles"], "spec.aws.roles", _ROLE, "names of roles, without path and ARN"),
        tags=_tags(settings.get("tags", {})),
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


def _tags(value: JsonValue) -> Mapping[str, str]:
    where = "spec.aws.tags"
    tags: dict[str, str] = {}
    for key, wanted in mapping(value, where).items():
        if not 1 <= len(key) <= _MAX_TAG_KEY:
            raise invalid(where, f"keys of 1 to {_MAX_TAG_KEY} characters", f"{len(key)} characters")
        if not isinstance(wanted, str) or len(wanted) > _MAX_TAG_VALUE:
            raise invalid(f"{where}[{key}]", f"a string of at most {_MAX_TAG_VALUE} characters", "another value")
        tags[key] = wanted
    return MappingProxyType(tags)
