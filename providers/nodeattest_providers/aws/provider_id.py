"""Where an EC2 instance is: provider ID, zone, region, partition, each in its one spelling.

Promises: a provider ID ``aws:///<zone>/<instance id>`` reads to a value or ``Denied``; a region belongs to exactly one
partition, which decides the DNS suffix and how its ARNs begin; nothing here is looked up.
Source: kubernetes/cloud-provider-aws, ``pkg/providers/v1/instances.go`` (provider IDs); botocore, ``partitions.json``
(regions and DNS suffixes); AWS, "Regions and Zones" (local and wavelength zones).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.errors import Denied, Reason


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of AWS with accounts, endpoints and credentials of its own."""

    name: str
    """As in ARNs."""
    dns_suffix: str
    region_prefix: str
    """Regular expression of what its regions' names begin with, followed by ``-<place>-<number>``."""

    def sts_host(self, region: str) -> str:
        """Name the regional endpoint of STS."""
        return f"sts.{region}.{self.dns_suffix}"


PARTITIONS: Final = (
    Partition("aws", "amazonaws.com", "(?!cn)[a-z]{2}"),
    Partition("aws-cn", "amazonaws.com.cn", "cn"),
    Partition("aws-eusc", "amazonaws.eu", "eusc-[a-z]{2}"),
    Partition("aws-iso", "c2s.ic.gov", "us-iso"),
    Partition("aws-iso-b", "sc2s.sgov.gov", "us-isob"),
    Partition("aws-iso-e", "cloud.adc-e.uk", "eu-isoe"),
    Partition("aws-iso-f", "csp.hci.ic.gov", "us-isof"),
    Partition("aws-us-gov", "amazonaws.com", "us-gov"),
)
PARTITION_NAME: Final = "|".join(partition.name for partition in PARTITIONS)
"""Regular expression of a partition's name in an ARN."""
_REGIONS: Final = tuple(
    (partition, re.compile(rf"{partition.region_prefix}-[a-z]{{4,12}}-[1-9][0-9]?")) for partition in PARTITIONS
)
_KNOWN: Final = f"a region of the partitions {', '.join(partition.name for partition in PARTITIONS)}"

_PROVIDER_ID: Final = re.compile(r"aws:///(?P<zone>[a-z0-9-]{1,64})/(?P<instance>i-(?:[0-9a-f]{17}|[0-9a-f]{8}))")
_ZONE: Final = re.compile(
    rf"(?P<region>{'|'.join(pattern.pattern for _, pattern in _REGIONS)})(?:[a-z]|(?:-[a-z0-9]{{1,8}}){{2,4}})"
)
"""A region and a letter (``us-east-1a``), or the name of a local or wavelength zone (``us-west-2-lax-1a``)."""


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
    zone = _ZONE.fullmatch(match["zone"])
    if zone is None:
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected=f"a zone in {_KNOWN}",
            got=repr(match["zone"]),
            remedy="use a version of nodeattest that knows the zone's partition, if this is a zone of AWS",
        )
    return InstanceRef(zone=match["zone"], region=zone["region"], instance_id=match["instance"])


def partition_of(region: str) -> Partition:
    """Find a region's partition; ``Denied`` for what is no region of a known one."""
    for partition, pattern in _REGIONS:
        if pattern.fullmatch(region):
            return partition
    raise Denied(
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        expected=_KNOWN,
        got=repr(region[:40]),
        remedy="correct the region, or use a version of nodeattest that knows its partition",
    )
