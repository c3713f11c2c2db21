"""Boot state: quoted PCRs hold values that the policy allows, and the TPM's clock goes forward.

Source: TCG TPM 2.0 Library, Part 1 §11.4 "PCR", §36.3 "Clock"; Part 3 §18.4 TPM2_Quote; docs/wire-format.md §3 (step
12), §4 (2, 4, 5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from nodeattest_providers.checks import Checks, Rules
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.config import ProtocolPolicy
from nodeattest_providers.tpm.key_templates import Quote
from nodeattest_providers.tpm.structures import PcrSelection, digest_size
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
