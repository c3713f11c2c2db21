"""The checks that attested requests and kubelet's own have in common, those on names of serving requests included.

Where the provider that attested a machine has a platform that lists addresses, its present answer decides alone, so
that an address that moved away is not believed for as long as Cluster API's controllers take to notice; elsewhere
``Machine.status.addresses`` decides. Never both together, and a platform that does not answer is waited for.
Leaves the rules to ``model``, and what a platform answers to its provider (``ClusterAPISigner.addresses``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nodeattest_controller.model.csr_request import Round
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import has_name, name_taken, object_names
from nodeattest_controller.model.resolver import not_ready
from nodeattest_controller.model.serving_names import (
    addresses_final,
    check_sans_listed,
    check_sans_unclaimed,
    network_of,
    parse_address,
)
from nodeattest_controller.verification.checks import declare
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_parsing.objects import text
from nodeattest_providers.identifiers import Purpose

_SERVING: Final = [Purpose.SERVING]
_SOURCE: Final = "serving certificates"


@declare("an active cluster", "identity rule 1")
async def active_cluster(facts: RequestFacts) -> None:
    """The Cluster is there, not paused, and not being deleted; a ClusterRecord can be read whole."""
    await facts.cluster()


@declare("the Machine as it is now", "identity rule 1", rounds=[Round.FINAL])
async def machine_now(facts: RequestFacts) -> None:
    """The same holds of the machine as the API server has it now."""
    facts.require_one([await facts.machine()])


@declare("no other node of this name", "identity rule 3")
async def no_other_node(facts: RequestFacts) -> None:
    """No other machine is bound to the name, and a Node that has it is this machine's."""
    machine, around, node = await facts.machine(), await facts.name_context(), await facts.node()
    holders = [holder for holder in around.holders if holder.provider_id != machine.provider_id]
    if any(around.is_alive(holder) for holder in holders):
        raise name_taken("another Machine is bound to this node name", "delete the other Machine first")
    if holders:
        raise not_ready("the attestation record of the name's former machine is not collected yet", "wait")
    provider_id = text(node, "spec", "providerID")
    if node is None or provider_id == machine.provider_id:
        return
    if provider_id:
        raise name_taken(
            "the Node of this name has another provider ID", "delete the stale Node, or rename this machine"
        )
    if machine.node_ref_uid != text(node, "metadata", "uid"):
        raise name_taken(
            "the Node of this name has no provider ID and is not the Machine's nodeRef",
            "set the Node's provider ID, or delete the stale Node",
        )


@declare("names of one machine alone", _SOURCE, purposes=_SERVING)
async def names_unclaimed(facts: RequestFacts) -> None:
    """No name or address is one that no node may have, or one that another machine of the cluster lists."""
    await _check_unclaimed(facts, await facts.machine_for_memory_checks())


@declare("names and addresses on record", _SOURCE, purposes=_SERVING)
async def names_on_record(facts: RequestFacts) -> None:
    """Each is the node's name or in the Machine's status, unless a platform lists the machine's addresses."""
    if not await facts.platform_tells_addresses():
        _check_listed_in_status(facts, await facts.machine_for_memory_checks())


@declare("names of one machine alone, read now", _SOURCE, purposes=_SERVING)
async def names_unclaimed_now(facts: RequestFacts) -> None:
    """The same holds of the Machine as it is read now."""
    await _check_unclaimed(facts, await facts.machine())


@declare("names and addresses of the Machine", _SOURCE, purposes=_SERVING)
async def names_listed_now(facts: RequestFacts) -> None:
    """Each is the node's name, or listed by the platform where that lists addresses, else by the Machine."""
    listed = await facts.platform_addresses()
    if listed is None:
        _check_listed_in_status(facts, await facts.machine())
        return
    # A platform that lists any addresses lists all that there are now: nothing is filled in later.
    check_sans_listed(facts.names, node_name=facts.node_name, listed=listed, settled=bool(listed))


async def _check_unclaimed(facts: RequestFacts, machine: MachineView) -> None:
    inventory, key = facts.source.inventory, facts.source.key
    name, holders = facts.node_name, (await facts.name_context()).holders

    def conflicting(host: str) -> Sequence[MachineView]:
        found = inventory.conflicting_members(key, host, machine.provider_id)
        if host != name or parse_address(host) is not None or name not in object_names(machine):
            return found
        # A name by the machine's own objects: a guest that only lists it has it not.
        return [other for other in found if has_name(other, name, holders) or name in object_names(other)]

    network = network_of(await facts.cluster())
    check_sans_unclaimed(facts.names, machine=machine, network=network, rivals=conflicting)


def _check_listed_in_status(facts: RequestFacts, machine: MachineView) -> None:
    check_sans_listed(
        facts.names,
        node_name=facts.node_name,
        listed=machine.addresses,
        settled=addresses_final(machine, facts.created),
        of_pool=machine.kind == "MachinePool",
    )
