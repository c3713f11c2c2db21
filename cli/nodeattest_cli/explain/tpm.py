"""What TPM evidence says, in words: keys, attributes, the quote's state, and the event log beside the quote.

Facts only, but for what needs nobody's word. Fingerprints, Names, clocks and PCR digests are shown, never the proof or
the challenge's content. Evidence that does not parse gives no facts, since the verification says why. An event's data
counts as verified only where the profile says that the digest is the data's, it is, and the register replays to the
quoted value; everything else, types included, is shown as what it is: the node's words, one line of visible ASCII.
Source: TCG PC Client Platform Firmware Profile 1.05, "Event Types" and "UEFI_VARIABLE_DATA".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa

from nodeattest_cli.output import format_table
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import printable
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key
from nodeattest_providers.tpm.event_log import NO_PCR, Event, EventLog, hash_of, parse_event_log
from nodeattest_providers.tpm.event_log_checks import Measured, measure
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES, check_attestation_key
from nodeattest_providers.tpm.protocol import FirstEvidence, SecondEvidence, parse_evidence
from nodeattest_providers.tpm.quote import parse_quote, parse_signature, signature_is_valid
from nodeattest_providers.tpm.structures import Alg, PcrSelection, PublicArea, digest_size, parse_public
from nodeattest_providers.verifier_interface import NodeRequest

_NO_ACTION: Final = 0x00000003
_SEPARATOR: Final = 0x00000004
_S_CRTM_VERSION: Final = 0x00000008
_TYPES: Final = {
    0x00000000: "EV_PREBOOT_CERT",
    0x00000001: "EV_POST_CODE",
    0x00000002: "EV_UNUSED",
    _NO_ACTION: "EV_NO_ACTION",
    _SEPARATOR: "EV_SEPARATOR",
    0x00000005: "EV_ACTION",
    0x00000006: "EV_EVENT_TAG",
    0x00000007: "EV_S_CRTM_CONTENTS",
    _S_CRTM_VERSION: "EV_S_CRTM_VERSION",
    0x00000009: "EV_CPU_MICROCODE",
    0x0000000A: "EV_PLATFORM_CONFIG_FLAGS",
    0x0000000B: "EV_TABLE_OF_DEVICES",
    0x0000000C: "EV_COMPACT_HASH",
    0x0000000D: "EV_IPL",
    0x0000000E: "EV_IPL_PARTITION_DATA",
    0x0000000F: "EV_NONHOST_CODE",
    0x00000010: "EV_NONHOST_CONFIG",
    0x00000011: "EV_NONHOST_INFO",
    0x00000012: "EV_OMIT_BOOT_DEVICE_EVENTS",
    0x00000013: "EV_POST_CODE2",
    0x80000001: "EV_EFI_VARIABLE_DRIVER_CONFIG",
    0x80000002: "EV_EFI_VARIABLE_BOOT",
    0x80000003: "EV_EFI_BOOT_SERVICES_APPLICATION",
    0x80000004: "EV_EFI_BOOT_SERVICES_DRIVER",
    0x80000005: "EV_EFI_RUNTIME_SERVICES_DRIVER",
    0x80000006: "EV_EFI_GPT_EVENT",
    0x80000007: "EV_EFI_ACTION",
    0x80000008: "EV_EFI_PLATFORM_FIRMWARE_BLOB",
    0x80000009: "EV_EFI_HANDOFF_TABLES",
    0x8000000A: "EV_EFI_PLATFORM_FIRMWARE_BLOB2",
    0x8000000B: "EV_EFI_HANDOFF_TABLES2",
    0x8000000C: "EV_EFI_VARIABLE_BOOT2",
    0x8000000D: "EV_EFI_GPT_EVENT2",
    0x80000010: "EV_EFI_HCRTM_EVENT",
    0x800000E0: "EV_EFI_VARIABLE_AUTHORITY",
    0x800000E1: "EV_EFI_SPDM_FIRMWARE_BLOB",
    0x800000E2: "EV_EFI_SPDM_FIRMWARE_CONFIG",
}
_VARIABLES: Final = frozenset({0x80000001, 0x80000002, 0x8000000C, 0x800000E0})
_TEXTS: Final = frozenset({0x00000001, 0x00000005, 0x0000000D, 0x00000012, 0x80000007})
_HASHED: Final = frozenset(
    {_SEPARATOR, 0x00000005, _S_CRTM_VERSION, 0x00000012, 0x80000006, 0x80000007, 0x8000000D} | _VARIABLES
)
"""Types whose digest the profile defines as that of the event data."""
_SEPARATORS: Final = {bytes(4): "done", b"\xff" * 4: "done", b"\1\0\0\0": "the firmware failed"}
_VARIABLE_HEADER: Final = 16 + 8 + 8
"""Bytes of GUID, name length and data length."""
_SIGNATURE: Final = 16
"""Bytes that tell kinds of EV_NO_ACTION apart."""
_SMALL: Final = 4
"""Bytes of a variable that are shown: those of switches."""
_DIGITS: Final = 16
"""Digits of a digest that are shown: enough to find it by."""


def tpm_facts(request: NodeRequest) -> Iterator[tuple[str, str]]:
    """Tell what a request's TPM evidence says."""
    try:
        evidence = parse_evidence(request.evidence.data)
        match evidence:
            case FirstEvidence():
                yield from _key_facts(evidence)
            case SecondEvidence():
                yield from _quote_facts(evidence)
    except Denied:
        return


def _key_facts(evidence: FirstEvidence) -> Iterator[tuple[str, str]]:
    ek = parse_endorsement_key(evidence.ek_public)
    template = next(one.tcg_name for one in EK_TEMPLATES if evidence.ek_public.startswith(one.prefix))
    yield "endorsement key", f"{_kind(ek.key)}, TCG template {template}, {ek.fingerprint}"
    size = len(evidence.ek_certificate or b"")
    yield "endorsement certificate", f"{size} bytes, {len(evidence.ek_chain)} intermediates" if size else "none"
    ak = _attestation_key(evidence)
    yield "attestation key", f"{_kind(ak.key)}, attributes 0x{ak.attributes:08x}, Name {ak.name.hex()}"


def _quote_facts(evidence: SecondEvidence) -> Iterator[tuple[str, str]]:
    yield "answers", f"request {evidence.first.name}, UID {evidence.first.uid}"
    quote = parse_quote(evidence.quote)
    state = "safe" if quote.safe else "not safe (normal after a power loss)"
    yield "TPM clock", f"{quote.clock} ms, {quote.reset_count} resets, {quote.restart_count} restarts, {state}"
    for selection in quote.selections:
        yield "quoted PCRs", f"{selection.bank.name} {', '.join(map(str, selection.pcrs))}"
    yield "PCR digest", quote.pcr_digest.hex()


def explain_endorsement_keys(checks: Checks, request: NodeRequest) -> None:
    """Check the keys of a first request; raises ``Denied``. The verification decides whose TPM it is."""
    evidence = parse_evidence(request.evidence.data)
    if isinstance(evidence, FirstEvidence):
        ak, ek = _attestation_key(evidence), parse_endorsement_key(evidence.ek_public)
        check_attestation_key(checks, ak, ek)


def explain_quote_signature(checks: Checks, request: NodeRequest, first: NodeRequest) -> None:
    """Check the quote's signature by the key of the first request; raises ``Denied``."""
    evidence, claimed = parse_evidence(request.evidence.data), parse_evidence(first.evidence.data)
    if not isinstance(evidence, SecondEvidence) or not isinstance(claimed, FirstEvidence):
        return
    quote = parse_quote(evidence.quote)
    valid = signature_is_valid(_attestation_key(claimed), parse_signature(evidence.signature), quote.raw)
    checks.require(
        valid,
        "quote signature, alone",
        section="TPM protocol §3, step 11",
        reason=Reason.QUOTE_SIGNATURE_INVALID,
        expected="a signature by the first request's attestation key",
        got="such a signature" if valid else "another",
        remedy="",
    )


def _attestation_key(evidence: FirstEvidence) -> PublicArea:
    return parse_public(evidence.ak_public, what="attestation key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)


def _kind(key: PublicKey) -> str:
    return f"RSA-{key.key_size}" if isinstance(key, rsa.RSAPublicKey) else f"ECC P-{key.key_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLog:
    """A log that could be read."""

    form: str
    bank: str
    registers: Sequence[Measured]
    """Each quoted register beside its replay; empty where the log has not the quoted bank."""
    events: Sequence[JsonObject]
    """Each with index, pcr, type, digest (in hex, empty for an event that extends nothing), verified, and says."""

    @property
    def summary(self) -> str:
        """Say in one line what it is and which registers it explains."""
        wrong = [str(one.pcr) for one in self.registers if not one.agrees]
        right = [str(one.pcr) for one in self.registers if one.agrees]
        said = f"{self.form}, {len(self.events)} events, {self.bank}"
        if not self.registers:
            return f"{said}; has not the quoted bank"
        return f"{said}; explains PCRs {', '.join(right) or 'none'}" + (f", not {', '.join(wrong)}" if wrong else "")

    def to_json(self) -> JsonObject:
        """Return the ``eventLog`` of the explanation."""
        registers: JsonObject = {
            str(one.pcr): {
                "quoted": one.quoted.hex(),
                "expected": one.expected.hex(),
                "mentioned": one.is_mentioned,
                "agrees": one.agrees,
            }
            for one in self.registers
        }
        return {"form": self.form, "bank": self.bank, "pcrs": registers, "events": [*self.events]}

    def lines(self) -> list[str]:
        """Show the log; what is not verified is the node's word, which nothing covers."""
        rows = [("#", "PCR", "TYPE", self.bank.upper(), "DATA", "SAYS")]
        for event in self.events:
            pcr = "-" if event["pcr"] is None else str(event["pcr"])
            data = "verified" if event["verified"] else "unverified"
            digest = str(event["digest"])[:_DIGITS] or "-"
            rows.append((str(event["index"]), pcr, str(event["type"]), digest, data, str(event["says"])))
        reported = "event log, as the node reports it; data is verified where the quoted register was extended with its"
        return ["", f"{reported} digest", *format_table(rows, gap=2)]


def read_log(request: NodeRequest) -> ShownLog | None:
    """Read the log of a request; None where there is none, or none that can be read: the verification says why."""
    if request.evidence.provider != "tpm":
        return None
    try:
        evidence = parse_evidence(request.evidence.data)
        if not isinstance(evidence, SecondEvidence) or evidence.event_log is None:
            return None
        selections = parse_quote(evidence.quote).selections
        return _shown(parse_event_log(evidence.event_log), selections, evidence.pcrs)
    except Denied:
        return None


def _shown(log: EventLog, selections: Sequence[PcrSelection], values: Sequence[bytes]) -> ShownLog:
    """Set the log beside the quoted values, if they are of one bank that it has and of that bank's size."""
    registers: list[Measured] = []
    bank = next((bank for bank in (Alg.SHA256, Alg.SHA384, Alg.SHA512) if bank in log.sizes), Alg.SHA1)
    if len(selections) == 1 and selections[0].bank is not Alg.SHA1 and selections[0].bank in log.sizes:
        bank = selections[0].bank
        if [len(value) for value in values] == [digest_size(bank)] * len(selections[0].pcrs):
            registers = list(measure(log, selections[0], values))
    explained = {one.pcr for one in registers if one.agrees}
    return ShownLog(
        form="crypto-agile" if log.crypto_agile else "the SHA-1 form",
        bank=bank.name.lower() if bank in log.sizes else "",
        registers=registers,
        events=[_event(index, event, bank, explained) for index, event in enumerate(log.events)],
    )


def _event(index: int, event: Event, bank: Alg, explained: set[int]) -> JsonObject:
    digest = event.digests.get(bank, b"") if event.extends else b""
    is_data = event.kind in _HASHED and digest != b"" and hash_of(bank, event.data) == digest
    return {
        "index": index,
        "pcr": None if event.pcr == NO_PCR else event.pcr,
        "type": event_type_name(event.kind),
        "digest": digest.hex(),
        "verified": is_data and event.pcr in explained,
        "says": describe(event.kind, event.data),
    }


def event_type_name(kind: int) -> str:
    """Name an event type."""
    return _TYPES.get(kind, f"0x{kind:08x}")


def describe(kind: int, data: bytes) -> str:
    """Say what an event's data says."""
    if kind == _SEPARATOR:
        return _SEPARATORS.get(data, f"another, of {len(data)} bytes")
    if kind in _TEXTS:
        return printable(data.rstrip(b"\0").decode("latin-1"))
    if kind in _VARIABLES:
        return _variable(data)
    if kind == _S_CRTM_VERSION:
        return printable(data.decode("utf-16-le", "replace").rstrip("\0"))
    if kind == _NO_ACTION:
        locality = f", {data[_SIGNATURE]}" if data.startswith(b"StartupLocality\0") and len(data) > _SIGNATURE else ""
        return printable(data[:_SIGNATURE].rstrip(b"\0").decode("latin-1")) + locality
    return f"{len(data)} bytes"


def _variable(data: bytes) -> str:
    """Read UEFI_VARIABLE_DATA, as far as it is one: the name, and the value of a switch."""
    name_end = _VARIABLE_HEADER + 2 * int.from_bytes(data[16:24], "little")
    size = int.from_bytes(data[24:32], "little")
    if len(data) < _VARIABLE_HEADER or name_end + size != len(data):
        return f"{len(data)} bytes"
    name = printable(data[_VARIABLE_HEADER:name_end].decode("utf-16-le", "replace"))
    return f"{name} = {data[name_end:].hex()}" if 0 < size <= _SMALL else f"{name}, {size} bytes"
