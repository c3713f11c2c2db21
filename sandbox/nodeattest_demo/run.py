"""Run the demo: start clusters and machines, let machines join, run the attacks, report.

Promises: everything that was started has ended when ``run`` returns or raises. Leaves the files to the caller, who may
also look at everything while it still runs (``present``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_cli.output import format_table, print_lines
from nodeattest_demo.attacks import Attacker, Scene, attacks_for
from nodeattest_demo.machines import (
    PLATFORMS,
    Children,
    DemoFailure,
    DemoMachine,
    call_plugin,
    node_kubeconfig,
    register,
)
from nodeattest_demo.world import (
    Tools,
    World,
    await_closed,
    create_world,
    is_open,
    provision,
    run_join,
    start_control_planes,
    start_controller,
)
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_sandbox.client import ApiRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """A machine that became a node."""

    node: str
    machine: str
    provider: str
    signer: str
    not_after: str
    """RFC 3339, from the certificate itself."""
    proof: str
    """How the API server confirmed the credential's identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """An attack and its outcome."""

    attempt: str
    expected: tuple[Reason, ...]
    """Accepted Reasons; usually one."""
    reason: str
    message: str

    @property
    def is_right(self) -> bool:
        """Whether it was refused for an expected Reason."""
        return self.reason in self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The demo's outcome."""

    joined: Sequence[JoinResult]
    refused: Sequence[AttackResult]
    """The attacks."""
    problems: Sequence[str]
    """Deviations from what is expected; empty means success."""
    automatic_approval: str = ""
    """Reason of the Cluster's condition once the in-tree signer's automatic approval was closed."""

    def to_json(self) -> JsonObject:
        """Return the one object that ``--json`` prints."""
        joined: list[JsonValue] = [
            {
                "node": one.node,
                "machine": one.machine,
                "provider": one.provider,
                "signer": one.signer,
                "notAfter": one.not_after,
            }
            for one in self.joined
        ]
        refused: list[JsonValue] = [
            {"attempt": one.attempt, "reason": one.reason, "message": one.message} for one in self.refused
        ]
        return {"joined": joined, "refused": refused, "automaticApproval": self.automatic_approval}


class Display:
    """Prints a line for each fact, with the seconds since the start."""

    def __init__(self, *, err: bool) -> None:
        self._err = err
        self._started = time.monotonic()

    def done(self, fact: str) -> None:
        """Print a fact."""
        print_lines(f"{time.monotonic() - self._started:5.1f}s  {fact}", err=self._err)

    def refused(self, entry: AttackResult) -> None:
        """Print the outcome of an attack."""
        self.done(f"{'refused  ' if entry.is_right else 'WRONG    '}{entry.attempt}: {entry.reason}")


def tables(report: DemoReport) -> list[str]:
    """Return the tables of who joined and who did not."""
    nodes = [("NODE", "MACHINE", "PROVIDER", "CERTIFICATE UNTIL", "THE API SERVER SAYS")]
    nodes += [(one.node, one.machine, one.provider, one.not_after, one.proof) for one in report.joined]
    attacks = [("ATTEMPT", "REASON", "WHAT THE ATTACKER GETS")]
    attacks += [(one.attempt, one.reason, one.message) for one in report.refused]
    return ["", *format_table(nodes), "", *format_table(attacks), ""]


# The run

_AT_ONCE: Final = 16
"""Machines that are made or join at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """The demo's options."""

    provider: str
    nodes: int
    directory: Path
    """For every file of the demo; it exists and is empty."""
    tools: Tools
    environment: Mapping[str, str] = field(repr=False)
    """Of the programs that are started."""


def run(config: DemoConfig, display: Display, *, present: Callable[[World, DemoReport], None]) -> DemoReport:
    """Run the demo; ``present`` is called with everything still running."""
    with ExitStack() as stack:
        children = Children(config.environment)
        stack.callback(children.close)
        world, machines = _build(config, display, stack)
        *members, unbooted, unregistered = machines
        provisioned = [provision(world, number, spec) for number, spec in enumerate(members, 1)]
        victim = provision(world, len(members) + 1, unbooted)
        display.done(f"{len(members)} Machines to join, and one that has not booted yet: {victim.identity.node}")
        controller = start_controller(world, config.directory / "controller", config.tools, stack)
        display.done(f"node-attestation-controller, process {controller.pid()}, with the shipped RBAC")
        joined, problems = _join_all(config, display, world, children, provisioned)
        closed = ""
        try:
            closed = await_closed(world)
            display.done("closed   automatic approval: the API server allows it to no token any more")
        except DemoFailure as failure:
            problems.append(str(failure))
        refused: list[AttackResult] = []
        if joined:
            member = next(one for one in provisioned if one.identity.node == joined[0].node)
            scene = Scene(
                world=world,
                children=children,
                agent=config.tools.agent,
                directory=config.directory / "attackers",
                attacker=Attacker.with_token_of(world, victim),
                insider=Attacker.with_token_of(world, member),
                victim=victim,
                member=member,
                unregistered=unregistered.attestor,
            )
            refused, more = _try_all(config, display, scene)
            problems += more
        report = DemoReport(joined=joined, refused=refused, problems=problems, automatic_approval=closed)
        present(world, report)
        return report


def _build(config: DemoConfig, display: Display, stack: ExitStack) -> tuple[World, list[DemoMachine]]:
    """Start clusters and machines side by side; the last two machines are the victim's and the attacker's."""
    kind = PLATFORMS[config.provider]
    display.done(f"starting two control planes and {config.nodes + 2} machines")

    def make_machines() -> list[DemoMachine]:
        platform = kind(config.directory, stack)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(platform.create_machine, range(1, config.nodes + 3)))

    with ThreadPoolExecutor(1) as aside:
        making = aside.submit(make_machines)
        planes = start_control_planes(config.directory, assets=config.tools.assets, stack=stack)
        machines = making.result()
    world = create_world(*planes, provider=config.provider)
    display.done(
        f"management cluster {world.management.server}, workload cluster {world.workload.server}, {world.version}"
    )
    display.done(f"{len(machines)} machines with {kind.things}")
    if is_open(world.workload.client()):
        display.done("automatic approval is open, as kubeadm leaves it: a stolen token gets any node's certificate")
    return world, machines


def _join_all(
    config: DemoConfig, display: Display, world: World, children: Children, machines: Sequence[DemoMachine]
) -> tuple[list[JoinResult], list[str]]:
    """Let every machine join at the same time."""
    joined: dict[str, JoinResult] = {}
    problems: list[str] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            futures = [pool.submit(_join, config, world, children, machine) for machine in machines]
            for future in as_completed(futures):
                try:
                    one = joined[future.result().machine] = future.result()
                    until = f"by {one.provider}, until {one.not_after}"
                    display.done(f"joined   {one.node} ({one.machine}) {until}")
                except (DemoFailure, ApiRefusal) as failure:
                    problems.append(str(failure))
        except BaseException:  # a signal, too: or the pool would wait for the agents
            children.close()
            pool.shutdown(cancel_futures=True)
            raise
    return [joined[one.machine] for one in machines if one.machine in joined], problems


def _join(config: DemoConfig, world: World, children: Children, machine: DemoMachine) -> JoinResult:
    """Join as a machine does at its first boot, then do what kubelet does; raises ``DemoFailure``."""
    identity, attestor = machine.identity, machine.attestor
    root = config.directory / "nodes" / identity.node
    agent, token = config.tools.agent, machine.token
    ended = run_join(world, children, agent, root, identity=identity, attestor=attestor, token=token)
    if ended.code:
        raise DemoFailure(f"{identity.node} could not join: {ended.last_line}")
    credential = call_plugin(children, node_kubeconfig(root))
    return JoinResult(
        node=identity.node,
        machine=machine.machine,
        provider=attestor.provider,
        signer=attestor.signer,
        not_after=credential.not_after,
        proof=register(world.workload.server, world.workload.ca_certificate, credential, identity),
    )


def _try_all(config: DemoConfig, display: Display, scene: Scene) -> tuple[list[AttackResult], list[str]]:
    """Let the attackers try, one after the other so that each answer can be told apart."""
    refused: list[AttackResult] = []
    problems: list[str] = []
    for attack in attacks_for(config.provider):
        try:
            got = attack.run(scene)
        except (DemoFailure, ApiRefusal) as failure:
            problems.append(f"{attack.name}: {failure}")
            continue
        entry = AttackResult(attempt=attack.name, expected=attack.expected, reason=got.reason, message=got.message)
        display.refused(entry)
        refused.append(entry)
        if not entry.is_right:
            problems.append(f"{attack.name}: expected {' or '.join(attack.expected)}, got {got.reason}: {got.message}")
    return refused, problems
