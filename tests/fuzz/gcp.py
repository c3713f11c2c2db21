"""Targets of the ``gcp`` provider: what a node sends, what the Compute API answers, what operators write."""

from __future__ import annotations

import ipaddress
from typing import Final

from fuzz.target import Target, refused, require, settings_law
from nodeattest_providers import canonical_json
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.gcp.api.instance import parse_instance, parse_instance_identity, parse_page
from nodeattest_providers.gcp.config import credentials_kind, parse_platform, parse_policy
from nodeattest_providers.gcp.provider_id import parse_provider_id
from nodeattest_providers.tpm.protocol import FirstEvidence, parse_evidence

PLACE: Final = parse_provider_id("gce://fleet-project/europe-west4-a/node-7")
"""Of the instance that the answers are about."""
_FILES: Final = frozenset({"caBundle", "credentialsFile"})
"""Settings that name files: no fuzzer opens what it invents."""


def _evidence(data: bytes) -> bool:
    try:
        read = parse_evidence(canonical_json.loads(data), form="gcp/v1", certificates=False)
    except Denied as denied:
        return refused(denied, Reason.EVIDENCE_MALFORMED)
    require(canonical_json.dumps(read.to_json()) == data, "one spelling of evidence")
    is_bare = not isinstance(read, FirstEvidence) or (read.ek_certificate is None and not read.ek_chain)
    require(is_bare, "no certificate in a first request")
    return True


def _provider_id(data: bytes) -> bool:
    text = data.decode(errors="surrogateescape")
    try:
        place = parse_provider_id(text)
    except Denied as denied:
        return refused(denied, Reason.PROVIDER_ID_INVALID)
    require(place.provider_id == text and place.zone.startswith(f"{place.region}-"), "one spelling, a zone of a region")
    require(text.isascii() and not set(text) & set("?#%\\\"' ()"), "nothing that a URL or a filter understands")
    return True


def _instances(data: bytes) -> bool:
    try:
        instances = [parse_instance(item, PLACE) for item in parse_page(data).items]
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    for instance in instances:
        require(instance.number.isdecimal() and instance.place == PLACE, "a numeric ID, and the place asked for")
        for kind, address in instance.addresses:
            require(
                not kind.endswith("IP") or str(ipaddress.ip_address(address)) == address, "addresses in one spelling"
            )
    return bool(instances)


def _identity(data: bytes) -> bool:
    try:
        keys = parse_instance_identity(data)
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    require(all(key.startswith("sha256:") for key in keys) and len(keys) <= 2, "a fingerprint a key")
    return bool(keys)


def _credentials(data: bytes) -> bool:
    try:
        _, content = credentials_kind(data)
    except Denied as denied:
        return refused(denied, Reason.POLICY_INVALID)
    require("executable" not in str(content.get("credential_source")), "nothing that runs a program")
    return True


TARGETS: Final = (
    Target("gcp-evidence", _evidence),
    Target("gcp-provider-id", _provider_id, 256),
    Target("gcp-instances", _instances),
    Target("gcp-identity", _identity, 2048),
    Target("gcp-credentials", _credentials, 2048),
    Target("gcp-policy", settings_law(parse_policy, passed_over=_FILES)),
    Target("gcp-configuration", settings_law(parse_platform, passed_over=_FILES)),
)
