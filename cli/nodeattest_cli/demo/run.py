"""The demo from beginning to end: build the world, let machines join, let impostors try, report.

Promises: everything that was started has ended when ``run`` returns or raises. Leaves the files to the caller, who may
also look at everything while it still runs (``present``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.attempts import attempts_for, carry_out
from nodeattest_cli.demo.children import Children
from nodeattest_cli.demo.directions import Directions, given, publish
from nodeattest_cli.demo.equipment import Equipment, Seat
from nodeattest_cli.demo.fleet import DemoMachine, join, provision
from nodeattest_cli.demo.grounds import Ground, ground_type
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.results import Joined, Refused, Report
from nodeattest_cli.demo.scene import Scene, thief_of
from nodeattest_cli.demo.show import Show
from nodeattest_cli.demo.tools import Tools
from nodeattest_cli.demo.world import USER, Planes, World, fill, start_controller, start_planes
from nodeattest_providers.names import ProviderName
from nodeattest_sandbox.client import ApiRefusal

__all__ = ["Plan", "run"]

_AT_ONCE: Final = 16
"""Machines that are made or join at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for."""

    provider: ProviderName
    discovery: str
    """One of ``DISCOVERIES``."""
    nodes: int
    directory: Path
    """For every file of the demo; it exists and is empty."""
    tools: Tools
    environment: Mapping[str, str] = field(repr=False)
    """Of the programs that are started."""


def run(plan: Plan, show: Show, *, present: Callable[[World, Report], None]) -> Report:
    """Run the demo; ``present`` is called with everything still running."""
    with ExitStack() as stack:
        children = Children(plan.environment)
        stack.callback(children.close)
        world, ground, machines = _build(plan, show, stack, children)
        *members, victims, stranger = machines
        show.began("creating Machines, starting the controller")
        provisioned = [provision(world, number, equipment) for number, equipment in enumerate(members, 1)]
        victim = provision(world, len(members) + 1, victims)
        show.done(f"{len(members)} Machines to join, and one that has not booted yet: {victim.identity.node}")
        controller = start_controller(world, plan.directory / "controller", plan.tools, stack, ground=ground)
        show.done(f"node-attestation-controller, process {controller.pid()}, with the shipped RBAC")
        joined, problems = _join_all(plan, show, world, children, provisioned)
        refused: list[Refused] = []
        if joined:
            member = next(one for one in provisioned if one.identity.node == joined[0].node)
            refused, more = _try_all(
                plan, show, _scene(plan, world, ground, children, victim=victim, member=member, stranger=stranger.seat)
            )
            problems += more
        show.close()
        report = Report(joined=joined, refused=refused, problems=problems)
        present(world, report)
        return report


def _build(plan: Plan, show: Show, stack: ExitStack, children: Children) -> tuple[World, Ground, list[Equipment]]:
    """Start clusters and machines side by side; the last two machines are the victim's and a stranger's."""
    assets = plan.tools.assets
    opening = ground_type(plan.provider)
    show.began(f"starting two control planes and {plan.nodes + 2} machines")

    def make_machines() -> tuple[Ground, list[Equipment]]:
        ground = opening(plan.directory, stack)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return ground, list(pool.map(ground.equip, range(1, plan.nodes + 3)))

    with ThreadPoolExecutor(1) as aside:
        making = aside.submit(make_machines)
        planes = start_planes(plan.directory, assets=assets, stack=stack)
        ground, machines = making.result()
        directions = _directions(plan, planes, children)
        world = fill(planes, provider=plan.provider, directions=directions, policy=ground.policy)
    if assets is not None and not planes.management_is_real:
        show.done(f"the management cluster is a sandbox: {world.version} as built here dies of custom resources")
    show.done(
        f"management cluster {world.management.server}, workload cluster {world.workload.server}, {world.version}"
    )
    if directions.pin:
        show.done(f"cluster-info published; a machine knows an address, its token and {directions.pin}")
    show.done(f"{len(machines)} machines with {opening.things}")
    return world, ground, machines


def _directions(plan: Plan, planes: Planes, children: Children) -> Directions:
    if plan.discovery == "none":
        return given(planes.workload)
    return publish(planes.workload, children, plan.tools.command, user=USER)


def _join_all(
    plan: Plan, show: Show, world: World, children: Children, machines: Sequence[DemoMachine]
) -> tuple[list[Joined], list[str]]:
    """Let every machine join at the same time."""
    show.began(f"{len(machines)} machines join")
    joined: list[Joined] = []
    problems: list[str] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            futures = [pool.submit(_join_one, plan, world, children, machine) for machine in machines]
            for future in as_completed(futures):
                outcome = future.result()
                if isinstance(outcome, str):
                    problems.append(outcome)
                else:
                    joined.append(outcome)
                    show.joined(outcome)
        except BaseException:  # a signal, too: or the pool would wait for the agents
            children.close()
            pool.shutdown(cancel_futures=True)
            raise
    return sorted(joined, key=lambda entry: _number(entry.machine)), problems


def _join_one(plan: Plan, world: World, children: Children, machine: DemoMachine) -> Joined | str:
    node = machine.identity.node
    try:
        return join(world, children, plan.tools.agent, plan.directory / "nodes" / node, machine)
    except (DemoFailure, ApiRefusal) as failure:
        return str(failure)


def _number(machine: str) -> int:
    return int(machine.rpartition("-")[2])


def _scene(
    plan: Plan,
    world: World,
    ground: Ground,
    children: Children,
    *,
    victim: DemoMachine,
    member: DemoMachine,
    stranger: Seat,
) -> Scene:
    return Scene(
        world=world,
        ground=ground,
        children=children,
        agent=plan.tools.agent,
        directory=plan.directory / "impostors",
        attacker=thief_of(world, victim),  # stolen from the victim's bootstrap data, before it booted
        insider=thief_of(world, member),
        victim=victim,
        member=member,
        stranger=stranger,
    )


def _try_all(plan: Plan, show: Show, scene: Scene) -> tuple[list[Refused], list[str]]:
    """Let the impostors try, one after the other so that each answer is told apart."""
    refused: list[Refused] = []
    problems: list[str] = []
    for attempt in attempts_for(plan.provider, plan.discovery):
        show.began(f"impostor: {attempt.name}")
        try:
            entry = carry_out(scene, attempt)
        except (DemoFailure, ApiRefusal) as failure:
            problems.append(f"{attempt.name}: {failure}")
            continue
        show.refused(entry)
        refused.append(entry)
        if not entry.is_right:
            problems.append(
                f"{attempt.name}: expected {' or '.join(entry.expected)}, got {entry.reason}: {entry.message}"
            )
    return refused, problems
