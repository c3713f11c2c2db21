"""The EC2 metadata service, by version 2 of its protocol: credentials, identity document and its signature.

Nothing is asked without a session token: any forged request of a pod's web server could use version 1. Messages name
fields and lengths, never values. The signature comes as BER; what is sent and checked is DER of the same content.
Source: AWS, "Use IMDSv2", "Retrieve security credentials from instance metadata"; X.690 §8.1.3, §8.1.5, §8.7.3.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, Self

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers.aws.protocol import MAX_DOCUMENT, MAX_PKCS7, InstanceRef, parse_provider_id
from nodeattest_providers.errors import Denied, Reason, Unavailable, platform_unavailable
from nodeattest_providers.metadata_service import MetadataService
from nodeattest_providers.node_interface import SecretBytes

NAME: Final = "the EC2 instance metadata service"
_HEADER: Final = "X-aws-ec2-metadata-token"
_ROLES: Final = "/latest/meta-data/iam/security-credentials/"
_IDENTITY: Final = "/latest/dynamic/instance-identity/"

_CHECK: Final = (
    "check that this machine is an EC2 instance and that its metadata endpoint is enabled; run it on the node itself, "
    "not in a container, which the instance's HttpPutResponseHopLimit of 1 keeps out"
)


@dataclass(frozen=True, slots=True)
class Session:
    """A metadata service that gave a token."""

    service: MetadataService
    _token: str = field(repr=False)

    @classmethod
    def begin(cls, service: MetadataService) -> Self:
        """Get a token for 60 seconds; raises Unavailable when nobody answers, Denied when it knows no tokens."""
        path = "/latest/api/token"
        try:
            answer = service.ask("PUT", path, {f"{_HEADER}-ttl-seconds": "60"})
        except Unavailable as unavailable:
            raise platform_unavailable(unavailable.detail, remedy=_CHECK) from None
        match answer.status:
            case HTTPStatus.OK:
                return cls(service, parse_imds_token(answer.body))
            case HTTPStatus.NOT_FOUND | HTTPStatus.METHOD_NOT_ALLOWED | HTTPStatus.NOT_IMPLEMENTED:
                raise _without_tokens(f"status {answer.status} for a token")
            case HTTPStatus.FORBIDDEN:
                detail = f"{NAME} gives no token (status 403): it is switched off, or a proxy stands before it"
                raise platform_unavailable(detail, remedy=_CHECK)
            case _:
                raise service.refused(path, answer.status)

    def credentials(self) -> InstanceCredentials:
        """Get the credentials of the instance's role; Denied without a role."""
        answer = self.service.ask("GET", _ROLES, {_HEADER: self._token})
        if answer.status == HTTPStatus.NOT_FOUND or (answer.status == HTTPStatus.OK and not answer.body.strip()):
            raise Denied(
                Reason.PLATFORM_ROLE_NOT_ALLOWED,
                expected="an instance with an instance profile",
                got="one without",
                remedy="attach an instance profile whose role the policy lists; the role needs no permissions",
            )
        if answer.status != HTTPStatus.OK:
            raise self.service.refused(_ROLES, answer.status)
        return parse_credentials(self._get(_ROLES + parse_role(answer.body)))

    def document(self) -> bytes:
        return self._get(f"{_IDENTITY}document")

    def signature(self) -> bytes:
        return self._get(f"{_IDENTITY}rsa2048")

    def _get(self, path: str) -> bytes:
        return self.service.get(path, {_HEADER: self._token})


def _without_tokens(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected="a metadata service with session tokens (IMDSv2)",
        got=got,
        remedy="take away what stands before the metadata service and knows version 1 only; that is never used",
    )


_TOKEN: Final = re.compile(rb"[!-~]{1,1024}")
"""An IMDSv2 session token: opaque; what a header may contain. AWS gives 56 characters."""
_ROLE: Final = re.compile(rb"[A-Za-z0-9_+=,.@-]{1,64}")
_ACCESS_KEY_ID: Final = re.compile(r"[A-Z0-9]{16,128}")
_SECRET: Final = re.compile(r"[A-Za-z0-9/+=]{16,256}")
_SESSION_TOKEN: Final = re.compile(r"[A-Za-z0-9+/=_-]{16,8192}")
_EXPIRATION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/\r\n]++={0,2}[\r\n]*+")
_WORD: Final = re.compile(r"[ -~]{1,128}")

_REMEDY: Final = "check what answers at the metadata service's address; an EC2 instance's own speaks otherwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceCredentials:
    """Temporary credentials of the instance's role."""

    access_key_id: str
    secret: SecretBytes
    token: str = field(repr=False)
    expiration: datetime


def parse_imds_token(data: bytes) -> str:
    if not _TOKEN.fullmatch(data):
        raise _without_tokens(f"{len(data)} bytes of something else")
    return data.decode()


def parse_role(data: bytes) -> str:
    role = data.strip()
    if not _ROLE.fullmatch(role):
        raise _malformed("the name of one role", f"{len(data)} bytes of something else")
    return role.decode()


def parse_credentials(data: bytes) -> InstanceCredentials:
    values = _object(data, "the role's credentials")
    code = _text(values, "Code", _WORD)
    if code != "Success":
        raise Denied(
            Reason.PLATFORM_PROOF_REFUSED,
            expected="credentials of the instance's role",
            got=f"the code {code!r}",
            remedy="let the role trust the service ec2.amazonaws.com; after a change of it AWS takes a minute",
        )
    if _text(values, "Type", _WORD) != "AWS-HMAC":
        raise _malformed("credentials of type AWS-HMAC", "another type")
    when = _text(values, "Expiration", _EXPIRATION)
    try:
        expiration = datetime.strptime(when, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise _malformed("Expiration as a time", "no time") from None
    return InstanceCredentials(
        access_key_id=_text(values, "AccessKeyId", _ACCESS_KEY_ID),
        secret=SecretBytes(_text(values, "SecretAccessKey", _SECRET).encode()),
        token=_text(values, "Token", _SESSION_TOKEN),
        expiration=expiration,
    )


def parse_imds_document(data: bytes) -> InstanceRef:
    if len(data) > MAX_DOCUMENT:
        raise _malformed(f"an identity document of at most {MAX_DOCUMENT} bytes", str(len(data)))
    values = _object(data, "the identity document")
    region, zone, instance = (_text(values, key, _WORD) for key in ("region", "availabilityZone", "instanceId"))
    name = parse_provider_id(f"aws:///{zone}/{instance}")
    if name.region != region:
        raise _malformed("a zone of the document's region", "a zone of another")
    return name


def parse_imds_signature(data: bytes) -> bytes:
    """Read the document's RSA-2048 signature, base64 of BER without armour, and return it in DER."""
    if not _BASE64.fullmatch(data):
        raise _malformed("the signature in base64", f"{len(data)} bytes of something else")
    try:
        decoded = base64.b64decode(b"".join(data.split()), validate=True)
    except ValueError:
        raise _malformed("the signature in base64", "something else") from None
    der = to_definite_length(decoded)
    if len(der) > MAX_PKCS7:
        raise _malformed(f"a signature of at most {MAX_PKCS7} bytes", str(len(der)))
    return der


def _object(data: bytes, what: str) -> JsonObject:
    try:
        return strict_json.parse_object(data, max_size=None, floats=True)
    except ParseError as error:
        raise _malformed(f"{what} as a JSON object", f"{len(data)} bytes with {error.found}") from None


def _text(values: Mapping[str, object], key: str, spelling: re.Pattern[str]) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not spelling.fullmatch(value):
        got = f"{len(value)} other characters" if isinstance(value, str) else "something else or none"
        raise _malformed(f"{key} as AWS spells it", got)
    return value


def _malformed(expected: str, got: str) -> Denied:
    return Denied(Reason.PLATFORM_DOCUMENT_MALFORMED, expected=expected, got=got, remedy=_REMEDY)


_MAX_SIZE: Final = 16 * 1024
"""Bytes; the metadata service gives about 1300."""
_MAX_DEPTH: Final = 16
"""Levels; a SignedData without certificates has 9."""
_CONSTRUCTED: Final = 0x20
_HIGH_TAG: Final = 0x1F
_LONG_FORM: Final = 0x80
_OCTET_STRING: Final = 0x04
_END_OF_CONTENTS: Final = b"\x00\x00"


def to_definite_length(ber: bytes) -> bytes:
    """Rewrite one BER element, which fills the bytes; anything else is ``Denied``."""
    if len(ber) > _MAX_SIZE:
        raise _not_ber(f"{len(ber)} bytes")
    element, end = _element(ber, 0, len(ber), 0)
    if end != len(ber):
        raise _not_ber("bytes after the element")
    return element


def _element(data: bytes, start: int, limit: int, depth: int) -> tuple[bytes, int]:
    if depth > _MAX_DEPTH:
        raise _not_ber(f"more than {_MAX_DEPTH} levels")
    if start + 2 > limit:
        raise _not_ber("an element that ends early")
    tag = data[start]
    if tag & _HIGH_TAG == _HIGH_TAG or data[start : start + 2] == _END_OF_CONTENTS:
        raise _not_ber("a tag that no SignedData has")
    size, start = _length(data, start + 1, limit)
    if not tag & _CONSTRUCTED:
        if size is None:
            raise _not_ber("a primitive element of indefinite length")
        return _encode(tag, data[start : start + size]), start + size
    parts, end = _parts(data, start, limit if size is None else start + size, depth, indefinite=size is None)
    if tag == _OCTET_STRING | _CONSTRUCTED:
        return _encode(_OCTET_STRING, b"".join(map(_octets, parts))), end
    return _encode(tag, b"".join(parts)), end


def _parts(data: bytes, start: int, limit: int, depth: int, *, indefinite: bool) -> tuple[list[bytes], int]:
    parts: list[bytes] = []
    while indefinite or start < limit:
        if indefinite and data[start : start + 2] == _END_OF_CONTENTS:
            return parts, start + 2
        part, start = _element(data, start, limit, depth + 1)
        parts.append(part)
    return parts, start


def _length(data: bytes, start: int, limit: int) -> tuple[int | None, int]:
    """Read length octets; None for the indefinite form."""
    first, start = data[start], start + 1
    if first == _LONG_FORM:
        return None, start
    size = first
    if first > _LONG_FORM:
        octets = data[start : min(start + first - _LONG_FORM, limit)]
        size, start = int.from_bytes(octets, "big"), start + first - _LONG_FORM
    if start + size > limit:
        raise _not_ber("an element that ends early")
    return size, start


def _octets(part: bytes) -> bytes:
    if part[0] != _OCTET_STRING:
        raise _not_ber("an octet string of other parts")
    return part[2:] if part[1] < _LONG_FORM else part[2 + part[1] - _LONG_FORM :]


def _encode(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < _LONG_FORM:
        return bytes((tag, size)) + content
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, _LONG_FORM | len(octets))) + octets + content


def _not_ber(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected="one BER element",
        got=got,
        remedy="send what the metadata service gives as dynamic/instance-identity/rsa2048",
    )
