"""Targets of the ``oci`` provider: what a node sends, what Oracle certified, what operators write."""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from fuzz.target import Target, bytes_law, evidence_law, refused, require, settings_law, text_law
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.oci.config import parse_platform, parse_policy, parse_roots
from nodeattest_providers.oci.protocol import (
    PREFIX,
    OciEvidence,
    is_instance,
    parse_identity_certificate,
    parse_provider_id,
)


def _certificate(data: bytes) -> bool:
    try:
        read = parse_identity_certificate(data)
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    require(is_instance(read.instance), "an instance")
    require(read.certificate.public_bytes(Encoding.DER) == data, "the certificate itself")
    return True


BUNDLE: Final = bytes_law(parse_roots, Reason.POLICY_INVALID, "a certificate at least", bool)

TARGETS: Final = (
    Target("oci-evidence", evidence_law(OciEvidence.parse)),
    Target("oci-certificate", _certificate, 4096),
    Target("oci-provider-id", text_law(parse_provider_id, PREFIX.__add__, Reason.PROVIDER_ID_INVALID), 512),
    Target("oci-trust-bundle", BUNDLE, 8192),
    Target("oci-policy", settings_law(parse_policy), 1024),
    Target("oci-configuration", settings_law(parse_platform), 1024),
)
