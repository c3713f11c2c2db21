"""Runs the demo: start clusters and machines, let machines join, run the attacks, report.

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

from nodeattest_cli.demo.attacks.common import attacks_for, run_attack
from nodeattest_cli.demo.attacks.context import AttackContext, attacker_with_token_of
from nodeattest_cli.demo.automatic_approval import await_closed, is_open
from nodeattest_cli.demo.children import Children
from nodeattest_cli.demo.display import LiveDisplay
from nodeattest_cli.demo.fleet import DemoMachine, join, provision
from nodeattest_cli.demo.join_info import JoinInfo, join_info_with_ca, publish_cluster_info
from nodeattest_cli.demo.machine_spec import AttestorSettings, MachineSpec
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.platforms import DemoPlatform, platform_type
from nodeattest_cli.demo.results import AttackResult, DemoReport, JoinResult
from nodeattest_cli.demo.tools import Tools
from nodeattest_cli.demo.world import (
    CLUSTER_PATH,
    USER,
    ControlPlanes,
    World,
    create_world,
    start_control_planes,
    start_controller,
)
from nodeattest_providers.names import ProviderName
from nodeattest_sandbox.client import ApiRefusal

__all__ = ["DemoConfig", "run"]

_AT_ONCE: Final = 16
"""Machines that are made or join at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """The demo's options."""

    provider: ProviderName
    discovery: str
    """One of ``DISCOVERIES``."""
    nodes: int
    directory: Path
    """For every file of the demo; it exists and is empty."""
    tools: Tools
    environment: Mapping[str, str] = field(repr=False)
    """Of the programs that are started."""


def run(config: DemoConfig, display: LiveDisplay, *, present: Callable[[World, DemoReport], None]) -> DemoReport:
    """Run the demo; ``present`` is called with everything still running."""
    with ExitStack() as stack:
        children = Children(config.environment)
        stack.callback(children.close)
        world, platform, machines = _build(config, display, stack, children)
        *members, victims, unregistered = machines
        display.start_step("creating Machines, starting the controller")
        provisioned = [provision(world, number, spec) for number, spec in enumerate(members, 1)]
        victim = provision(world, len(members) + 1, victims)
        display.done(f"{len(members)} Machines to join, and one that has not booted yet: {victim.identity.node}")
        controller = start_controller(world, config.directory / "controller", config.tools, stack, platform=platform)
        display.done(f"node-attestation-controller, process {controller.pid()}, with the shipped RBAC")
        joined, problems = _join_all(config, display, world, children, provisioned)
        closed, more = _await_closed(display, world)
        problems += more
        refused: list[AttackResult] = []
        if joined:
            member = next(one for one in provisioned if one.identity.node == joined[0].node)
            refused, more = _try_all(
                config,
                display,
                _context(
                    config, world, platform, children, victim=victim, member=member, unregistered=unregistered.attestor
                ),
            )
            problems += more
        display.close()
        report = DemoReport(joined=joined, refused=refused, problems=problems, automatic_approval=closed)
        present(world, report)
        return report


def _build(
    config: DemoConfig, display: LiveDisplay, stack: ExitStack, children: Children
) -> tuple[World, DemoPlatform, list[MachineSpec]]:
    """Start clusters and machines side by side; the last two machines are the victim's and the attacker's."""
    assets = config.tools.assets
    opening = platform_type(config.provider)
    display.start_step(f"starting two control planes and {config.nodes + 2} machines")

    def make_machines() -> tuple[DemoPlatform, list[MachineSpec]]:
        platform = opening(config.directory, stack)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return platform, list(pool.map(platform.create_machine, range(1, config.nodes + 3)))

    with ThreadPoolExecutor(1) as aside:
        making = aside.submit(make_machines)
        planes = start_control_planes(config.directory, assets=assets, stack=stack)
        platform, machines = making.result()
        join_info = _join_info(config, planes, children)
        world = create_world(planes, provider=config.provider, join_info=join_info, policy=platform.policy)
    display.done(
        f"management cluster {world.management.server}, workload cluster {world.workload.server}, {world.version}"
    )
    if join_info.pin:
        display.done(f"cluster-info published; a machine knows an address, its token and {join_info.pin}")
    display.done(f"{len(machines)} machines with {opening.things}")
    if is_open(world.workload.client()):
        display.done("automatic approval is open, as kubeadm leaves it: a stolen token gets any node's certificate")
    return world, platform, machines


def _join_info(config: DemoConfig, planes: ControlPlanes, children: Children) -> JoinInfo:
    if config.discovery == "none":
        return join_info_with_ca(planes.workload)
    return publish_cluster_info(planes.workload, children, config.tools.command, user=USER)


def _join_all(
    config: DemoConfig, display: LiveDisplay, world: World, children: Children, machines: Sequence[DemoMachine]
) -> tuple[list[JoinResult], list[str]]:
    """Let every machine join at the same time."""
    display.start_step(f"{len(machines)} machines join")
    joined: list[JoinResult] = []
    problems: list[str] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            futures = [pool.submit(_join_one, config, world, children, machine) for machine in machines]
            for future in as_completed(futures):
                outcome = future.result()
                if isinstance(outcome, str):
                    problems.append(outcome)
                else:
                    joined.append(outcome)
                    display.joined(outcome)
        except BaseException:  # a signal, too: or the pool would wait for the agents
            children.close()
            pool.shutdown(cancel_futures=True)
            raise
    return sorted(joined, key=lambda entry: _number(entry.machine)), problems


def _await_closed(display: LiveDisplay, world: World) -> tuple[str, list[str]]:
    """Wait for the controller to close automatic approval; returns the reported reason, and what went wrong."""
    display.start_step("automatic approval is closed")
    try:
        reason = await_closed(world.management.client(), world.workload.client(), CLUSTER_PATH)
    except DemoFailure as failure:
        return "", [str(failure)]
    display.done("closed   automatic approval: the API server allows it to no token any more")
    return reason, []


def _join_one(config: DemoConfig, world: World, children: Children, machine: DemoMachine) -> JoinResult | str:
    node = machine.identity.node
    try:
        return join(world, children, config.tools.agent, config.directory / "nodes" / node, machine)
    except (DemoFailure, ApiRefusal) as failure:
        return str(failure)


def _number(machine: str) -> int:
    return int(machine.rpartition("-")[2])


def _context(
    config: DemoConfig,
    world: World,
    platform: DemoPlatform,
    children: Children,
    *,
    victim: DemoMachine,
    member: DemoMachine,
    unregistered: AttestorSettings,
) -> AttackContext:
    return AttackContext(
        world=world,
        platform=platform,
        children=children,
        agent=config.tools.agent,
        directory=config.directory / "attackers",
        attacker=attacker_with_token_of(world, victim),  # stolen from the victim's bootstrap data, before it booted
        insider=attacker_with_token_of(world, member),
        victim=victim,
        member=member,
        unregistered=unregistered,
    )


def _try_all(config: DemoConfig, display: LiveDisplay, context: AttackContext) -> tuple[list[AttackResult], list[str]]:
    """Let the attackers try, one after the other so that each answer can be told apart."""
    refused: list[AttackResult] = []
    problems: list[str] = []
    for attack in attacks_for(config.provider, config.discovery):
        display.start_step(f"attack: {attack.name}")
        try:
            entry = run_attack(context, attack)
        except (DemoFailure, ApiRefusal) as failure:
            problems.append(f"{attack.name}: {failure}")
            continue
        display.refused(entry)
        refused.append(entry)
        if not entry.is_right:
            problems.append(
                f"{attack.name}: expected {' or '.join(entry.expected)}, got {entry.reason}: {entry.message}"
            )
    return refused, problems
