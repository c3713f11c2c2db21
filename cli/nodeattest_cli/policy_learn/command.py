"""``nodeattest policy learn``: propose allowed register values out of what machines of the ledger booted.

Promises: nothing is written but standard output, a section of YAML for a person to read and apply; hex is quoted, so
that no YAML reader takes it for a number.
Leaves to others: the merging (``baseline``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, namespace_option, run
from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.management import require_cluster
from nodeattest_cli.output import print_lines
from nodeattest_cli.policy_learn.baseline import BootRecord, Proposal, propose, registers_from_attestation
from nodeattest_controller.model.objects import key_of, text
from nodeattest_controller.model.policy import policy_for
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.names import ProviderName
from nodeattest_providers.tpm.config import TpmPolicy, parse_policy

__all__ = ["learn"]

_GROUP: Final = "attestation.cluster.x-k8s.io"
_VERSION: Final = "v1alpha1"
_CLUSTER_GROUP: Final = "cluster.x-k8s.io"
_WARNING: Final = "Learning trusts what these machines booted. Compare with values that you know before you apply this."
_UNUSED: Final = "PCR {pcr}: all zero: nothing was measured into it, so that value shows nothing of what booted."
_SHOWN: Final = 5
"""Names in one comment."""


@click.command()
@click.argument("machine", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Learn from every machine of the cluster that has quoted.")
@namespace_option
@click.option("--cluster", help="The workload cluster, where machines of several are on record.")
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
def learn(
    *,
    machine: tuple[str, ...],
    everyone: bool,
    namespace: str | None,
    cluster: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Propose allowed PCR values from what MACHINE booted.

    Asks the management cluster, prints spec.tpm.pcrs as YAML and changes nothing. Values that the cluster's policy
    allows already stay, so that a roll-out may have old and new machines at once.
    """
    if bool(machine) == everyone:
        raise UserError("expected names of machines, or --all")
    connection = Connection(kubeconfig, context)
    where = connection.namespace(namespace)
    attestations = run(connection, lambda client: _attestations(client, where, cluster))
    chosen = _chosen([registers_from_attestation(one) for one in attestations], machine, cluster)
    inventory, of = Inventory(), cluster_key(where, chosen[0].cluster)
    for attestation in attestations:
        inventory.put_attestation(key_of(attestation), attestation)
    now = datetime.now(UTC)
    recorded = partial(inventory.machines_under, of, now=now)
    policy = run(connection, lambda client: _policy(client, chosen[0].cluster, where, recorded))
    print_lines(*_yaml(propose(chosen, policy), chosen, has_policy=policy is not None))


async def _attestations(client: ApiClient, namespace: str, cluster: str | None) -> list[JsonObject]:
    found = await _list(client, "machineattestations", namespace)
    if cluster is not None and cluster not in {text(one, "spec", "clusterName") for one in found}:
        await require_cluster(client, cluster, namespace)
    return found


async def _list(client: ApiClient, resource: str, namespace: str) -> list[JsonObject]:
    found: list[JsonObject] = []
    async for page in client.pages(paths.collection_path(_GROUP, _VERSION, resource, namespace=namespace)):
        items = page.get("items")
        found += [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return found


def _chosen(known: Sequence[BootRecord], names: Sequence[str], cluster: str | None) -> list[BootRecord]:
    """Pick machines by their Machine's, pool's or node's name; all of them are of one cluster, which has one policy."""
    known = [one for one in known if cluster in {None, one.cluster}]
    for name in names:
        if not any(name in {one.machine, one.node} for one in known):
            raise StateError(f"no machine {name} is on record here: nodeattest machines list -A shows which are")
    chosen = [one for one in known if {one.machine, one.node} & set(names)] if names else [o for o in known if o.pcrs]
    if not chosen:
        raise StateError("no machine has quoted its registers here")
    clusters = sorted({one.cluster for one in chosen})
    if len(clusters) > 1:
        raise UserError(f"these machines are of the clusters {', '.join(clusters)}: set --cluster")
    return chosen


async def _policy(client: ApiClient, cluster: str, namespace: str, recorded: Callable[[str], int]) -> TpmPolicy | None:
    """Read the policy that selects a cluster; None where there is none yet."""
    found = await _cluster(client, cluster, namespace)
    try:
        policies = await _list(client, "nodeattestationpolicies", namespace)
        policy = policy_for(found, policies, recorded=recorded)
        settings = policy.settings(ProviderName("tpm"))
        return parse_policy(settings) if "pcrs" in settings else None
    except Unavailable:
        return None
    except Denied as denied:
        raise StateError(f"the cluster's policy: expected {denied.expected}, got {denied.got}") from None


async def _cluster(client: ApiClient, cluster: str, namespace: str) -> JsonObject:
    """Read the Cluster; where there is none, the ClusterRecord that stands for it."""
    try:
        version = text(await client.get(f"/apis/{_CLUSTER_GROUP}"), "preferredVersion", "version")
        return await client.get(paths.object_path(_CLUSTER_GROUP, version, "clusters", cluster, namespace=namespace))
    except NotFound:
        return await client.get(paths.object_path(_GROUP, _VERSION, "clusterrecords", cluster, namespace=namespace))


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
    """Say names, the first few of many."""
    distinct = sorted(set(names))
    more = f" and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
    return ", ".join(distinct[:_SHOWN]) + more
