"""Targets of the ``azure`` provider: what a node sends, what Azure signed, what operators write."""

from __future__ import annotations

from typing import Final

from fuzz.target import Target, bytes_law, evidence_law, refused, require, settings_law
from nodeattest_providers.azure.attested_document import parse_attested_document, parse_evidence
from nodeattest_providers.azure.config import parse_platform, parse_policy
from nodeattest_providers.azure.provider_id import PREFIX, parse_provider_id, provider_id_of
from nodeattest_providers.azure.trust_bundle import parse_bundle
from nodeattest_providers.errors import Denied, Reason


def _provider_id(data: bytes) -> bool:
    text = data.decode(errors="surrogateescape")
    provider_id_of(text)
    try:
        read = parse_provider_id(text)
    except Denied as denied:
        return refused(denied, Reason.PROVIDER_ID_INVALID)
    require(PREFIX + read.resource_id == text, "one spelling of a provider ID")
    require(provider_id_of(read.resource_id) == text, "the metadata service's name gives the same")
    return True


DOCUMENT: Final = bytes_law(
    parse_attested_document,
    Reason.PLATFORM_DOCUMENT_MALFORMED,
    "a machine and a time",
    lambda read: read.vm_id == read.vm_id.lower() and read.created.tzinfo is not None,
)
BUNDLE: Final = bytes_law(parse_bundle, Reason.POLICY_INVALID, "a root at least", lambda read: bool(read.roots))

TARGETS: Final = (
    Target("azure-evidence", evidence_law(parse_evidence)),
    Target("azure-document", DOCUMENT, 2048),
    Target("azure-provider-id", _provider_id, 512),
    Target("azure-trust-bundle", BUNDLE, 8192),
    Target("azure-policy", settings_law(parse_policy), 1024),
    Target("azure-configuration", settings_law(parse_platform), 1024),
)
