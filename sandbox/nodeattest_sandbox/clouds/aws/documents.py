"""Instance identity documents and their signatures, in the shapes in which AWS gives them.

The signature is a SignedData with the document in it, with signed attributes and without certificates, in BER with
indefinite lengths (as Bouncy Castle's stream generator writes it), in base64 without armour.
Source: AWS, "Instance identity documents"; RFC 5652 §5; X.690 §8.1.3.6, §8.7.3.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7Options, PKCS7SignatureBuilder

from nodeattest_sandbox.clouds.aws.authority import RegionKey

__all__ = ["Placement", "document", "signature"]

_LINE: Final = 64
"""Characters of base64 a line."""
_CONTEXT_0: Final = 0xA0
_SEQUENCE: Final = 0x30
_CONSTRUCTED_OCTETS: Final = 0x24
_INDEFINITE: Final = 0x80
_END_OF_CONTENTS: Final = b"\x00\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What the document says of an instance."""

    account: str
    region: str
    zone: str
    instance_id: str
    image: str
    kind: str
    private_ip: str
    pending: datetime


def document(place: Placement) -> bytes:
    """Write the document as AWS spaces it."""
    values: dict[str, object] = {
        "accountId": place.account,
        "architecture": "x86_64",
        "availabilityZone": place.zone,
        "billingProducts": None,
        "devpayProductCodes": None,
        "imageId": place.image,
        "instanceId": place.instance_id,
        "instanceType": place.kind,
        "kernelId": None,
        "marketplaceProductCodes": None,
        "pendingTime": place.pending.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": place.private_ip,
        "ramdiskId": None,
        "region": place.region,
        "version": "2017-09-30",
    }
    return json.dumps(values, indent=2, separators=(",", " : ")).encode()


def signature(content: bytes, region: RegionKey) -> bytes:
    """Sign a document as ``dynamic/instance-identity/rsa2048`` gives it."""
    options = [PKCS7Options.Binary, PKCS7Options.NoCerts, PKCS7Options.NoCapabilities]
    builder = PKCS7SignatureBuilder().set_data(content).add_signer(region.certificate, region.key, hashes.SHA256())
    text = base64.b64encode(_streamed(builder.sign(Encoding.DER, options)))
    return b"\n".join(text[start : start + _LINE] for start in range(0, len(text), _LINE))


def _streamed(der: bytes) -> bytes:
    """Give ContentInfo, SignedData and the content inside them indefinite lengths."""
    kind, wrapped = _parts(_content(der))
    version, digests, inner, *rest = _parts(_content(_content(wrapped)))
    inner_kind, octets = _parts(_content(inner))
    parts = _indefinite(_CONSTRUCTED_OCTETS, _content(octets))
    inner = _indefinite(_SEQUENCE, inner_kind, _indefinite(_CONTEXT_0, parts))
    signed = _indefinite(_SEQUENCE, version, digests, inner, *rest)
    return _indefinite(_SEQUENCE, kind, _indefinite(_CONTEXT_0, signed))


def _indefinite(tag: int, *inside: bytes) -> bytes:
    return bytes((tag, _INDEFINITE)) + b"".join(inside) + _END_OF_CONTENTS


def _parts(content: bytes) -> list[bytes]:
    """Split DER elements that follow each other."""
    found: list[bytes] = []
    while content:
        header, size = _header(content)
        found.append(content[: header + size])
        content = content[header + size :]
    return found


def _content(element: bytes) -> bytes:
    header, size = _header(element)
    return element[header : header + size]


def _header(element: bytes) -> tuple[int, int]:
    """Tell the length of tag and length octets, and that of the content (X.690 §8.1.3)."""
    first = element[1]
    if first < _INDEFINITE:
        return 2, first
    count = first - _INDEFINITE
    return 2 + count, int.from_bytes(element[2 : 2 + count], "big")
