"""Register values for a policy, out of what machines quoted: the merging, without asking anybody. Pure.

Promises: a ``spec.tpm.pcrs`` section that admits the machines that were learned from and everyone whom the policy lets
in already; it never drops a value, and selects no register that the policy does not. ``StateError`` where the ledger
does not hold what the policy asks for.
Leaves to others: whether those machines booted what they should. A person decides that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodeattest_cli.errors import StateError
from nodeattest_controller.model.attestation import parse_attestation
from nodeattest_controller.model.objects import text
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.tpm.config import TpmPolicy
from nodeattest_providers.tpm.structures import BANK_ALGORITHMS, digest_size

__all__ = ["BootRecord", "Proposal", "propose", "registers_from_attestation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootRecord:
    """What one machine quoted last."""

    cluster: str
    machine: str
    node: str
    bank: str
    pcrs: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The section, and whose values are new in it."""

    bank: str
    selection: Sequence[int]
    values: Mapping[int, Sequence[str]]
    """In hex, sorted; registers that nobody has quoted are absent."""
    new: Mapping[int, Sequence[str]]
    """By register: the machines whose value the policy does not allow yet."""


def registers_from_attestation(attestation: JsonObject) -> BootRecord:
    """Read a MachineAttestation; its registers are empty where none were quoted or kept."""
    known = parse_attestation(attestation)
    machine, boot = text(attestation, "spec", "machineName"), known.boot
    if boot is None or not boot.pcrs:
        return BootRecord(cluster=known.cluster_name, machine=machine, node=known.node_name, bank="", pcrs={})
    bank = BANK_ALGORITHMS.get(boot.bank)
    spelling = re.compile(f"[0-9a-f]{{{2 * digest_size(bank)}}}") if bank else None
    if spelling is None or not all(map(spelling.fullmatch, boot.pcrs.values())):
        raise StateError(f"the record of {machine} has registers that no quote has: was it edited?")
    return BootRecord(cluster=known.cluster_name, machine=machine, node=known.node_name, bank=boot.bank, pcrs=boot.pcrs)


def propose(machines: Sequence[BootRecord], policy: TpmPolicy | None) -> Proposal:
    """Merge what machines quoted into what the policy allows; without a policy, what they quoted is the selection.

    1. Each machine has quoted registers, all in one bank, the policy's if there is one.
    2. The selection is the policy's, else every register that was quoted.
    3. Each selected register gets the policy's values and the machines'.
    """
    # 1
    bank = policy.selection.bank.name.lower() if policy else machines[0].bank
    for one in machines:
        if not one.pcrs:
            raise StateError(f"{one.machine} has no register values on record: wait for its next renewal with a TPM")
        if one.bank != bank:
            raise StateError(f"{one.machine} quoted the bank {one.bank}, expected {bank}: wait for its next renewal")
    # 2
    selection = policy.selection.pcrs if policy else sorted({pcr for one in machines for pcr in one.pcrs})
    # 3
    listed: Mapping[int, frozenset[bytes]] = policy.allowed_pcrs if policy else {}
    allowed = {pcr: {value.hex() for value in listed.get(pcr, frozenset())} for pcr in selection}
    quoted = {pcr: {one.machine: one.pcrs[pcr] for one in machines if pcr in one.pcrs} for pcr in selection}
    values = {pcr: sorted(allowed[pcr] | set(quoted[pcr].values())) for pcr in selection}
    return Proposal(
        bank=bank,
        selection=selection,
        values={pcr: found for pcr, found in values.items() if found},
        new={pcr: [name for name, value in quoted[pcr].items() if value not in allowed[pcr]] for pcr in selection},
    )
