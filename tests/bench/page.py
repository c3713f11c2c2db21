"""``python -m bench page``: measure joins beside the in-tree signer, and one node; write docs/performance.md.

A round of the joins is a burst of each kind, in turns, and every second round goes in the opposite order: the speed of
a machine drifts within minutes, so only what was measured in the same round is compared. Each kind has API servers of
its own. Nodes, controller and API servers share the cores.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from pathlib import Path

from bench import one_node, report
from bench.burst import (
    BenchEnvironment,
    Burst,
    cluster_of,
    count_requests,
    provision_in,
    rate_of_last,
    resident,
    run,
    say,
    start_environment,
)
from bench.joiner import Kind, Node
from bench.report import Case, Run
from nodeattest_demo.world import USER, Tools, leave_open, new_token
from nodeattest_discovery.secret import DEFAULT_GROUP
from nodeattest_sandbox.control_plane import ControlPlane, controller_manager, start_real
from nodeattest_sandbox.fleet import create_bootstrap_token

MANAGER = "kube-controller-manager"
SIGNER = ("csrapproving", "csrsigning")
DEFAULT_LIMITS: Mapping[str, int] = {}
NO_LIMITS = {"kube-api-qps": 5000, "kube-api-burst": 5000}
"""More than it can send."""
BURST = 40
"""Requests that use up the burst of its default limits (30)."""
WARM = 150
"""Joins at most that come before a burst and do not count: caches and heaps are filled, connections are open. An API
server's first hundreds of joins cost it half as much again."""
PROCESSES = 2
QUIET = 8.0
"""Seconds after a burst, in which a controller writes the last Events and conditions, and the next case waits."""


@dataclass(frozen=True)
class Sizes:
    """How much a run measures."""

    rounds: int = 5
    joins: int = 250
    """Of one burst: what a controller does once after a pause, as reading all tokens, is to be a small part of it."""
    limited: int = 180
    """Requests with the in-tree signer's default limits, after those of its burst: ten a second. 0 leaves it out."""
    cold: int = 15
    at_once: int = 20
    settle: int = 20
    """Seconds, in which API servers end what follows from their start."""

    @property
    def warm(self) -> int:
        return min(WARM, self.joins)


Measure = Callable[[], dict[str, float]]
"""Lets a burst of nodes join, and returns its figures."""


def in_turns(bursts: Mapping[str, Measure], rounds: int) -> list[Case]:
    """Measure a burst of each case in every round; samples of one round have the same index in all cases."""
    cases = {name: Case(name) for name in bursts}
    for number in range(rounds):
        for name in list(bursts)[:: -1 if number % 2 else 1]:
            cases[name].add(**bursts[name]())
            say(f"round {number + 1} of {rounds}, {name}: {cases[name].samples['rate'][-1]:.1f}/s")
    return [*cases.values()]


def figures(burst: Burst, pid: int) -> dict[str, float]:
    assert burst.joins, f"nobody joined: {burst.failures}"
    return {**burst.samples, "resident": resident(pid)}


@dataclass(frozen=True)
class InTreeSigner:
    plane: ControlPlane
    token: str
    pid: int

    def join(self, numbers: range, sizes: Sizes) -> Burst:
        return run(
            Kind.IN_TREE,
            cluster_of(self.plane),
            [Node(number, f"worker-{number}", "", self.token) for number in numbers],
            pids={"controller_cpu": [self.pid], "server_cpu": list(self.plane.pids.values())},
            processes=PROCESSES,
            at_once=sizes.at_once,
        )


@contextmanager
def _in_tree_signer(tools: Tools, limits: Mapping[str, int]) -> Generator[InTreeSigner | None]:
    """Start kube-controller-manager's approver and signer, where the assets have them."""
    assets = tools.assets
    if assets is None or not (assets / MANAGER).exists():
        yield None
        return
    with (
        tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name,
        start_real(Path(name) / "plane", assets, name="in-tree") as plane,
    ):
        token = plane.await_token(_open_as_kubeadm_does(plane))
        with controller_manager(plane, assets, SIGNER, limits) as process:
            yield InTreeSigner(plane, token, process.pid())


def _open_as_kubeadm_does(plane: ControlPlane) -> str:
    client = plane.client()
    leave_open(client)
    group = "rbac.authorization.k8s.io"
    client.create(
        f"/apis/{group}/v1/clusterrolebindings",
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "kubeadm:kubelet-bootstrap"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:node-bootstrapper"},
            "subjects": [{"apiGroup": group, "kind": "Group", "name": DEFAULT_GROUP}],
        },
    )
    return create_bootstrap_token(client, new_token())


@contextmanager
def in_tree(tools: Tools, sizes: Sizes) -> Generator[Measure | None]:
    """Kubernetes' own signer, without limits; None where it is not there."""
    with _in_tree_signer(tools, NO_LIMITS) as signer:
        if signer is None:
            yield None
            return
        signer.join(range(sizes.warm), sizes)
        firsts = count(sizes.warm, sizes.joins)

        def burst() -> dict[str, float]:
            first = next(firsts)
            measured = figures(signer.join(range(first, first + sizes.joins), sizes), signer.pid)
            time.sleep(QUIET)
            return measured

        yield burst


def in_tree_default(tools: Tools, sizes: Sizes) -> list[Case]:
    """The same with its default limits, in one go: a pause would let its limiter save up another burst."""
    with _in_tree_signer(tools, DEFAULT_LIMITS) as signer:
        if signer is None or not sizes.limited:
            return []
        time.sleep(sizes.settle)
        burst = signer.join(range(BURST + sizes.limited), sizes)
        case = Case(report.LIMITED)
        case.add(**figures(burst, signer.pid) | {"rate": rate_of_last(burst.ends, sizes.limited)})
    return [case]


@contextmanager
def ours(kind: Kind, tools: Tools, sizes: Sizes) -> Generator[Measure]:
    """This project: by TPM two requests a node, evidence that is verified, a ledger; or a provider of one step."""
    with start_environment(tools, provider=kind.value) as env:
        nodes = iter(provision_in(env.world, kind, range(1, 1 + sizes.warm + sizes.rounds * sizes.joins)))
        _join(env, kind, list(islice(nodes, sizes.warm)), sizes)

        def burst() -> dict[str, float]:
            recorded = env.recorder()
            done = _join(env, kind, list(islice(nodes, sizes.joins)), sizes)
            measured = figures(done, env.controller_pid)
            time.sleep(QUIET)
            return measured | count_requests(recorded(), user=USER, joins=done.joins)

        yield burst


def _join(env: BenchEnvironment, kind: Kind, nodes: Sequence[Node], sizes: Sizes) -> Burst:
    return run(
        kind,
        cluster_of(env.world.workload),
        nodes,
        pids=env.pids,
        processes=min(PROCESSES, len(nodes)),
        at_once=sizes.at_once,
    )


BURSTS: Mapping[str, Callable[[Tools, Sizes], AbstractContextManager[Measure | None]]] = {
    report.LIFTED: in_tree,
    report.TPM: partial(ours, Kind.TPM),
    report.ONE_STEP: partial(ours, Kind.ONE_STEP),
}


def _joins(tools: Tools, sizes: Sizes) -> list[Case]:
    with ExitStack() as stack:
        bursts = {name: stack.enter_context(start(tools, sizes)) for name, start in BURSTS.items()}
        time.sleep(sizes.settle)
        return in_turns({name: burst for name, burst in bursts.items() if burst is not None}, sizes.rounds)


CASES: Mapping[str, Callable[[Tools, Sizes], list[Case]]] = {
    "joins": _joins,
    "in-tree-default": in_tree_default,
    "one-node": lambda tools, sizes: one_node.measure(tools, sizes.cold, sizes.settle),
}


def main(arguments: list[str], tools: Tools) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench page", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES], help="only show these")
    parser.add_argument("--no-write", action="store_true", help="only show")
    for each in fields(Sizes):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=int, default=each.default)
    options = parser.parse_args(arguments)
    writes = not options.no_write and len(options.cases) == len(CASES)
    if tools.assets is None and writes:
        parser.error("the page is of real API servers: set KUBEBUILDER_ASSETS, or show the sandbox's by --no-write")
    sizes = Sizes(**{each.name: vars(options)[each.name] for each in fields(Sizes)})
    result = new_run({case.name: case for name in options.cases for case in CASES[name](tools, sizes)}, tools)
    print("\n\n".join((report.where(result), report.peers(result), report.alone(result))))
    if writes:
        report.PAGE.write_text(report.write(report.PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
    return 0


def new_run(cases: dict[str, Case], tools: Tools) -> Run:
    """Say when, where and of which commit the cases were measured."""
    git = shutil.which("git")
    assert git is not None, "git is not installed"
    command = [git, "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, cwd=report.ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return Run(datetime.now(UTC).date().isoformat(), commit, report.describe(tools.assets), cases)
