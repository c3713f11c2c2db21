"""D4 at the reconciler of ``NodeAttested``: who holds a bootstrap token, or another node, cannot make it False."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import pytest
from catalogue import Expected, Row, Verdict, attacks
from node_attested_world import NOW, NodeAttestedWorld, claim, machine

from nodeattest_controller.runtime.cluster_controller import CSRDenied
from nodeattest_parsing.objects import text
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import Purpose

JOINED, NEW = machine(0), machine(1, node=False)
INSTANCE = replace(machine(2), kind="MachinePool", name="pool", uid="p-0")


@dataclass(frozen=True)
class Attack:
    """Whom it is about, and the refused requests."""

    prepare: Callable[[NodeAttestedWorld], str]
    requests: Callable[[Reason], list[CSRDenied]]
    pause: float = 0.0
    """Seconds between two reasons."""


def other_node(reason: Reason, **changes: object) -> CSRDenied:
    return claim(JOINED, reason, by_node=True, node_name="node-9", username="system:node:node-9", **changes)


CASES: Final[Mapping[str, Attack]] = {
    "D4-120": Attack(lambda world: world.machine(NEW), lambda reason: [claim(NEW, reason)]),
    "D4-121": Attack(
        lambda world: world.joined(JOINED, ends=NOW - timedelta(seconds=1)), lambda reason: [claim(JOINED, reason)]
    ),
    "D4-122": Attack(
        lambda world: world.joined(JOINED),
        lambda reason: [claim(JOINED, reason, purpose=purpose) for purpose in Purpose],
    ),
    "D4-123": Attack(lambda world: world.joined(JOINED), lambda reason: [other_node(reason)]),
    "D4-124": Attack(
        lambda world: world.machine(NEW), lambda reason: [other_node(reason, provider_id=NEW.provider_id)]
    ),
    "D4-125": Attack(lambda world: world.pool(INSTANCE), lambda reason: [claim(INSTANCE, reason)]),
    "D4-126": Attack(lambda world: world.machine(NEW), lambda reason: [claim(NEW, reason)] * 9, pause=60),
}


def read_by_health_checks(world: NodeAttestedWorld, path: str) -> tuple[str, ...]:
    return tuple(text(world.shown(path), name) for name in ("status", "reason", "lastTransitionTime"))


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
async def test_no_token_and_no_other_node_changes_what_a_machine_health_check_reads(
    row: Row, attack: Attack, version: str
) -> None:
    world = NodeAttestedWorld(version)
    world.policy(onFailure="DeleteNode")
    path = attack.prepare(world)
    async with world.running():
        before = read_by_health_checks(world, path)
        for reason in Reason:
            for verdict in attack.requests(reason):
                world.controller.refused(verdict)
            await world.resync(attack.pause)
        unchanged = read_by_health_checks(world, path) == before
        assert world.workload_api.count("PATCH") == world.workload_api.count("DELETE") == 0
    assert Expected(Verdict.IGNORE if unchanged else Verdict.DENY, "") == row.expected
