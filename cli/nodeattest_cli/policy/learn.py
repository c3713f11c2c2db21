"""``nodeattest policy learn``: propose allowed register values out of what machines of the ledger booted.

Nothing is written but standard output: a ``spec.tpm.pcrs`` section that admits the machines that were learned from and
everyone whom the policy lets in already. It never drops a value, and selects no register that the policy does not. Hex
is quoted, so that no YAML reader takes it for a number. Whether those machines booted what they should, a person
decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.fleet import ATTESTATION, cluster_policy, index, named, of_kind, read_fleet
from nodeattest_cli.options import cluster_option, connected, namespace_option
from nodeattest_cli.output import StateError, UserError, listed, print_lines
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_controller.model.machine_view import CLUSTER_KINDS
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.tpm.config import TpmPolicy, parse_policy
from nodeattest_providers.tpm.structures import BANK_ALGORITHMS, digest_size

_WARNING: Final = "Learning trusts what these machines booted. Compare with values that you know before you apply this."
_UNUSED: Final = "PCR {pcr}: all zero: nothing was measured into it, so that value shows nothing of what booted."


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


@click.command()
@click.argument("machine", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Learn from every machine of the cluster that has quoted.")
@connected
@namespace_option
@cluster_option
def learn(
    *,
    connection: Connection,
    machine: tuple[str, ...],
    everyone: bool,
    namespace: str | None,
    cluster: str | None,
) -> None:
    """Propose allowed PCR values from what MACHINE booted.

    Asks the management cluster, prints spec.tpm.pcrs as YAML and changes nothing. Values that the cluster's policy
    allows already stay, so that a roll-out may have old and new machines at once.
    """
    if bool(machine) == everyone:
        raise UserError("expected names of machines, or --all")
    where = connection.namespace(namespace)
    resources = ("machineattestations", "nodeattestationpolicies", "clusters", "clusterrecords")
    documents = run(connection, lambda client: read_fleet(client, where, *resources, cluster=cluster))
    known = [registers_from_attestation(one) for one in of_kind(documents, ATTESTATION)]
    chosen = _chosen(known, machine, cluster)
    policy = _policy(documents, chosen[0].cluster)
    print_lines(*_yaml(propose(chosen, policy), chosen, has_policy=policy is not None))


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
    for machine in machines:
        if not machine.pcrs:
            raise StateError(
                f"{machine.machine} has no register values on record: wait for its next renewal with a TPM"
            )
        if machine.bank != bank:
            raise StateError(
                f"{machine.machine} quoted the bank {machine.bank}, expected {bank}: wait for its next renewal"
            )
    # 2
    selection = policy.selection.pcrs if policy else sorted({pcr for machine in machines for pcr in machine.pcrs})
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


def _chosen(known: Sequence[BootRecord], names: Sequence[str], cluster: str | None) -> list[BootRecord]:
    """Pick machines by their Machine's, pool's or node's name; all of them are of one cluster, which has one policy."""
    known = [one for one in known if cluster in {None, one.cluster}]
    for name in names:
        if not any(name in {one.machine, one.node} for one in known):
            raise StateError(f"no machine {name} is on record here: nodeattest machines list -A shows which are")
    chosen = [one for one in known if ({one.machine, one.node} & set(names) if names else one.pcrs)]
    if not chosen:
        raise StateError("no machine has quoted its registers here")
    clusters = sorted({one.cluster for one in chosen})
    if len(clusters) > 1:
        raise UserError(f"these machines are of the clusters {', '.join(clusters)}: set --cluster")
    return chosen


def _policy(documents: Sequence[JsonObject], cluster: str) -> TpmPolicy | None:
    """Return the policy that selects a cluster; None where there is none yet."""
    found = named(of_kind(documents, *CLUSTER_KINDS), cluster)
    if found is None:
        raise StateError(f"the Cluster or ClusterRecord {cluster} of these machines is gone")
    try:
        policy = cluster_policy(found, documents, index(documents), datetime.now(UTC))
        settings = policy.settings(ProviderName("tpm"))
        return parse_policy(settings) if "pcrs" in settings else None
    except Unavailable:
        return None
    except Denied as denied:
        raise StateError(f"the cluster's policy: expected {denied.expected}, got {denied.got}") from None


def _yaml(proposal: Proposal, machines: Sequence[BootRecord], *, has_policy: bool) -> list[str]:
    base = "and from the cluster's policy" if has_policy else "and from no policy: the cluster's has no spec.tpm.pcrs"
    comments = [f"From {_names([one.machine for one in machines])}, {base}.", _WARNING]
    for pcr in proposal.selection:
        count = len(proposal.values.get(pcr, ()))
        new = f", new for {_names(proposal.new[pcr])}" if proposal.new[pcr] else ""
        comments.append(f"PCR {pcr}: {count} allowed{new}" if count else f"PCR {pcr}: not quoted yet, anything allowed")
        comments += [_UNUSED.format(pcr=pcr) for value in proposal.values.get(pcr, ()) if not value.strip("0")]
    lines = [*(f"# {line}" for line in comments), "spec:", "  tpm:", "    pcrs:", f"      bank: {proposal.bank}"]
    lines += [f"      selection: [{', '.join(map(str, proposal.selection))}]", "      values:"]
    for pcr, values in proposal.values.items():
        lines += [f'        "{pcr}":', *(f'        - "{value}"' for value in values)]
    return lines


def _names(names: Sequence[str]) -> str:
    return listed(sorted(set(names)), most=5)
