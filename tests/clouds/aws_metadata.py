"""The metadata service of an EC2 instance, by version 2 of its protocol, and its signed identity document.

Each instance has a port of its own, as link-local addresses are not to be had here, and so no hop limit. A region's
certificate is self-signed RSA-2048, as AWS publishes one for each.
Source: AWS, "Use IMDSv2", "Instance metadata categories", "Instance identity documents".
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from aws_signing import RoleSession

from clouds.authority import Authority
from clouds.cms import aws_form
from clouds.serving import Reply, Request

_TOKEN: Final = "x-aws-ec2-metadata-token"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_CREDENTIALS: Final = "iam/security-credentials/"
_LINE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    account: str
    region: str
    zone: str
    instance_id: str
    launched: datetime
    image: str = "ami-12c6146b"
    kind: str = "m7g.large"
    private_dns: str = ""
    private_ip: str = "10.0.0.1"
    metadata_endpoint: str = ""

    @property
    def provider_id(self) -> str:
        return f"aws:///{self.zone}/{self.instance_id}"


@dataclass(slots=True, kw_only=True)
class MetadataServer:
    instance: Instance
    region: Authority
    assume: Callable[[str], RoleSession]
    role: str | None
    _issued: set[str] = field(default_factory=set[str])

    def answer(self, request: Request) -> Reply:
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
            "AccessKeyId": keys.access_key,
            "SecretAccessKey": keys.secret_key,
            "Token": keys.token,
            "Expiration": keys.expires.strftime(_TIME),
        }
        return json.dumps(values, indent=2).encode()


def document(instance: Instance, **changes: object) -> bytes:
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
    return json.dumps({**values, **changes}, indent=2, separators=(",", " : ")).encode()


def signature(content: bytes, region: Authority, *, now: datetime) -> bytes:
    text = base64.b64encode(aws_form(content, region, now).streamed())
    return b"\n".join(text[start : start + _LINE] for start in range(0, len(text), _LINE))
