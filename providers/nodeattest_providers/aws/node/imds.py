"""The instance's metadata service by version 2 of its protocol: first a token, then everything else with it.

Promises: nothing is ever asked without a token, so a service that knows only version 1 (which any forged request of a
pod's web server can use) is refused; a token lives a minute and is for one piece of evidence. Whatever is missing is
reported in one line with what to check.
Source: AWS, "Use IMDSv2": 403 when the endpoint is switched off or the request was forwarded, 401 without a good token;
the answer to the PUT travels ``HttpPutResponseHopLimit`` hops, one by default, so that it never reaches a container.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, Self

from nodeattest_providers.aws.node.imds_answers import (
    InstanceCredentials,
    parse_credentials,
    parse_imds_token,
    parse_role,
)
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.metadata_service import MetadataService

ADDRESS: Final = "169.254.169.254"
NAME: Final = "the EC2 instance metadata service"
_TTL: Final = MappingProxyType({"X-aws-ec2-metadata-token-ttl-seconds": "60"})
"""Seconds, of 1 to 21600."""
_HEADER: Final = "X-aws-ec2-metadata-token"
_TOKEN_PATH: Final = "/latest/api/token"
_ROLES_PATH: Final = "/latest/meta-data/iam/security-credentials/"
_DOCUMENT_PATH: Final = "/latest/dynamic/instance-identity/document"
_SIGNATURE_PATH: Final = "/latest/dynamic/instance-identity/rsa2048"

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
        """Get a token; raises Unavailable when nobody answers, Denied when it knows no tokens."""
        try:
            answer = service.ask("PUT", _TOKEN_PATH, _TTL)
        except Unavailable as unavailable:
            raise Unavailable(unavailable.reason, unavailable.detail, remedy=_CHECK) from None
        if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}:
            raise _without_tokens(f"status {answer.status} for a token")
        if answer.status == HTTPStatus.FORBIDDEN:
            detail = f"{NAME} gives no token (status 403): it is switched off, or a proxy stands before it"
            raise Unavailable(Reason.PLATFORM_UNAVAILABLE, detail, remedy=_CHECK)
        if answer.status != HTTPStatus.OK:
            raise service.refused(_TOKEN_PATH, answer.status)
        try:
            return cls(service, parse_imds_token(answer.body))
        except Denied as denied:
            raise _without_tokens(denied.got) from None

    def credentials(self) -> InstanceCredentials:
        """Get the credentials of the instance's role; Denied without a role."""
        answer = self.service.ask("GET", _ROLES_PATH, self._headers)
        if answer.status == HTTPStatus.NOT_FOUND or (answer.status == HTTPStatus.OK and not answer.body.strip()):
            raise Denied(
                Reason.PLATFORM_ROLE_NOT_ALLOWED,
                expected="an instance with an instance profile",
                got="one without",
                remedy="attach an instance profile whose role the policy lists; the role needs no permissions",
            )
        if answer.status != HTTPStatus.OK:
            raise self.service.refused(_ROLES_PATH, answer.status)
        return parse_credentials(self._get(_ROLES_PATH + parse_role(answer.body)))

    def document(self) -> bytes:
        """Get the identity document."""
        return self._get(_DOCUMENT_PATH)

    def signature(self) -> bytes:
        """Get the document's RSA-2048 signature, as it is spelt there."""
        return self._get(_SIGNATURE_PATH)

    def _get(self, path: str) -> bytes:
        return self.service.get(path, self._headers)

    @property
    def _headers(self) -> dict[str, str]:
        return {_HEADER: self._token}


def _without_tokens(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected="a metadata service with session tokens (IMDSv2)",
        got=got,
        remedy="take away what stands before the metadata service and knows version 1 only; that is never used",
    )
