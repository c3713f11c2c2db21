"""Targets of the ``aws`` provider: what a node sends, what AWS answers, what operators write; ``aws_node`` besides."""

from __future__ import annotations

from typing import Final

from fuzz import aws_node
from fuzz.target import Target, bytes_law, evidence_law, refused, require, settings_law, text_law
from nodeattest_providers.aws.api.sts import parse_error_code, parse_identity, parse_role_session
from nodeattest_providers.aws.config import parse_platform, parse_policy
from nodeattest_providers.aws.identity_document import parse_bundle_text, parse_identity_document
from nodeattest_providers.aws.node.definite_length import to_definite_length
from nodeattest_providers.aws.protocol import (
    SIGNED_HEADERS,
    SignedHeaders,
    parse_authorization,
    parse_evidence,
    parse_provider_id,
    partition_of,
)
from nodeattest_providers.errors import Denied, Reason


def _header_set(data: bytes) -> bool:
    """Read three lines: a header set that passes is three lines again, whatever is made of it."""
    authorization, _, rest = data.decode(errors="surrogateescape").partition("\n")
    date, _, token = rest.partition("\n")
    try:
        read = parse_authorization(SignedHeaders(authorization=authorization, date=date, security_token=token))
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_PROOF_MALFORMED)
    require(all(one.isprintable() and one.isascii() for one in (authorization, date, token)), "no line in a header")
    require(f"/{read.region}/sts/aws4_request" in authorization, "a scope of STS and that region")
    require(f"SignedHeaders={';'.join(SIGNED_HEADERS)}," in authorization, "exactly the signed headers")
    return True


def _answer(data: bytes) -> bool:
    parse_error_code(data)
    identity = parse_identity(data)
    if identity is None:
        return False
    session = parse_role_session(identity.arn)
    spelt = session and (
        f"arn:{session.partition}:sts::{session.account}:assumed-role/{session.role}/{session.session}"
    )
    require(spelt in (None, identity.arn), "one way to take an ARN apart")
    return True


DOCUMENT: Final = bytes_law(
    parse_identity_document,
    Reason.PLATFORM_DOCUMENT_MALFORMED,
    "an account of digits, an instance and a time",
    lambda read: read.account.isdecimal() and read.instance_id.startswith("i-") and read.pending.tzinfo is not None,
)
BER: Final = bytes_law(
    to_definite_length,
    Reason.PLATFORM_DOCUMENT_MALFORMED,
    "definite once and for all",
    lambda made: to_definite_length(made) == made,
)
TRUST: Final = bytes_law(
    lambda data: parse_bundle_text(data.decode(errors="surrogateescape")),
    Reason.POLICY_INVALID,
    "certificates a region",
    lambda bundle: all(partition_of(region) and found for region, found in bundle.items()),
)

TARGETS: Final = (
    Target("aws-evidence", evidence_law(parse_evidence)),
    Target("aws-header-set", _header_set, 1024),
    Target("aws-identity-document", DOCUMENT, 2048),
    Target("aws-sts-answer", _answer, 2048),
    Target("aws-provider-id", text_law(parse_provider_id, str, Reason.PROVIDER_ID_INVALID), 256),
    Target("aws-ber", BER, 1024),
    Target("aws-trust-bundle", TRUST, 8192),
    Target("aws-policy", settings_law(parse_policy)),
    Target("aws-configuration", settings_law(parse_platform)),
    *aws_node.TARGETS,
)
