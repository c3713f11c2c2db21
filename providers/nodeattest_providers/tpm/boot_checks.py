"""Boot state: the quoted PCRs hold allowed values, and the TPM's clock goes forward.

Promises: the state that a quote proves, checked by the policy and by what the ledger saw before.
Source: TCG TPM 2.0 Library, Part 1 §36.3 "Clock" and §11.4 "PCR"; Part 3 §18.4 TPM2_Quote; docs/wire-format.md
§3 (step 12), §4 (2, 4, 5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from nodeattest_providers.checks import Checks, one_of
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.config import ProtocolPolicy
from nodeattest_providers.tpm.quote import Quote
from nodeattest_providers.tpm.structures import PcrSelection, digest_size
from nodeattest_providers.verifier_interface import BootState, LedgerFacts

_SECTION: Final = "TPM protocol §3, step 12"
_QUOTE_ANEW: Final = "file a new first request and quote the PCRs of its challenge: the policy's may have changed"
_BOOT_OTHERWISE: Final = "boot the machine into a state that the policy's pcrs allows, or extend the policy"


def check_boot_state(checks: Checks, quote: Quote, values: Sequence[bytes], policy: ProtocolPolicy) -> BootState:
    """Check the quoted PCRs.

    1. The quote covers exactly the policy's selection, and a value of the bank's size came for each PCR of it.
    2. The quote's digest is the digest of these values, in the selection's order, under the key's hash, SHA-256.
    3. Each PCR that the policy constrains has an allowed value.
    """
    # 1
    mismatch = Reason.PCR_SELECTION_MISMATCH
    expected, got = [policy.selection], list(quote.selections)
    _require(checks, expected == got, "selection", mismatch, (_describe(expected), _describe(got)))
    sizes = [digest_size(policy.selection.bank)] * len(policy.selection.pcrs)
    got_sizes = [len(value) for value in values]
    _require(checks, sizes == got_sizes, "values", mismatch, (f"sizes {sizes}", f"sizes {got_sizes}"))
    # 2
    replayed = hashlib.sha256(b"".join(values)).digest()
    same = replayed == quote.pcr_digest
    _require(checks, same, "digest", Reason.PCR_DIGEST_MISMATCH, (quote.pcr_digest.hex(), replayed.hex()))
    # 3
    for pcr, value in zip(policy.selection.pcrs, values, strict=True):
        _check_value(checks, pcr, value.hex(), policy)
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
    checks, unknown = Checks(), list[str]()
    recorded: Mapping[int, str] = boot.pcrs if boot is not None else {}
    bank = policy.selection.bank.name.lower()
    if policy.allowed_pcrs and boot is not None and recorded and boot.bank != bank:
        unknown.append(f"PCRs of the bank {bank} are not on record, only of {boot.bank}")
        recorded = {}
    for pcr in sorted(policy.allowed_pcrs):
        if pcr in recorded:
            _check_value(checks, pcr, recorded[pcr], policy)
    missing = [str(pcr) for pcr in sorted(policy.allowed_pcrs) if pcr not in recorded]
    if missing and not unknown:
        unknown.append(f"PCR {', '.join(missing)} is not on record: no quote had it")
    if policy.event_log_required:
        unknown.append("event logs are not stored, and eventLog: Require wants one that explains the PCRs")
    return tuple(unknown)


def _check_value(checks: Checks, pcr: int, value: str, policy: ProtocolPolicy) -> None:
    """Check a register's value, in hex, where the policy constrains it."""
    allowed = policy.allowed_pcrs.get(pcr)
    if allowed is not None:
        listed = {item.hex() for item in allowed}
        reason = Reason.PCR_VALUE_NOT_ALLOWED
        _require(checks, value in listed, f"value {pcr}", reason, (one_of(listed, "values"), value))


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
    checks.require(
        now > seen or is_written_down,  # 1, 2
        "TPM clock goes forward",
        section=_SECTION,
        reason=Reason.TPM_CLOCK_REVERSED,
        expected=f"after reset {seen[0]}, clock {seen[1]} ms",
        got=f"reset {now[0]}, clock {now[1]} ms",
        remedy="file a new request; if the TPM was cleared, an operator resets the ledger (nodeattest machines reset)",
    )


def _describe(selections: Sequence[PcrSelection]) -> str:
    return "; ".join(f"{item.bank.name} {list(item.pcrs)}" for item in selections) or "none"


def _require(checks: Checks, passed: bool, name: str, reason: Reason, compared: tuple[str, str]) -> None:
    checks.require(
        passed,
        f"PCR {name}",
        section=_SECTION,
        reason=reason,
        expected=compared[0],
        got=compared[1],
        remedy=_QUOTE_ANEW if reason is Reason.PCR_SELECTION_MISMATCH else _BOOT_OTHERWISE,
    )
