"""Targets of the TPM's structures, endorsement certificates, and the policy about them."""

from __future__ import annotations

from functools import cache
from typing import Final

from fuzz.keys import NOW, TPM_KEY, authority
from fuzz.target import Target, require
from nodeattest_kube.jsontypes import parse_json
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.config import parse_policy
from nodeattest_providers.tpm.endorsement_key import check_certificate, parse_endorsement_key
from nodeattest_providers.tpm.event_log import parse_event_log, replay
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE, EK_TEMPLATES, check_attestation_key, qualified_name
from nodeattest_providers.tpm.make_credential import make_credential
from nodeattest_providers.tpm.node import device
from nodeattest_providers.tpm.quote import parse_quote, parse_signature, signature_is_valid
from nodeattest_providers.tpm.structures import BANK_ALGORITHMS, MAX_PCR, PublicArea, digest_size, parse_public

AK_PREFIX: Final = AK_TEMPLATE[: -2 * (2 + 32)]
"""The attestation key's public area up to its P-256 point."""


def public_area(prefix: bytes) -> bytes:
    """Write a P-256 public area with the fixed key."""
    point = TPM_KEY.public_key().public_numbers()
    return prefix + b"\0\x20" + point.x.to_bytes(32, "big") + b"\0\x20" + point.y.to_bytes(32, "big")


@cache
def endorsement_key() -> PublicArea:
    """Return the fixed key as an endorsement key."""
    return parse_endorsement_key(public_area(EK_TEMPLATES[0].prefix))


@cache
def attestation_key() -> PublicArea:
    """Return the fixed key as an attestation key."""
    return parse_public(public_area(AK_PREFIX), what="key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)


def _public(data: bytes) -> bool:
    try:
        area = parse_public(data, what="key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)
    except Denied:
        return False
    require(area.raw == data and len(area.name) > 2 and area.fingerprint.startswith("sha256:"), "Name and fingerprint")
    require(len(qualified_name(area)) == len(area.name), "a Qualified Name is as long as a Name")
    try:
        check_attestation_key(Checks(), area, endorsement_key())
    except Denied:
        return True
    require(area.key.key_size in {256, 2048}, "only the closed set of attestation keys passes")
    return True


def _endorsement_key(data: bytes) -> bool:
    """Make a credential for each key that passes: it will be sent a challenge."""
    try:
        area = parse_endorsement_key(data)
    except Denied:
        return False
    made = make_credential(area, attestation_key().name, bytes(32), random=bytes)
    require(bool(made.blob and made.secret), "a credential for each endorsement key")
    return True


def _quote(data: bytes) -> bool:
    try:
        quote = parse_quote(data)
    except Denied:
        return False
    require(quote.raw == data, "the very bytes that were signed")
    return True


def _signature(data: bytes) -> bool:
    try:
        signature = parse_signature(data)
    except Denied:
        return False
    require(not signature_is_valid(attestation_key(), signature, b"a message that was never signed"), "no forgery")
    return True


def _certificate(data: bytes) -> bool:
    anchors = [authority()]
    try:
        check_certificate(Checks(), endorsement_key(), data, (data,), anchors=anchors, now=NOW)
    except Denied:
        return False
    return True


def _nv(data: bytes) -> bool:
    found = list(device.split_der(data))
    require(b"".join(found) in data and all(found), "certificates one after the other")
    return bool(found)


def _event_log(data: bytes) -> bool:
    try:
        log = parse_event_log(data)
    except Denied as denied:
        require(denied.reason is Reason.EVENT_LOG_MALFORMED, "EventLogMalformed for a log")
        return False
    for bank in BANK_ALGORITHMS.values():
        if bank in log.sizes:
            values = replay(log, bank)
            require({len(value) for value in values.values()} <= {digest_size(bank)}, "PCR values of the bank's size")
            require(set(values) <= set(range(MAX_PCR + 1)), "PCRs that exist")
    return True


def _policy(data: bytes) -> bool:
    try:
        settings = parse_json(data)
    except ValueError:
        return False
    try:
        policy = parse_policy(_whole(settings))
    except Denied as denied:
        require(denied.reason is Reason.POLICY_INVALID, "PolicyInvalid for a policy")
        return False
    require(bool(policy.selection.pcrs) and set(policy.allowed_pcrs) <= set(policy.selection.pcrs), "PCRs selected")
    return True


def _whole(settings: dict[str, object] | object) -> dict[str, JsonValue]:
    return settings  # pyright: ignore[reportReturnType] - with fractions too: what the type forbids must do no harm


TARGETS: Final = (
    Target("tpm-public", _public, 1024),
    Target("tpm-endorsement-key", _endorsement_key, 1024),
    Target("tpm-quote", _quote, 512),
    Target("tpm-signature", _signature, 512),
    Target("tpm-event-log", _event_log, 4096),
    Target("tpm-certificate", _certificate, 2048),
    Target("tpm-nv", _nv, 2048),
    Target("tpm-policy", _policy),
)
