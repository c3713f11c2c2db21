"""Declared checks, their order, and those that attested requests and kubelet's own have in common.

A ``Pipeline`` runs the checks that apply in their declared order; the first refusal ends the evaluation. The
controller runs them on its caches and live reads, ``nodeattest explain`` on stored documents. The lists are in
``controllers.csr.checks`` and ``controllers.csr.kubelet_checks``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from nodeattest_controller.model import serving_names
from nodeattest_controller.model.csr_request import Round
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import has_name, name_taken, object_names
from nodeattest_controller.model.resolver import not_ready
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_parsing.objects import text
from nodeattest_providers.identifiers import Purpose


class Stage(StrEnum):
    """When a check runs."""

    EVALUATE = "evaluate"
    ISSUE = "issue"
    """While key, node name and fingerprints are reserved, before a new certificate is signed."""


BOTH_ROUNDS: Final = frozenset(Round)
F = TypeVar("F", bound=RequestFacts)
F_contra = TypeVar("F_contra", bound=RequestFacts, contravariant=True)


@dataclass(frozen=True, slots=True)
class RequestCheck(Generic[F_contra]):
    """One declared check."""

    name: str
    """Unique in its list; ``explain`` shows it."""
    rule: str
    """What must hold, in a sentence."""
    source: str
    """Where the rule comes from: an identity rule of docs/identity-rules.md, a decision, an RFC."""
    run: Callable[[F_contra], Awaitable[None]]
    """Raises Denied, Unavailable or ChallengeRequired."""
    _: KW_ONLY
    purposes: frozenset[Purpose] = frozenset(Purpose)
    rounds: frozenset[Round] = BOTH_ROUNDS
    stage: Stage = Stage.EVALUATE

    async def applies(self, facts: F_contra) -> bool:
        if facts.purpose not in self.purposes:
            return False
        return self.rounds == BOTH_ROUNDS or await facts.round() in self.rounds


def declare(
    name: str,
    source: str,
    *,
    purposes: Iterable[Purpose] = Purpose,
    rounds: Iterable[Round] = Round,
    stage: Stage = Stage.EVALUATE,
) -> Callable[[Callable[[F], Awaitable[None]]], RequestCheck[F]]:
    """Make a check of a function, whose docstring is the rule."""

    def check(run: Callable[[F], Awaitable[None]]) -> RequestCheck[F]:
        rule = " ".join((run.__doc__ or "").split())
        applies_to = frozenset(purposes), frozenset(rounds)
        return RequestCheck(name, rule, source, run, purposes=applies_to[0], rounds=applies_to[1], stage=stage)

    return check


class Pipeline(Generic[F]):
    """Runs checks in their declared order."""

    def __init__(self, checks: Sequence[RequestCheck[F]]) -> None:
        names = [check.name for check in checks]
        if not checks or len(names) != len(set(names)):
            raise ValueError("a list of checks has checks, each with a name of its own")
        self._checks = tuple(checks)

    async def run(self, facts: F, stage: Stage = Stage.EVALUATE) -> None:
        """Run the checks that apply, of which there must be one; raises what a check raises."""
        has_run = False
        for check in self._checks:
            if check.stage is stage and await check.applies(facts):
                await check.run(facts)
                has_run = True
        if not has_run:
            raise RuntimeError(f"no check of the stage {stage} applies to the request")


# Checks of both lists

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
        remedy = "delete the stale Node, or rename this machine"
        raise name_taken("the Node of this name has another provider ID", remedy)
    if machine.node_ref_uid != text(node, "metadata", "uid"):
        raise name_taken(
            "the Node of this name has no provider ID and is not the Machine's nodeRef",
            "set the Node's provider ID, or delete the stale Node",
        )


# Names of serving requests. If the attesting provider has a platform that lists addresses, its present answer decides
# alone: an address that moved away is not believed until Cluster API notices. Else Machine.status.addresses decides.
# Never both together, and a platform that does not answer is waited for.


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
    serving_names.check_sans_listed(facts.names, node_name=facts.node_name, listed=listed, settled=bool(listed))


async def _check_unclaimed(facts: RequestFacts, machine: MachineView) -> None:
    inventory, key = facts.source.inventory, facts.source.key
    name, holders = facts.node_name, (await facts.name_context()).holders

    def conflicting(host: str) -> Sequence[MachineView]:
        found = inventory.conflicting_members(key, host, machine.provider_id)
        if host != name or serving_names.parse_address(host) is not None or name not in object_names(machine):
            return found
        # The name is the machine's own by its objects: a guest that only lists it does not have it.
        return [other for other in found if has_name(other, name, holders) or name in object_names(other)]

    network = serving_names.network_of(await facts.cluster())
    serving_names.check_sans_unclaimed(facts.names, machine=machine, network=network, rivals=conflicting)


def _check_listed_in_status(facts: RequestFacts, machine: MachineView) -> None:
    serving_names.check_sans_listed(
        facts.names,
        node_name=facts.node_name,
        listed=machine.addresses,
        settled=serving_names.addresses_final(machine, facts.created),
        of_pool=machine.kind == "MachinePool",
    )
