"""The checks on names and addresses of a serving request, attested or kubelet's own.

Where the provider that attested a machine has a platform that lists addresses, its present answer decides alone, so
that an address that moved away is not believed for as long as Cluster API's controllers take to notice; elsewhere
``Machine.status.addresses`` decides. Never both together, and a platform that does not answer is waited for.
Leaves the rules to ``model.serving_names``, and what a platform says to its provider (``ClusterAPISigner.addresses``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nodeattest_controller.model.identity_rules import has_name
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import object_names
from nodeattest_controller.model.serving_names import (
    addresses_final,
    check_sans_listed,
    check_sans_unclaimed,
    for_machine,
    is_ip,
    network_of,
)
from nodeattest_controller.verification.checks import Needs, RequestCheck
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_providers.identifiers import Purpose

_SERVING: Final = frozenset({Purpose.SERVING})
_SOURCE: Final = "serving certificates"


async def _unclaimed(facts: RequestFacts, machine: MachineView) -> None:
    inventory, key = facts.source.inventory, facts.source.key

    name, holders = facts.node_name, (await facts.name_context()).holders

    def conflicting(host: str) -> Sequence[MachineView]:
        found = inventory.conflicting_members(key, host, machine.provider_id)
        if host != name or is_ip(host) or name not in object_names(machine):
            return found
        # A name by the machine's own objects: a guest that only lists it has it not.
        return [other for other in found if has_name(other, name, holders) or name in object_names(other)]

    network, rivals = for_machine(machine, network_of(await facts.cluster()), conflicting)
    check_sans_unclaimed(facts.names, network=network, rivals=rivals)


def _listed_in_status(facts: RequestFacts, machine: MachineView) -> None:
    final = addresses_final(machine, facts.created)
    check_sans_listed(
        facts.names,
        node_name=facts.node_name,
        listed=machine.addresses,
        settled=final,
        of_pool=machine.kind == "MachinePool",
    )


async def _unclaimed_in_memory(facts: RequestFacts) -> None:
    await _unclaimed(facts, await facts.machine_for_memory_checks())


async def _listed_in_memory(facts: RequestFacts) -> None:
    if not await facts.platform_tells_addresses():
        _listed_in_status(facts, await facts.machine_for_memory_checks())


async def _unclaimed_now(facts: RequestFacts) -> None:
    await _unclaimed(facts, await facts.machine())


async def _listed_now(facts: RequestFacts) -> None:
    listed = await facts.platform_addresses()
    if listed is None:
        _listed_in_status(facts, await facts.machine())
        return
    # A platform that lists any addresses lists all that there are now: nothing is filled in later.
    check_sans_listed(facts.names, node_name=facts.node_name, listed=listed, settled=bool(listed))


MEMORY_CHECKS: Final[tuple[RequestCheck[RequestFacts], ...]] = (
    RequestCheck(
        "names of one machine alone",
        "No name or address is one that no node may have, or one that another machine of the cluster lists.",
        _SOURCE,
        Needs.MEMORY,
        _unclaimed_in_memory,
        purposes=_SERVING,
    ),
    RequestCheck(
        "names and addresses on record",
        "Each is the node's name or in the Machine's status, unless a platform lists the machine's addresses.",
        _SOURCE,
        Needs.MEMORY,
        _listed_in_memory,
        purposes=_SERVING,
    ),
)
LIVE_CHECKS: Final[tuple[RequestCheck[RequestFacts], ...]] = (
    RequestCheck(
        "names of one machine alone, read now",
        "The same holds of the Machine as it is read now.",
        _SOURCE,
        Needs.LIVE,
        _unclaimed_now,
        purposes=_SERVING,
    ),
    RequestCheck(
        "names and addresses of the Machine",
        "Each is the node's name, or listed by the platform where that lists addresses, else by the Machine.",
        _SOURCE,
        Needs.LIVE,
        _listed_now,
        purposes=_SERVING,
    ),
)
