"""Targets of the ``oci`` provider: what a node sends, what Oracle certified, what operators write."""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from fuzz.keys import AUTHORITY_KEY
from fuzz.laws import refused, settings_law
from fuzz.mutators.der_tree import DerTree
from fuzz.mutators.json_tree import JsonTree
from fuzz.mutators.pem_blocks import PemBlocks
from fuzz.target import Target, require
from fuzz.wire import CANONICAL
from nodeattest_providers import canonical_json
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.oci.config import parse_platform, parse_policy, parse_roots
from nodeattest_providers.oci.protocol import (
    PREFIX,
    OciEvidence,
    is_instance,
    parse_identity_certificate,
    parse_provider_id,
)


def _evidence(data: bytes) -> bool:
    try:
        read = OciEvidence.parse(canonical_json.loads(data))
    except Denied as denied:
        return refused(denied, Reason.EVIDENCE_MALFORMED)
    require(canonical_json.dumps(read.to_json()) == data, "one spelling of evidence")
    return True


def _certificate(data: bytes) -> bool:
    try:
        read = parse_identity_certificate(data)
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    require(is_instance(read.instance), "an instance")
    require(read.certificate.public_bytes(Encoding.DER) == data, "the certificate itself")
    return True


def _provider_id(data: bytes) -> bool:
    text = data.decode(errors="surrogateescape")
    try:
        read = parse_provider_id(text)
    except Denied as denied:
        return refused(denied, Reason.PROVIDER_ID_INVALID)
    require(PREFIX + read == text, "one spelling of a provider ID")
    return True


def _bundle(data: bytes) -> bool:
    try:
        read = parse_roots(data)
    except Denied as denied:
        return refused(denied, Reason.POLICY_INVALID)
    require(bool(read), "a certificate at least")
    return True


TARGETS: Final = (
    Target("oci-evidence", _evidence, CANONICAL),
    Target("oci-certificate", _certificate, DerTree(AUTHORITY_KEY), 4096),
    Target("oci-provider-id", _provider_id, None, 512),
    Target("oci-trust-bundle", _bundle, PemBlocks({"CERTIFICATE": DerTree(AUTHORITY_KEY)}), 8192),
    Target("oci-policy", settings_law(parse_policy), JsonTree(), 1024),
    Target("oci-configuration", settings_law(parse_platform), JsonTree(), 1024),
)
