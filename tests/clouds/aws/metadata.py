"""An instance's metadata service: version 2 of the protocol.

Each instance has a port of its own, as link-local addresses are not to be had here, and so no hop limit. Identity
documents are signed by a region's certificate, self-signed RSA-2048, as AWS publishes one for each region.
Source: AWS, "Use IMDSv2", "Instance metadata categories", "Instance identity documents".
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from clouds.cms import aws_form
from clouds.serving import Reply, Request
from nodeattest_sandbox.pki import builder

_TOKEN: Final = "x-aws-ec2-metadata-token"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_CREDENTIALS: Final = "iam/security-credentials/"
_LINE: Final = 64
"""Characters of base64 a line."""


@dataclass(frozen=True, slots=True)
class RegionKey:
    """What signs a region's identity documents."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey = field(repr=False)


def make_region_key() -> RegionKey:
    """Make what signs the identity documents of one region."""
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Sandbox Web Services")])
    return RegionKey(builder(subject, subject, key.public_key()).sign(key, hashes.SHA256()), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A running instance."""

    account: str
    region: str
    zone: str
    instance_id: str
    image: str = field(repr=False)
    kind: str = field(repr=False)
    launched: datetime = field(repr=False)
    private_dns: str
    private_ip: str
    metadata_endpoint: str = ""
    """``http://127.0.0.1:<port>``, in place of the link-local address."""

    @property
    def provider_id(self) -> str:
        """The provider ID, as cloud-provider-aws gives it."""
        return f"aws:///{self.zone}/{self.instance_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Temporary credentials of a role's session."""

    access_key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    expires: datetime

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables in which AWS's libraries look for them."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_SESSION_TOKEN": self.token,
        }


@dataclass(slots=True, kw_only=True)
class MetadataServer:
    """Serves one instance."""

    instance: Instance
    region: RegionKey
    assume: Callable[[str], Credentials]
    """Gives credentials of a role."""
    role: str | None
    _issued: set[str] = field(default_factory=set[str])

    def answer(self, request: Request) -> Reply:
        """Answer one request."""
        if request.method == "PUT" and request.path == "/latest/api/token":
            token = secrets.token_urlsafe(40) + "=="
            self._issued.add(token)
            return Reply(200, token.encode())
        if request.headers.get(_TOKEN, "") not in self._issued:
            return Reply(401)
        found = self._read(request.path.removeprefix("/latest/"))
        return Reply(404) if found is None else Reply(200, found, {"Content-Type": "text/plain"})

    def _read(self, path: str) -> bytes | None:
        instance, role = self.instance, self.role
        plain: dict[str, Callable[[], bytes]] = {
            "dynamic/instance-identity/document": lambda: document(instance),
            "dynamic/instance-identity/rsa2048": lambda: signature(
                document(instance), self.region, now=datetime.now(UTC)
            ),
        }
        if role is not None:
            plain |= {
                f"meta-data/{_CREDENTIALS}": role.encode,
                f"meta-data/{_CREDENTIALS}{role}": lambda: self._credentials(role),
            }
        return plain[path]() if path in plain else None

    def _credentials(self, role: str) -> bytes:
        keys = self.assume(role)
        values = {
            "Code": "Success",
            "LastUpdated": datetime.now(UTC).strftime(_TIME),
            "Type": "AWS-HMAC",
            "AccessKeyId": keys.access_key_id,
            "SecretAccessKey": keys.secret,
            "Token": keys.token,
            "Expiration": keys.expires.strftime(_TIME),
        }
        return json.dumps(values, indent=2).encode()


def document(instance: Instance) -> bytes:
    """Write the identity document as AWS spaces it."""
    values: dict[str, object] = {
        "accountId": instance.account,
        "architecture": "x86_64",
        "availabilityZone": instance.zone,
        "billingProducts": None,
        "devpayProductCodes": None,
        "imageId": instance.image,
        "instanceId": instance.instance_id,
        "instanceType": instance.kind,
        "kernelId": None,
        "marketplaceProductCodes": None,
        "pendingTime": instance.launched.strftime(_TIME),
        "privateIp": instance.private_ip,
        "ramdiskId": None,
        "region": instance.region,
        "version": "2017-09-30",
    }
    return json.dumps(values, indent=2, separators=(",", " : ")).encode()


def signature(content: bytes, region: RegionKey, *, now: datetime) -> bytes:
    """Sign a document as ``dynamic/instance-identity/rsa2048`` gives it."""
    text = base64.b64encode(aws_form(content, region.key, region.certificate, now).streamed())
    return b"\n".join(text[start : start + _LINE] for start in range(0, len(text), _LINE))
