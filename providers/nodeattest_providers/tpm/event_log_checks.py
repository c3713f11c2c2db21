"""Boot state: quoted PCRs hold allowed values, the event log explains them if required, the clock advances.

Source: TCG TPM 2.0 Library, Part 1 §11.4 "PCR", §36.3 "Clock"; Part 3 §18.4 TPM2_Quote; TCG PC Client Platform Firmware
Profile 1.05, §10 and "EV_SEPARATOR"; TCG PC Client Platform TPM Profile, "PCR Attributes"; docs/wire-format.md §3 (step
12), §4 (2, 4, 5).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.checks import Checks, Rules, check_parsed
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.config import ProtocolPolicy
from nodeattest_providers.tpm.event_log import EV_SEPARATOR, EventLog, hash_of, parse_event_log, replay
from nodeattest_providers.tpm.quote import Quote
from nodeattest_providers.tpm.structures import Alg, PcrSelection, digest_size
from nodeattest_providers.verifier_interface import BootState, LedgerFacts

_SECTION: Final = "TPM protocol §3, step 12"
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


@dataclass(frozen=True, slots=True)
class Measured:
    """One quoted PCR beside what the log says of it."""

    pcr: int
    quoted: bytes
    expected: bytes
    """The replayed value; of a PCR that the log does not mention, its value after a reset."""
    is_mentioned: bool
    separators: int
    """How many of the events are a separator's, by type and digest; other events may measure the same four bytes."""

    @property
    def agrees(self) -> bool:
        """Whether the quote has the expected value."""
        return self.quoted == self.expected


def measure(log: EventLog, selection: PcrSelection, values: Sequence[bytes]) -> Iterator[Measured]:
    """Replay a log that has the selection's bank, and set it beside the quoted values."""
    bank = selection.bank
    replayed = replay(log, bank)
    caps = {hash_of(bank, data) for data in _SEPARATORS}
    closed = Counter(event.pcr for event in log.events if event.kind == EV_SEPARATOR and event.digests[bank] in caps)
    for pcr, quoted in zip(selection.pcrs, values, strict=True):
        expected = replayed.get(pcr) or _untouched(pcr, bank, log.locality)
        yield Measured(pcr, quoted, expected, pcr in replayed, closed[pcr])


def _untouched(pcr: int, bank: Alg, locality: int) -> bytes:
    """Return the value of a PCR that nothing has extended since the TPM's reset."""
    size = digest_size(bank)
    if pcr in _DYNAMIC:
        return b"\xff" * size
    return (locality if pcr == 0 else 0).to_bytes(size, "big")


def check_event_log(checks: Checks, raw: bytes | None, policy: ProtocolPolicy, values: Sequence[bytes]) -> None:
    """Check the log against quoted values whose number and sizes were checked.

    1. A log came if, and only if, the policy asks for it: nobody else's bytes are kept in a request.
    2. It is one, and has the quoted bank; a log in the SHA-1 form has none that a policy accepts.
    3. Each quoted PCR has the value that the log replays to; one that the log does not mention is as the TPM's reset
       left it, unless the policy lists its values: then those checked it.
    4. Each of PCRs 0 to 7 was closed by exactly one separator, recognised by type and digest, unless the policy's
    values checked it. One that nothing was measured into is as after a reset of the TPM alone: open to whatever comes
    next.
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
    log = check_parsed(checks, "event log structure", _SECTION, lambda: parse_event_log(raw))
    bank = policy.selection.bank
    expected = f"digests of the {bank.name} bank, 0x{bank:04x}"
    got = ", ".join(f"0x{algorithm:04x}" for algorithm in log.sizes) if log.crypto_agile else "the SHA-1 form"
    rules.require(bank in log.sizes, "bank", expected, got, reason=Reason.EVENT_LOG_BANK_MISSING, remedy=_FIRMWARE_LOG)
    for measured in measure(log, policy.selection, values):
        # 3
        pcr = measured.pcr
        is_allowed = pcr in policy.allowed_pcrs and not measured.is_mentioned
        expected = f"PCR {pcr} {measured.expected.hex()}" + (", or as the policy lists it" if is_allowed else "")
        got = f"PCR {pcr} {measured.quoted.hex()}"
        rules.require(measured.agrees or is_allowed, f"replays PCR {pcr}", expected, got)
        # 4
        if pcr in _FIRMWARE and not is_allowed:
            expected, got = f"one separator in PCR {pcr}", str(measured.separators)
            rules.require(measured.separators == 1, f"closes PCR {pcr}", expected, got, remedy=_CAP)


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
        safe=quote.safe,  # recorded, not required: it is 0 after every power loss (§4.4)
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
    """Check a register's value, in hex, where the policy constrains it."""
    allowed = policy.allowed_pcrs.get(pcr)
    if allowed is not None:
        rules.member(f"value {pcr}", {each.hex() for each in allowed}, value)


def _boot_rules(checks: Checks) -> Rules:
    return Rules(checks, _SECTION, Reason.PCR_VALUE_NOT_ALLOWED, _BOOT_OTHERWISE, "PCR ")


def check_clock(checks: Checks, boot: BootState, ledger: LedgerFacts) -> None:
    """Check that the quote is newer than the newest that the ledger saw.

    1. resetCount never falls; only TPM2_Clear zeroes it, and then an operator resets the ledger entry (§4.5).
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
