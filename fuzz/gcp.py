"""Targets of the ``gcp`` provider: what a node sends, what the Compute API answers, what operators write."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Final

from fuzz.mutators.json_tree import JsonTree
from fuzz.target import Target, require
from fuzz.wire import CANONICAL
from nodeattest_kube.jsontypes import parse_json
from nodeattest_providers import canonical
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.gcp.instance import parse_identity, parse_instance, parse_page
from nodeattest_providers.gcp.place import parse_place
from nodeattest_providers.gcp.policy import parse_policy
from nodeattest_providers.gcp.settings import credentials_kind, parse_settings
from nodeattest_providers.interface import JsonValue
from nodeattest_providers.tpm.protocol import FirstEvidence, parse_evidence

__all__ = ["PLACE", "TARGETS"]

PLACE: Final = parse_place("gce://fleet-project/europe-west4-a/node-7")
"""Of the instance that the answers are about."""
_FILES: Final = frozenset({"caBundle", "credentialsFile"})
"""Settings that name files: no fuzzer opens what it invents."""


def _refused(denied: Denied, *allowed: Reason) -> bool:
    require(denied.reason in allowed, f"{' or '.join(allowed)} and no other reason")
    return False


def _evidence(data: bytes) -> bool:
    try:
        read = parse_evidence(canonical.loads(data), form="gcp/v1", certificates=False)
    except Denied as denied:
        return _refused(denied, Reason.EVIDENCE_MALFORMED)
    require(canonical.dumps(read.to_json()) == data, "one spelling of evidence")
    is_bare = not isinstance(read, FirstEvidence) or (read.ek_certificate is None and not read.ek_chain)
    require(is_bare, "no certificate in a first request")
    return True


def _provider_id(data: bytes) -> bool:
    text = data.decode(errors="surrogateescape")
    try:
        place = parse_place(text)
    except Denied as denied:
        return _refused(denied, Reason.PROVIDER_ID_INVALID)
    require(place.provider_id == text and place.zone.startswith(f"{place.region}-"), "one spelling, a zone of a region")
    require(text.isascii() and not set(text) & set("?#%\\\"' ()"), "nothing that a URL or a filter understands")
    return True


def _instances(data: bytes) -> bool:
    try:
        instances = [parse_instance(item, PLACE) for item in parse_page(data).items]
    except Denied as denied:
        return _refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    for instance in instances:
        require(instance.number.isdecimal() and instance.place == PLACE, "a numeric ID, and the place asked for")
        for kind, address in instance.addresses:
            require(
                not kind.endswith("IP") or str(ipaddress.ip_address(address)) == address, "addresses in one spelling"
            )
    return bool(instances)


def _identity(data: bytes) -> bool:
    try:
        keys = parse_identity(data)
    except Denied as denied:
        return _refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    require(all(key.startswith("sha256:") for key in keys) and len(keys) <= 2, "a fingerprint a key")  # noqa: PLR2004 - RSA and P-256
    return bool(keys)


def _credentials(data: bytes) -> bool:
    try:
        _, content = credentials_kind(data)
    except Denied as denied:
        return _refused(denied, Reason.POLICY_INVALID)
    require("executable" not in str(content.get("credential_source")), "nothing that runs a program")
    return True


def _settings(parse: Callable[[Mapping[str, JsonValue]], object]) -> Callable[[bytes], bool]:
    def law(data: bytes) -> bool:
        try:
            settings = parse_json(data)
        except ValueError:
            return False
        if _FILES & settings.keys():
            return False
        try:
            parse(settings)  # pyright: ignore[reportArgumentType] - with fractions too: what the type forbids must do no harm
        except Denied as denied:
            return _refused(denied, Reason.POLICY_INVALID)
        return True

    return law


TARGETS: Final = (
    Target("gcp-evidence", _evidence, CANONICAL),
    Target("gcp-provider-id", _provider_id, None, 256),
    Target("gcp-instances", _instances, JsonTree()),
    Target("gcp-identity", _identity, JsonTree(), 2048),
    Target("gcp-credentials", _credentials, JsonTree(), 2048),
    Target("gcp-policy", _settings(parse_policy), JsonTree()),
    Target("gcp-configuration", _settings(parse_settings), JsonTree()),
)
