"""Targets of the ``azure`` provider: what a node sends, what Azure signed, what operators write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fuzz.keys import AUTHORITY_KEY
from fuzz.mutators.der_tree import DerTree
from fuzz.mutators.json_tree import JsonTree
from fuzz.mutators.pem_blocks import PemBlocks
from fuzz.target import Target, require
from fuzz.wire import CANONICAL
from nodeattest_kube.jsontypes import parse_json
from nodeattest_providers import canonical
from nodeattest_providers.azure.configuration import parse_configuration
from nodeattest_providers.azure.document import parse_document
from nodeattest_providers.azure.policy import parse_policy
from nodeattest_providers.azure.protocol import parse_evidence
from nodeattest_providers.azure.resource import PREFIX, parse_provider_id, provider_id_of
from nodeattest_providers.azure.trust import parse_bundle
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.interface import JsonValue

__all__ = ["TARGETS"]


def _refused(denied: Denied, allowed: Reason) -> bool:
    require(denied.reason is allowed, f"{allowed} and no other reason")
    return False


def _evidence(data: bytes) -> bool:
    try:
        read = parse_evidence(canonical.loads(data))
    except Denied as denied:
        return _refused(denied, Reason.EVIDENCE_MALFORMED)
    require(canonical.dumps(read.to_json()) == data, "one spelling of evidence")
    return True


def _document(data: bytes) -> bool:
    try:
        read = parse_document(data)
    except Denied as denied:
        return _refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    require(read.vm_id == read.vm_id.lower() and read.created.tzinfo is not None, "a machine and a time")
    return True


def _provider_id(data: bytes) -> bool:
    text = data.decode(errors="surrogateescape")
    provider_id_of(text)
    try:
        read = parse_provider_id(text)
    except Denied as denied:
        return _refused(denied, Reason.PROVIDER_ID_INVALID)
    require(PREFIX + read.resource_id == text, "one spelling of a provider ID")
    require(provider_id_of(read.resource_id) == text, "the metadata service's name gives the same")
    return True


def _bundle(data: bytes) -> bool:
    try:
        read = parse_bundle(data)
    except Denied as denied:
        return _refused(denied, Reason.POLICY_INVALID)
    require(bool(read.roots), "a root at least")
    return True


def _settings(parse: Callable[[Mapping[str, JsonValue]], object]) -> Callable[[bytes], bool]:
    def law(data: bytes) -> bool:
        try:
            settings = parse_json(data)
        except ValueError:
            return False
        try:
            parse(settings)  # pyright: ignore[reportArgumentType] - with fractions too: what the type forbids must do no harm
        except Denied as denied:
            return _refused(denied, Reason.POLICY_INVALID)
        return True

    return law


TARGETS: Final = (
    Target("azure-evidence", _evidence, CANONICAL),
    Target("azure-document", _document, JsonTree(), 2048),
    Target("azure-provider-id", _provider_id, None, 512),
    Target("azure-trust-bundle", _bundle, PemBlocks({"CERTIFICATE": DerTree(AUTHORITY_KEY)}), 8192),
    Target("azure-policy", _settings(parse_policy), JsonTree(), 1024),
    Target("azure-configuration", _settings(parse_configuration), JsonTree(), 1024),
)
