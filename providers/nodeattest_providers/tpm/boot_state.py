"""Boot state: quoted PCRs hold values that the policy allows, the event log explains them, and the clock goes forward.

A replay uses order, PCR numbers and digests, EV_NO_ACTION and the locality of PCR 0's start: a lie about either gives
another replay than the TPM's. Source: TCG TPM 2.0 Library, Part 1 §11.4, §36.3, Part 3 §18.4; TCG PC Client Platform
Firmware Profile 1.05, §10; TCG Algorithm Registry; docs/wire-format.md §3 (step 12), §4.1, §4.2.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from nodeattest_providers.checks import Checks, Rules
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.config import ProtocolPolicy
from nodeattest_providers.tpm.key_templates import Quote
from nodeattest_providers.tpm.protocol import MAX_EVENT_LOG
from nodeattest_providers.tpm.structures import MAX_PCR, Alg, PcrSelection, Reader, digest_size
from nodeattest_providers.verifier_interface import BootState, LedgerFacts

_SECTION: Final = "TPM protocol §3, step 12"
_QUOTE_AGAIN: Final = "file a new first request and quote the PCRs of its challenge: the policy's may have changed"
_RESET: Final = "file a new request; if the TPM was cleared, an operator resets the ledger (nodeattest machines reset)"
_BOOT_OTHERWISE: Final = "boot the machine into a state that the policy's pcrs allows, or extend the policy"


def check_boot_state(checks: Checks, quote: Quote, values: Sequence[bytes], policy: ProtocolPolicy) -> BootState:
    """Check the quoted PCRs.

    1. The quote covers exactly the policy's selection, and a value of the bank's size came for each PCR of it.
    2. The quote's digest is the digest of these values, in the selection's order, under the key's hash, SHA-256.
    3. Each PCR that the policy constrains has an allowed value.
    """
    rules = _boot_rules(checks)
    # 1
    mismatch = Reason.PCR_SELECTION_MISMATCH
    expected, got = _describe([policy.selection]), _describe(quote.selections)
    is_selected = quote.selections == (policy.selection,)
    rules.require(is_selected, "selection", expected, got, reason=mismatch, remedy=_QUOTE_AGAIN)
    sizes = [digest_size(policy.selection.bank)] * len(policy.selection.pcrs)
    expected, got = f"sizes {sizes}", f"sizes {[len(value) for value in values]}"
    rules.equal("values", expected, got, reason=mismatch, remedy=_QUOTE_AGAIN)
    # 2
    replayed = hashlib.sha256(b"".join(values)).hexdigest()
    rules.equal("digest", quote.pcr_digest.hex(), replayed, reason=Reason.PCR_DIGEST_MISMATCH)
    # 3
    for pcr, value in zip(policy.selection.pcrs, values, strict=True):
        _check_value(rules, pcr, value.hex(), policy)
    return BootState(
        clock=quote.clock,
        reset_count=quote.reset_count,
        restart_count=quote.restart_count,
        safe=quote.safe,  # recorded, not required: it is 0 after every power loss (§4.1)
        pcr_digest=quote.pcr_digest.hex(),
        bank=policy.selection.bank.name.lower(),
        pcrs={pcr: value.hex() for pcr, value in zip(policy.selection.pcrs, values, strict=True)},
    )


def check_recorded_boot(boot: BootState | None, policy: ProtocolPolicy) -> tuple[str, ...]:
    """Check the registers on record against the policy's values; raises Denied for one that is not allowed.

    Returns what a renewal is checked for and the record does not hold.
    """
    rules, unknown = _boot_rules(Checks()), list[str]()
    recorded: Mapping[int, str] = boot.pcrs if boot is not None else {}
    bank = policy.selection.bank.name.lower()
    if policy.allowed_pcrs and boot is not None and recorded and boot.bank != bank:
        unknown.append(f"PCRs of the bank {bank} are not on record, only of {boot.bank}")
        recorded = {}
    for pcr in sorted(policy.allowed_pcrs):
        if pcr in recorded:
            _check_value(rules, pcr, recorded[pcr], policy)
    missing = [str(pcr) for pcr in sorted(policy.allowed_pcrs) if pcr not in recorded]
    if missing and not unknown:
        unknown.append(f"PCR {', '.join(missing)} is not on record: no quote had it")
    if policy.event_log_required:
        unknown.append("event logs are not stored, and eventLog: Require wants one that explains the PCRs")
    return tuple(unknown)


def _check_value(rules: Rules, pcr: int, value: str, policy: ProtocolPolicy) -> None:
    allowed = policy.allowed_pcrs.get(pcr)
    if allowed is not None:
        rules.member(f"value {pcr}", {each.hex() for each in allowed}, value)


def _boot_rules(checks: Checks) -> Rules:
    return Rules(checks, _SECTION, Reason.PCR_VALUE_NOT_ALLOWED, _BOOT_OTHERWISE, "PCR ")


def check_clock(checks: Checks, boot: BootState, ledger: LedgerFacts) -> None:
    """Check that the quote is newer than the newest that the ledger saw.

    1. resetCount never falls; only TPM2_Clear zeroes it, and then an operator resets the ledger entry (§4.1).
    2. Within one resetCount the clock is strictly newer.
    3. But for the very quote that the ledger holds, where the ledger says that this answer is written down already
       (§4.2): a retry, or a copy of the request that was handled first.
    """
    if ledger.clock is None or ledger.reset_count is None:
        return
    seen, now = (ledger.reset_count, ledger.clock), (boot.reset_count, boot.clock)
    is_written_down = ledger.answered and now == seen  # 3
    expected, got = f"after reset {seen[0]}, clock {seen[1]} ms", f"reset {now[0]}, clock {now[1]} ms"
    rules = Rules(checks, _SECTION, Reason.TPM_CLOCK_REVERSED, _RESET)
    rules.require(now > seen or is_written_down, "TPM clock goes forward", expected, got)  # 1, 2


def _describe(selections: Sequence[PcrSelection]) -> str:
    return "; ".join(f"{item.bank.name} {list(item.pcrs)}" for item in selections) or "none"


EV_SEPARATOR: Final = 0x00000004
EV_NO_ACTION: Final = 0x00000003
"""The one event type that extends nothing."""
NO_PCR: Final = 0xFFFFFFFF
"""The index of events that belong to no PCR; they are EV_NO_ACTION."""
MAX_EVENTS: Final = 2048
"""A bound on work; servers log 60 to 300 events."""
MAX_EVENT_DATA: Final = 64 * 1024
"""Bytes of one event's data: the forbidden signatures (dbx), the largest, have 25 KiB."""
_MAX_ALGORITHMS: Final = 16
"""HASH_COUNT is at most this in every implementation."""
_MAX_DIGEST: Final = 64
_SHA1_SIZE: Final = 20

_SPEC_ID: Final = b"Spec ID Event03\0"
"""Says that TCG_PCR_EVENT2 follow; Event00 and Event02 head logs of TPM 1.2, which stay in the SHA-1 form."""
_SPEC_VERSION: Final = (2, 0)
_UINTN_SIZES: Final = (1, 2)
"""32 and 64 bits, in words of 32."""
_STARTUP: Final = b"StartupLocality\0"
_LOCALITIES: Final = (0, 3, 4)
"""TPM2_Startup comes from locality 0 or 3; 4 means an H-CRTM, whose start the TPM itself marks so."""

_HASHES: Final = {Alg.SHA1: "sha1", Alg.SHA256: "sha256", Alg.SHA384: "sha384", Alg.SHA512: "sha512"}
_DIGEST_SIZES: Final = {0x04: 20, 0x0B: 32, 0x0C: 48, 0x0D: 64, 0x12: 32, 0x27: 32, 0x28: 48, 0x29: 64}
"""By TPM_ALG_ID: SHA-1, SHA-2, SM3, SHA-3. Others are skipped by the size that the log gives."""
_REMEDY: Final = "send the kernel's binary_bios_measurements unchanged; if they are so, the firmware's log is defective"


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the log."""

    pcr: int
    """0 to 23, or ``NO_PCR``."""
    kind: int
    """Event type: a claim of the node."""
    digests: Mapping[int, bytes] = field(repr=False)
    """By TPM_ALG_ID: what the PCR of that bank was extended with."""
    data: bytes = field(repr=False)

    @property
    def extends(self) -> bool:
        return self.kind != EV_NO_ACTION


@dataclass(frozen=True, slots=True)
class EventLog:
    """A log in either form."""

    crypto_agile: bool
    """False: the SHA-1 form, which can replay no bank that a policy accepts."""
    sizes: Mapping[int, int]
    """Digest sizes by TPM_ALG_ID, of every algorithm that each event has."""
    locality: int
    events: tuple[Event, ...] = field(repr=False)


def parse_event_log(raw: bytes) -> EventLog:
    """Read a log.

    1. It is not larger than a request may carry.
    2. Its first event has the SHA-1 form; it is the Spec ID event of a crypto-agile log, or an event like any other.
    3. Every further event has the form that the first one gives, and digests of the same algorithms; none is cut short,
       nothing follows.
    4. PCR 0's start is given at most once, and before PCR 0 is extended.
    """
    reader = Reader(raw, what="event log", reason=Reason.EVENT_LOG_MALFORMED, remedy=_REMEDY)
    # 1
    if len(raw) > MAX_EVENT_LOG:
        raise reader.wrong(f"at most {MAX_EVENT_LOG} bytes", str(len(raw)))
    # 2
    events = [_sha1_event(reader)]
    is_agile = not events[0].extends and events[0].data.startswith(_SPEC_ID)
    sizes = _spec_id(events[0]) if is_agile else {int(Alg.SHA1): _SHA1_SIZE}
    # 3
    while reader.remaining:
        if len(events) == MAX_EVENTS:
            raise reader.wrong(f"at most {MAX_EVENTS} events", "more")
        events.append(_agile_event(reader, sizes, is_first=len(events) == 1) if is_agile else _sha1_event(reader))
        if is_agile:
            sizes = {algorithm: sizes[algorithm] for algorithm in events[-1].digests}
    # 4
    return EventLog(is_agile, MappingProxyType(sizes), _locality(reader, events), tuple(events))


def _sha1_event(reader: Reader) -> Event:
    """Read TCG_PCClientPCREvent."""
    pcr, kind = _index(reader)
    digest = reader.take(_SHA1_SIZE)
    return Event(pcr, kind, MappingProxyType({int(Alg.SHA1): digest}), _data(reader))


def _agile_event(reader: Reader, sizes: Mapping[int, int], *, is_first: bool) -> Event:
    """Read TCG_PCR_EVENT2: a digest of each of the log's algorithms, each once, so that no bank omits an event.

    The header may list algorithms whose banks are off; which are on, the first event says for all.
    """
    pcr, kind = _index(reader)
    count = reader.little(4)
    if count != len(sizes) and not (is_first and 0 < count < len(sizes)):
        raise reader.wrong(f"{len(sizes)} digests an event", str(count))
    digests: dict[int, bytes] = {}
    for _ in range(count):
        algorithm = reader.little(2)
        if algorithm not in sizes or algorithm in digests:
            raise reader.wrong("a digest of each of the log's algorithms", f"0x{algorithm:04x}, unknown or again")
        digests[algorithm] = reader.take(sizes[algorithm])
    return Event(pcr, kind, MappingProxyType(digests), _data(reader))


def _index(reader: Reader) -> tuple[int, int]:
    pcr, kind = reader.little(4), reader.little(4)
    if pcr > MAX_PCR and (pcr != NO_PCR or kind != EV_NO_ACTION):
        raise reader.wrong(f"a PCR from 0 to {MAX_PCR}", str(pcr))
    return pcr, kind


def _data(reader: Reader) -> bytes:
    size = reader.little(4)
    if size > MAX_EVENT_DATA:
        raise reader.wrong(f"at most {MAX_EVENT_DATA} bytes of event data", str(size))
    return reader.take(size)


def _spec_id(event: Event) -> dict[int, int]:
    """Read TCG_EfiSpecIDEvent: the log's algorithms and the sizes of their digests."""
    reader = Reader(event.data, what="event log, Spec ID event", reason=Reason.EVENT_LOG_MALFORMED, remedy=_REMEDY)
    if event.pcr != 0 or any(any(digest) for digest in event.digests.values()):
        raise reader.wrong("PCR 0 and a digest of zeros", f"PCR {event.pcr} or another digest")
    reader.take(len(_SPEC_ID))
    reader.little(4)  # platformClass: client or server, not checked
    minor, major = reader.little(1), reader.little(1)
    if (major, minor) != _SPEC_VERSION:
        raise reader.wrong("version 2.0", f"{major}.{minor}")
    reader.little(1)  # errata: grows with revisions that change no structure
    words = reader.little(1)
    if words not in _UINTN_SIZES:
        raise reader.wrong("an uintnSize of 1 or 2", str(words))
    count = reader.little(4)
    if not 1 <= count <= _MAX_ALGORITHMS:
        raise reader.wrong(f"1 to {_MAX_ALGORITHMS} algorithms", str(count))
    sizes: dict[int, int] = {}
    for _ in range(count):
        algorithm, size = reader.little(2), reader.little(2)
        if algorithm in sizes or not 1 <= size <= _MAX_DIGEST or size != _DIGEST_SIZES.get(algorithm, size):
            raise reader.wrong("each algorithm once, with its digest's size", f"0x{algorithm:04x} of {size} bytes")
        sizes[algorithm] = size
    reader.take(reader.little(1))  # vendorInfo
    reader.end()
    return sizes


def _locality(reader: Reader, events: list[Event]) -> int:
    """Find the locality of the TPM's start; 0 where no event gives it."""
    found: int | None = None
    is_extended = False
    for event in events:
        is_extended = is_extended or (event.pcr == 0 and event.extends)
        if event.extends or not event.data.startswith(_STARTUP):
            continue
        if event.pcr != 0 or found is not None or is_extended or len(event.data) != len(_STARTUP) + 1:
            raise reader.wrong("one StartupLocality event, before PCR 0 is extended", "another, or elsewhere")
        found = event.data[-1]
        if found not in _LOCALITIES:
            raise reader.wrong("a StartupLocality of 0, 3 or 4", str(found))
    return found or 0


def replay(log: EventLog, bank: Alg) -> dict[int, bytes]:
    """Compute the PCRs of a bank that the log extends; the log has that bank, and ours are the hashes it may have."""
    values: dict[int, bytes] = {}
    for event in log.events:
        if event.extends:
            start = values.get(event.pcr) or _start(event.pcr, log.sizes[bank], log.locality)
            values[event.pcr] = _hash(bank, start + event.digests[bank])
    return values


def _start(pcr: int, size: int, locality: int) -> bytes:
    """Return the value that a PCR has before its first event (Part 1, "Initializing PCR"; H-CRTM and locality)."""
    return (locality if pcr == 0 else 0).to_bytes(size, "big")


def _hash(bank: Alg, data: bytes) -> bytes:
    """Hash with a bank's algorithm. SHA-1 is among them, so that old logs can be shown; nothing is decided by it."""
    return hashlib.new(_HASHES[bank], data, usedforsecurity=False).digest()


_DYNAMIC: Final = range(17, 23)
"""PCRs of the dynamic launch: all bits set until there is one."""
_FIRMWARE: Final = range(8)
"""PCRs that the firmware caps with one separator each before it passes control to what it loaded."""
_SEPARATORS: Final = (bytes(4), b"\xff" * 4)
"""Data of EV_SEPARATOR of a firmware that succeeded; 00000001 is of one that failed, and is none of these."""

_ASK_AGAIN: Final = "file a new first request and answer its challenge: the policy may have changed"
_FIRMWARE_LOG: Final = (
    "boot by UEFI with a firmware that logs the bank which the policy's pcrs names, or set the policy's eventLog "
    "to Ignore"
)
_EXPLAIN: Final = (
    "let the policy's pcrs select only PCRs that nothing extends after the boot loader, or list allowed values for "
    "those that the log does not mention; otherwise the log or the machine was tampered with"
)
_CAP: Final = "update the firmware: it must close each of PCRs 0 to 7 with one separator; or do not select that PCR"


def _untouched(pcr: int, bank: Alg, locality: int) -> bytes:
    size = digest_size(bank)
    return b"\xff" * size if pcr in _DYNAMIC else _start(pcr, size, locality)


def check_event_log(checks: Checks, raw: bytes | None, policy: ProtocolPolicy, values: Sequence[bytes]) -> None:
    """Check the log against quoted values whose number and sizes were checked.

    1. A log came if, and only if, the policy asks for it: nobody else's bytes are kept in a request.
    2. It is one, and has the quoted bank; a log in the SHA-1 form has none that a policy accepts.
    3. Each quoted PCR has the value that the log replays to; one that the log does not mention is as the TPM's reset
       left it, unless the policy lists its values: then those checked it.
    4. Each of PCRs 0 to 7 was closed by exactly one separator, recognised by type and digest, unless the policy's
       values checked it. One that nothing was measured into is as after a reset of the TPM alone: open to whatever
       comes next.
    """
    rules = Rules(checks, _SECTION, Reason.EVENT_LOG_MISMATCH, _EXPLAIN, "event log ")
    # 1
    got = "none" if raw is None else f"one of {len(raw)} bytes"
    if not policy.event_log_required:
        rules.require(raw is None, "not asked for", "none", got, reason=Reason.EVIDENCE_MALFORMED, remedy=_ASK_AGAIN)
        return
    raw = rules.present(
        raw, "present", "the one that the policy requires", reason=Reason.EVENT_LOG_MISSING, remedy=_ASK_AGAIN
    )
    # 2
    log = rules.parsed("event log structure", lambda: parse_event_log(raw))
    bank = policy.selection.bank
    expected = f"digests of the {bank.name} bank, 0x{bank:04x}"
    got = ", ".join(f"0x{algorithm:04x}" for algorithm in log.sizes) if log.crypto_agile else "the SHA-1 form"
    rules.require(bank in log.sizes, "bank", expected, got, reason=Reason.EVENT_LOG_BANK_MISSING, remedy=_FIRMWARE_LOG)
    replayed = replay(log, bank)
    caps = {_hash(bank, data) for data in _SEPARATORS}
    closed = Counter(event.pcr for event in log.events if event.kind == EV_SEPARATOR and event.digests[bank] in caps)
    for pcr, quoted in zip(policy.selection.pcrs, values, strict=True):
        # 3
        is_allowed = pcr in policy.allowed_pcrs and pcr not in replayed
        value = replayed.get(pcr) or _untouched(pcr, bank, log.locality)
        expected = f"PCR {pcr} {value.hex()}" + (", or as the policy lists it" if is_allowed else "")
        rules.require(quoted == value or is_allowed, f"replays PCR {pcr}", expected, f"PCR {pcr} {quoted.hex()}")
        # 4, by type and digest: other events may measure the same four bytes
        if pcr in _FIRMWARE and not is_allowed:
            expected, got = f"one separator in PCR {pcr}", str(closed[pcr])
            rules.require(closed[pcr] == 1, f"closes PCR {pcr}", expected, got, remedy=_CAP)
