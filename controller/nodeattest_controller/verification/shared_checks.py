"""The checks that attested requests and kubelet's own have in common, each defined once.

Leaves to others: names and addresses of serving requests (``sans``), and the lists that hold these checks
(``controllers.csr.checks``, ``controllers.kubelet_serving.checks``).
"""

from __future__ import annotations

from typing import Final

from nodeattest_controller.model.identity_rules import check_no_hijack
from nodeattest_controller.verification.checks import Needs, RequestCheck, Round
from nodeattest_controller.verification.facts import RequestFacts


async def _active_cluster(facts: RequestFacts) -> None:
    await facts.cluster()


async def _machine_now(facts: RequestFacts) -> None:
    facts.require_one([await facts.machine()])


async def _no_other_node(facts: RequestFacts) -> None:
    check_no_hijack(await facts.machine(), await facts.name_context(), await facts.node())


ACTIVE_CLUSTER: Final = RequestCheck(
    "an active cluster",
    "The Cluster is there, not paused, and not being deleted; a ClusterRecord can be read whole.",
    "identity rule 1",
    Needs.MEMORY,
    _active_cluster,
)
MACHINE_NOW: Final = RequestCheck(
    "the Machine as it is now",
    "The same holds of the machine as the API server has it now.",
    "identity rule 1",
    Needs.LIVE,
    _machine_now,
    rounds=frozenset({Round.FINAL}),
)
NO_OTHER_NODE: Final = RequestCheck(
    "no other node of this name",
    "No other machine is bound to the name, and a Node that has it is this machine's.",
    "identity rule 3",
    Needs.LIVE,
    _no_other_node,
)
