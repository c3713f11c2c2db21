"""Targets of the ``aws`` provider: what a node sends, what AWS answers, what operators write; ``aws_node`` besides."""

from __future__ import annotations

from typing import Final

from fuzz import aws_node
from fuzz.keys import AUTHORITY_KEY
from fuzz.laws import refused, settings_law
from fuzz.mutators.der_tree import DerTree
from fuzz.mutators.json_tree import JsonTree
from fuzz.mutators.pem_blocks import PemBlocks
from fuzz.target import Target, require
from fuzz.wire import CANONICAL
from nodeattest_providers import canonical_json
from nodeattest_providers.aws import protocol as provider_id
from nodeattest_providers.aws.api.sts import parse_error_code, parse_identity, parse_role_session
from nodeattest_providers.aws.config import parse_platform, parse_policy
from nodeattest_providers.aws.identity_document import parse_bundle_text, parse_identity_document
from nodeattest_providers.aws.node import definite_length
from nodeattest_providers.aws.protocol import SIGNED_HEADERS, SignedHeaders, parse_authorization, parse_evidence
from nodeattest_providers.errors import Denied, Reason


def _evidence(data: bytes) -> bool:
    try:
        read = parse_evidence(canonical_json.loads(data))
    except Denied as denied:
        return refused(denied, Reason.EVIDENCE_MALFORMED)
    require(canonical_json.dumps(read.to_json()) == data, "one spelling of evidence")
    return True


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


def _document(data: bytes) -> bool:
    try:
        read = parse_identity_document(data)
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    require(read.account.isdecimal() and read.account.isascii(), "an account of digits")
    require(read.instance_id.startswith("i-") and read.pending.tzinfo is not None, "an instance and a time")
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


def _provider_id(data: bytes) -> bool:
    text = data.decode(errors="surrogateescape")
    try:
        name = provider_id.parse_provider_id(text)
    except Denied as denied:
        return refused(denied, Reason.PROVIDER_ID_INVALID)
    require(str(name) == text and name.zone.startswith(name.region), "one spelling, a zone of its region")
    return True


def _ber(data: bytes) -> bool:
    try:
        made = definite_length.to_definite_length(data)
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    require(definite_length.to_definite_length(made) == made, "definite once and for all")
    return True


def _trust(data: bytes) -> bool:
    try:
        bundle = parse_bundle_text(data.decode(errors="surrogateescape"))
    except Denied as denied:
        return refused(denied, Reason.POLICY_INVALID)
    require(
        all(provider_id.partition_of(region) and found for region, found in bundle.items()), "certificates a region"
    )
    return True


_PEM: Final = PemBlocks({"CERTIFICATE": DerTree(AUTHORITY_KEY)})

TARGETS: Final = (
    Target("aws-evidence", _evidence, CANONICAL),
    Target("aws-header-set", _header_set, None, 1024),
    Target("aws-identity-document", _document, JsonTree(), 2048),
    Target("aws-sts-answer", _answer, JsonTree(), 2048),
    Target("aws-provider-id", _provider_id, None, 256),
    Target("aws-ber", _ber, DerTree(), 1024),
    Target("aws-trust-bundle", _trust, JsonTree({"us-east-1": _PEM}), 8192),
    Target("aws-policy", settings_law(parse_policy), JsonTree()),
    Target("aws-configuration", settings_law(parse_platform), JsonTree()),
    *aws_node.TARGETS,
)
