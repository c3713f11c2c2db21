"""``spec.aws`` of a policy, ``platforms.aws`` of the controller's configuration, and the documents that it lets trust.

An empty list admits nobody. AWS's older DSA and RSA-1024 certificates are refused.
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/aws.md; AWS, "Instance identity documents", "AWS
public certificates for instance identity document signatures".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import ParseError
from nodeattest_providers.aws.protocol import MAX_DOCUMENT, PARTITION_NAME, partition_of
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.config_fields import Section, invalid, text
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import read_file

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


_SPELLINGS: Final = {
    "accountId": re.compile(r"[0-9]{12}"),
    "availabilityZone": re.compile(r"[a-z0-9-]{1,40}"),
    "instanceId": re.compile(r"i-[0-9a-f]{8,17}"),
    "pendingTime": re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"),
    "region": re.compile(r"[a-z0-9-]{1,24}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityDocument:
    """What is read."""

    account: str
    region: str
    zone: str
    instance_id: str
    pending: datetime


def parse_identity_document(data: bytes) -> IdentityDocument:
    try:
        values = strict_json.parse_object(data, max_size=MAX_DOCUMENT, floats=True)
    except ParseError as error:
        raise _malformed_document(error.got) from None
    spelt: dict[str, str] = {}
    for name, spelling in _SPELLINGS.items():
        value = values.get(name)
        if not isinstance(value, str) or not spelling.fullmatch(value):
            raise _malformed_document(f"{name} {'missing' if name not in values else 'of another form'}")
        spelt[name] = value
    try:
        pending = datetime.strptime(spelt["pendingTime"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise _malformed_document("a pendingTime that is no time") from None
    return IdentityDocument(
        account=spelt["accountId"],
        region=spelt["region"],
        zone=spelt["availabilityZone"],
        instance_id=spelt["instanceId"],
        pending=pending,
    )


def _malformed_document(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected="an instance identity document",
        got=got,
        remedy="send what the metadata service gives as dynamic/instance-identity/document, unchanged",
    )


log = logging.getLogger(__name__)

RegionCertificates = Mapping[str, tuple[x509.Certificate, ...]]

_WHERE: Final = "platforms.aws.trustBundle"
_EXPECTED: Final = "a directory of <region>.pem, or a JSON object from regions to PEM certificates"
_REGION: Final = re.compile(r"[a-z]{2,8}(?:-[a-z]{1,16}){1,3}-[0-9]{1,2}")
"""What a region of a partition that is yet to come may be called."""
_MAX_CERTIFICATES: Final = 16
"""Of one region; it has one, two while it changes."""
_MIN_BITS: Final = 2048


def parse_bundle(pems: Mapping[str, JsonValue]) -> RegionCertificates:
    """Read PEM certificates by region; unknown regions are skipped unless there are no others; else ``Denied``."""
    bundle: dict[str, tuple[x509.Certificate, ...]] = {}
    for region, pem in pems.items():
        try:
            partition_of(region)
        except Denied as denied:
            if not _REGION.fullmatch(region):
                raise invalid(_WHERE, _EXPECTED, f"the region {denied.got}") from None
            log.warning(
                "skipped an unknown region of the trust bundle: region=%s expected=%s", denied.got, denied.expected
            )
            continue
        bundle[region] = _certificates(text(pem, f"{_WHERE}, {region}"), f"{_WHERE}, {region}")
    if pems and not bundle:
        raise invalid(_WHERE, f"{_EXPECTED}, one of them known", f"unknown regions only ({len(pems)})")
    return MappingProxyType(bundle)


def _certificates(pem: str, where: str) -> tuple[x509.Certificate, ...]:
    try:
        certificates = tuple(x509.load_pem_x509_certificates(pem.encode()))
        keys = [certificate.public_key() for certificate in certificates]
    except X509_ERRORS:
        raise invalid(where, "PEM certificates", "text that is none") from None
    if len(keys) > _MAX_CERTIFICATES:
        raise invalid(where, f"at most {_MAX_CERTIFICATES} certificates", str(len(keys)))
    if not all(isinstance(key, rsa.RSAPublicKey) and key.key_size >= _MIN_BITS for key in keys):
        raise invalid(where, "certificates with RSA keys of 2048 bits or more (AWS's RSA-2048 ones)", "another key")
    return certificates


def parse_bundle_text(content: str) -> RegionCertificates:
    try:
        return parse_bundle(strict_json.parse_object(content, max_size=None))
    except ParseError as error:
        raise invalid(_WHERE, _EXPECTED, error.found) from None


def read_trust_bundle(path: Path) -> RegionCertificates:
    try:
        if path.is_dir():
            return parse_bundle({file.stem: read_file(file, _WHERE).decode() for file in sorted(path.glob("*.pem"))})
        return parse_bundle_text(read_file(path, _WHERE).decode())
    except UnicodeDecodeError as error:
        raise invalid(_WHERE, _EXPECTED, type(error).__name__) from None
