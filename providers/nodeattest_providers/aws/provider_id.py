"""Where an EC2 instance is: provider ID, zone, region, partition, each in its one spelling.

Promises: a provider ID ``aws:///<zone>/<instance id>`` reads to a value or ``Denied``; a region belongs to exactly one
partition, which decides the DNS suffix and how its ARNs begin; nothing here is looked up.
Leaves to others: which regions may be used (the policy), whether the instance exists (``api.ec2``).
Source: kubernetes/cloud-provider-aws, ``pkg/providers/v1/instances.go`` (provider IDs); botocore, ``partitions.json``
(regions and DNS suffixes); AWS, "Regions and Zones" (local and wavelength zones).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.errors import Denied, Reason

__all__ = [
    "AWS",
    "AWS_CN",
    "AWS_US_GOV",
    "PARTITIONS",
    "InstanceRef",
    "Partition",
    "parse_provider_id",
    "partition_of",
]


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of AWS with accounts, endpoints and credentials of its own."""

    name: str
    """As in ARNs."""
    dns_suffix: str
    regions: re.Pattern[str]

    def sts_host(self, region: str) -> str:
        """Name the regional endpoint of STS."""
        return f"sts.{region}.{self.dns_suffix}"


AWS: Final = Partition("aws", "amazonaws.com", re.compile(r"(?!cn-)[a-z]{2}-(?!gov-|iso)[a-z]{4,12}-[1-9][0-9]?"))
AWS_CN: Final = Partition("aws-cn", "amazonaws.com.cn", re.compile(r"cn-[a-z]{4,12}-[1-9][0-9]?"))
AWS_US_GOV: Final = Partition("aws-us-gov", "amazonaws.com", re.compile(r"us-gov-[a-z]{4,12}-[1-9][0-9]?"))
PARTITIONS: Final = (AWS, AWS_CN, AWS_US_GOV)

_INSTANCE_ID: Final = r"i-(?:[0-9a-f]{17}|[0-9a-f]{8})"
_PROVIDER_ID: Final = re.compile(
    r"aws:///(?P<zone>(?P<region>[a-z]{2}(?:-gov)?-[a-z]{4,12}-[1-9][0-9]?)(?:[a-z]|(?:-[a-z0-9]{1,8}){2,4}))"
    rf"/(?P<instance>{_INSTANCE_ID})"
)
"""A zone is its region and a letter (``us-east-1a``), or a local zone's name (``us-west-2-lax-1a``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRef:
    """What a provider ID of AWS says."""

    zone: str
    region: str
    instance_id: str

    def __str__(self) -> str:
        return f"aws:///{self.zone}/{self.instance_id}"


def parse_provider_id(text: str) -> InstanceRef:
    """Read a provider ID; any other spelling is ``Denied``."""
    match = _PROVIDER_ID.fullmatch(text)
    if match is None:
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected="aws:///<zone>/<instance id>, such as aws:///us-east-1a/i-0123456789abcdef0",
            got=repr(text[:80]),
            remedy="send the provider ID that the AWS infrastructure provider gives the Machine",
        )
    return InstanceRef(zone=match["zone"], region=match["region"], instance_id=match["instance"])


def partition_of(region: str) -> Partition:
    """Find a region's partition; ``Denied`` for what is no region of a known one."""
    for partition in PARTITIONS:
        if partition.regions.fullmatch(region):
            return partition
    raise Denied(
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        expected=f"a region of the partitions {', '.join(one.name for one in PARTITIONS)}",
        got=repr(region[:40]),
        remedy="list in spec.aws.regions regions of these partitions only; others are not supported",
    )
