"""Targets of the TPM: its structures, endorsement certificates, event logs, the policy, and a device's responses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from fuzz.target import NOW, TPM_KEY, attempt, authority, require, settings_target, target
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.tpm import attestor
from nodeattest_providers.tpm.boot_state import EventLog, parse_event_log, replay
from nodeattest_providers.tpm.config import parse_policy
from nodeattest_providers.tpm.endorsement_key import check_certificate, parse_endorsement_key
from nodeattest_providers.tpm.key_templates import (
    AK_TEMPLATE,
    EK_TEMPLATES,
    check_attestation_key,
    parse_quote,
    parse_signature,
    qualified_name,
    signature_is_valid,
)
from nodeattest_providers.tpm.node import commands
from nodeattest_providers.tpm.node.commands import MAX_RESPONSE
from nodeattest_providers.tpm.node.device import Device, LoadedKey
from nodeattest_providers.tpm.protocol import make_credential
from nodeattest_providers.tpm.structures import (
    BANK_ALGORITHMS,
    MAX_PCR,
    Alg,
    PcrSelection,
    PublicArea,
    digest_size,
    parse_public,
)

_AK_PREFIX: Final = AK_TEMPLATE[: -2 * (2 + 32)]
"""The attestation key's public area up to its P-256 point."""


def _attestation_area(data: bytes) -> PublicArea:
    return parse_public(data, what="key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)


def _public_area(prefix: bytes) -> bytes:
    """Write a P-256 public area with the fixed key."""
    point = TPM_KEY.public_key().public_numbers()
    return prefix + b"\0\x20" + point.x.to_bytes(32, "big") + b"\0\x20" + point.y.to_bytes(32, "big")


@cache
def _endorsement_key() -> PublicArea:
    return parse_endorsement_key(_public_area(EK_TEMPLATES[0].prefix))


@cache
def _attestation_key() -> PublicArea:
    return _attestation_area(_public_area(_AK_PREFIX))


@target("tpm-public", _attestation_area, max_len=1024)
def _public(area: PublicArea, data: bytes) -> None:
    require(area.raw == data and len(area.name) > 2 and area.fingerprint.startswith("sha256:"), "Name and fingerprint")
    require(len(qualified_name(area)) == len(area.name), "a Qualified Name is as long as a Name")
    if attempt(lambda key: check_attestation_key(Checks(), key, _endorsement_key()), area):
        require(area.key.key_size in {256, 2048}, "only the closed set of attestation keys passes")


@target("tpm-endorsement-key", parse_endorsement_key, max_len=1024)
def _credential(area: PublicArea, _data: bytes) -> None:
    """Make a credential for each key that passes: it will be sent a challenge."""
    blob, secret = make_credential(area, _attestation_key().name, bytes(32), random=bytes)
    require(bool(blob and secret), "a credential for each endorsement key")


target("tpm-quote", parse_quote, max_len=512)(
    lambda quote, data: require(quote.raw == data, "the very bytes that were signed")
)
target("tpm-signature", parse_signature, max_len=512)(
    lambda signature, _: require(
        not signature_is_valid(_attestation_key(), signature, b"a message that was never signed"), "no forgery"
    )
)
target(
    "tpm-certificate",
    lambda data: check_certificate(Checks(), _endorsement_key(), data, (data,), anchors=[authority()], now=NOW),
    max_len=2048,
)(lambda _checked, _data: True)


@target("tpm-nv", lambda data: list(attestor.split_der(data)), max_len=2048)
def _nv(found: list[bytes], data: bytes) -> bool:
    require(b"".join(found) in data and all(found), "certificates one after the other")
    return bool(found)


@target("tpm-event-log", parse_event_log, Reason.EVENT_LOG_MALFORMED)
def _event_log(log: EventLog, _data: bytes) -> None:
    for bank in BANK_ALGORITHMS.values():
        if bank in log.sizes:
            values = replay(log, bank)
            require({len(value) for value in values.values()} <= {digest_size(bank)}, "PCR values of the bank's size")
            require(set(values) <= set(range(MAX_PCR + 1)), "PCRs that exist")


settings_target("tpm-policy", parse_policy)

_HEADER: Final = 10
_NV_INDICES: Final = range(0x01C00000, 0x01C08000)
_KEY: Final = LoadedKey(0x80000001, b"")
_HIGH_RANGE: Final = next(template for template in EK_TEMPLATES if template.policy_branches)
_SELECTION: Final = PcrSelection(Alg.SHA256, tuple(range(24)))


class ScriptedTpm:
    """Gives prepared bytes as responses: each as long as it says, or all that is left, until none is left."""

    def __init__(self, responses: bytes) -> None:
        self.sent: list[bytes] = []
        self._left = memoryview(responses)

    def exchange(self, command: bytes) -> bytes:
        """Take a command, and answer with the next response."""
        self.sent.append(command)
        if not self._left:
            raise ConnectionResetError("no response is left")
        size = int.from_bytes(self._left[2:6], "big")
        size = size if _HEADER <= size <= MAX_RESPONSE else MAX_RESPONSE
        response, self._left = bytes(self._left[:size]), self._left[size:]
        return response

    def close(self) -> None:
        """Do nothing."""


def _activate(device: Device) -> None:
    try:
        device.activate(_KEY, _KEY, _HIGH_RANGE, bytes(84), bytes(68))
    except Denied as denied:
        require(denied.reason is Reason.CHALLENGE_UNKNOWN, "ChallengeUnknown for a challenge")
        raise


_OPERATIONS: Final[tuple[Callable[[Device], None], ...]] = (
    lambda it: require(all(index in _NV_INDICES for index in it.nv_indices()), "indices that were asked for"),
    lambda it: require(len(it.nv_read(_NV_INDICES[2])) < 1 << 16, "no more than an index can have"),
    lambda it: require(len(list(it.persistent_keys())) <= 8, "few keys"),
    lambda it: require(len(it.create(AK_TEMPLATE, "the key").public) <= MAX_RESPONSE, "a public area"),
    _activate,
    lambda it: require(bool(it.quote(_KEY, _SELECTION, bytes(32))), "a quote"),
    lambda it: require(len(it.read_pcrs(_SELECTION)) >= len(_SELECTION.pcrs), "a value for each PCR"),
)
"""By the first byte of an input; the others are the responses."""


def _converse(data: bytes) -> ScriptedTpm:
    """Let the agent do what the first byte says."""
    tpm = ScriptedTpm(data[1:])
    with Device("scripted", connect=lambda _: tpm) as scripted:
        _OPERATIONS[(data or b"\0")[0] % len(_OPERATIONS)](scripted)
    return tpm


@target("tpm-responses", _converse, refusals=(Denied, Unavailable))
def _responses(tpm: ScriptedTpm, _data: bytes) -> None:
    codes = [int.from_bytes(command[6:10], "big") for command in tpm.sent]
    require(all(int.from_bytes(each[2:6], "big") == len(each) for each in tpm.sent), "commands as long as they say")
    is_flushed = codes[-1] == commands.FLUSH_CONTEXT
    require((commands.CREATE_PRIMARY in codes) == is_flushed, "what was created is flushed, and nothing else")
