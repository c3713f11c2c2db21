"""The instance identity document, and the certificates that sign it for each region.

Fields that are not used may be there: AWS adds some, and signs all. Keys are RSA of 2048 bits or more, so AWS's older
DSA and RSA-1024 certificates are refused.
Source: AWS, "Instance identity documents", "AWS public certificates for instance identity document signatures".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import ParseError
from nodeattest_providers.aws.protocol import MAX_DOCUMENT, partition_of
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.config_fields import invalid
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.platform import read_file

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
    """Read a document; anything else is ``Denied``."""
    try:
        values = strict_json.parse_object(data, max_size=MAX_DOCUMENT, floats=True)
    except ParseError as error:
        raise _malformed(error.got) from None
    spelt: dict[str, str] = {}
    for name, spelling in _SPELLINGS.items():
        value = values.get(name)
        if not isinstance(value, str) or not spelling.fullmatch(value):
            raise _malformed(f"{name} {'missing' if name not in values else 'of another form'}")
        spelt[name] = value
    try:
        pending = datetime.strptime(spelt["pendingTime"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise _malformed("a pendingTime that is no time") from None
    return IdentityDocument(
        account=spelt["accountId"],
        region=spelt["region"],
        zone=spelt["availabilityZone"],
        instance_id=spelt["instanceId"],
        pending=pending,
    )


def _malformed(got: str) -> Denied:
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


def parse_bundle(texts: Mapping[str, str]) -> RegionCertificates:
    """Read PEM certificates by region; unknown regions are skipped unless there are no others; else ``Denied``."""
    bundle: dict[str, tuple[x509.Certificate, ...]] = {}
    for region, text in texts.items():
        try:
            partition_of(region)
        except Denied as denied:
            if not _REGION.fullmatch(region):
                raise invalid(_WHERE, _EXPECTED, f"the region {denied.got}") from None
            log.warning(
                "skipped an unknown region of the trust bundle: region=%s expected=%s", denied.got, denied.expected
            )
            continue
        bundle[region] = _certificates(region, text)
    if texts and not bundle:
        raise invalid(_WHERE, f"{_EXPECTED}, one of them known", f"unknown regions only ({len(texts)})")
    return MappingProxyType(bundle)


def _certificates(region: str, text: str) -> tuple[x509.Certificate, ...]:
    where = f"{_WHERE}, {region}"
    try:
        certificates = tuple(x509.load_pem_x509_certificates(text.encode()))
        keys = [certificate.public_key() for certificate in certificates]
    except X509_ERRORS:
        raise invalid(where, "PEM certificates", "text that is none") from None
    if len(keys) > _MAX_CERTIFICATES:
        raise invalid(where, f"at most {_MAX_CERTIFICATES} certificates", str(len(keys)))
    if not all(isinstance(key, rsa.RSAPublicKey) and key.key_size >= _MIN_BITS for key in keys):
        raise invalid(where, "certificates with RSA keys of 2048 bits or more (AWS's RSA-2048 ones)", "another key")
    return certificates


def parse_bundle_text(text: str) -> RegionCertificates:
    """Read a bundle in one JSON object; what cannot be used is ``Denied``."""
    try:
        entries = strict_json.parse_object(text, max_size=None)
    except ParseError as error:
        raise invalid(_WHERE, _EXPECTED, error.found) from None
    texts = {region: entry for region, entry in entries.items() if isinstance(entry, str)}
    if len(texts) != len(entries):
        raise invalid(_WHERE, _EXPECTED, "other JSON")
    return parse_bundle(texts)


def read_trust_bundle(path: Path) -> RegionCertificates:
    """Read the bundle; ``Denied`` when it cannot be used."""
    try:
        if path.is_dir():
            return parse_bundle({file.stem: read_file(file, _WHERE).decode() for file in sorted(path.glob("*.pem"))})
        return parse_bundle_text(read_file(path, _WHERE).decode())
    except UnicodeDecodeError as error:
        raise invalid(_WHERE, _EXPECTED, type(error).__name__) from None
