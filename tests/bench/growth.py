"""``python -m bench growth``: thousands of nodes in one cluster, the cost of a join as it grows, and a cold start.

API servers are real, TPMs are software; everything is on loopback and on the same cores. ``--from-last`` measures
nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median

from bench.burst import PROVISIONERS, Burst, Joiners, count_requests, provision_in, run, say, server_of, settle
from bench.controllers import RunningController, launch, start_controller
from bench.environment import BenchEnvironment, start_environment
from bench.joiner import Kind, Node
from bench.page.command import PAGE, ROOT, commit_of
from bench.page.goals import Goal
from bench.page.machine import describe
from bench.page.numbers import TIMES, number, replaced, spread, wrapped
from bench.page.report import goals, where
from bench.page.samples import Case, Run
from bench.persistent_client import PersistentClient
from bench.processes import resident
from nodeattest_demo.world import NAMESPACE, USER, Tools
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import map_at, text_at
from tools.markdown_tables import table

LAST = ROOT / "tests" / "bench" / "last_growth.json"
LEDGERS = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/machineattestations"
SETTLE = 10.0
FIRST_OF_BURSTS = 8
"""Lower numbers are of nodes that join alone."""
OWNED_BY_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a run measures."""

    nodes: int = 5_000
    """A tenth as many join before, and again after them."""
    ledgers: int = 10_000
    """MachineAttestations of a cold start."""
    at_once: int = 500
    """Nodes that are on their way at the same time."""
    joiners: int = 4
    """Processes of nodes."""
    seconds: int = 600
    """The longest that a node tries."""


def main(arguments: list[str], tools: Tools) -> int:
    """Measure, or read the last run, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench growth", description=__doc__)
    parser.add_argument("--from-last", action="store_true", help="measure nothing")
    parser.add_argument("--no-write", action="store_true", help="show, and leave files alone")
    for name in Sizes.__dataclass_fields__:
        default = getattr(Sizes(), name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help="(%(default)s)")
    options = parser.parse_args(arguments)
    sizes = replace(Sizes(), **{name: vars(options)[name] for name in Sizes.__dataclass_fields__})
    run = Run.read(LAST) if options.from_last else _measured(tools, sizes)
    if not options.no_write:
        run.write(LAST)
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "growth", write(run)), encoding="utf-8")
    print(write(run))
    return 0


def _measured(tools: Tools, sizes: Sizes) -> Run:
    setting = Case("setting", notes={"said": f"{sizes.at_once} nodes are on their way at the same time."})
    cases = {case.name: case for case in (setting, *measure(tools, sizes))}
    return Run(datetime.now(UTC).date().isoformat(), commit_of(ROOT), describe(tools.assets), cases)


def bursts(nodes: int) -> list[tuple[str, range]]:
    """Return few nodes and many, by name; the numbers of each are its own."""
    few = max(1, nodes // 10)
    many = FIRST_OF_BURSTS + few
    return [(f"{few} nodes", range(FIRST_OF_BURSTS, many)), (f"{nodes} nodes", range(many, many + nodes))]


def measure(tools: Tools, sizes: Sizes) -> list[Case]:
    with start_environment(tools, controller=False) as env:
        controller, spare = _begun(env, sizes)
        grown = [_burst(env, controller, name, numbers, sizes) for name, numbers in bursts(sizes.nodes)]
        restarts = Case("restarts")
        controller.kill()
        controller = _restarted(env, restarts, spare[0], sizes, what="after_restart")
        controller.stop()
        restarts.add(ledgers=_fill_ledgers(env, sizes.ledgers))
        controller = _restarted(env, restarts, spare[1], sizes, what="cold_start")
        settle(SETTLE)
        restarts.add(cold_resident=resident(controller.pid))
    return [*grown, _control(tools, sizes), restarts]


def _begun(env: BenchEnvironment, sizes: Sizes) -> tuple[RunningController, Sequence[Node]]:
    """Start a controller, let one node join, and return others that may."""
    controller = start_controller(env.world, env.directory / "controller-1", env.tools)
    env.stack.callback(controller.stop)
    first, *spare = provision_in(env.world, Kind.TPM, range(1, FIRST_OF_BURSTS))
    _join(env, controller, [first], sizes)
    return controller, spare


def _control(tools: Tools, sizes: Sizes) -> Case:
    """Let few nodes join a new cluster, as before the many: the machine's speed drifts meanwhile."""
    [name, numbers], _many = bursts(sizes.nodes)
    with start_environment(tools, controller=False) as env:
        controller, _spare = _begun(env, sizes)
        return _burst(env, controller, f"{name} again", numbers, sizes)


def _burst(env: BenchEnvironment, controller: RunningController, name: str, numbers: range, sizes: Sizes) -> Case:
    """Add nodes, which join at once."""
    count = len(numbers)
    case = Case(f"one cluster, {name}")
    nodes = provision_in(env.world, Kind.TPM, numbers)
    say(f"{count} Machines and tokens are made")
    settle(SETTLE)
    recorded = env.recorder()
    _add(case, _join(env, controller, nodes, sizes))
    settle(SETTLE)
    requests = count_requests(recorded(), user=USER, joins=count)
    case.add(
        controller_requests=requests.controller,
        controller_writes=requests.controller_writes,
        node_requests=requests.node,
        resident=resident(controller.pid),
        peak=resident(controller.pid, "VmHWM"),
    )
    case.notes["requests"] = requests.kinds
    say(f"{case.name}: {case.samples['rate'][0]:.1f}/s")
    return case


def _add(case: Case, burst: Burst) -> None:
    """Note what a burst took."""
    case.add(
        joins=burst.joins,
        rate=burst.rate,
        latency=1000 * burst.latencies[len(burst.latencies) // 2] if burst.latencies else 0,
        controller_cpu=burst.controller_cpu,
        server_cpu=burst.server_cpu,
        management_cpu=burst.management_cpu,
        node_cpu=burst.node_cpu,
        failed=sum(burst.failures.values()),
    )
    for said in burst.failures:
        case.notes["failures"] = said


def _join(env: BenchEnvironment, controller: RunningController, nodes: Sequence[Node], sizes: Sizes) -> Burst:
    return run(
        Kind.TPM,
        [server_of(env.world.workload)],
        nodes,
        controller_pids=[controller.pid],
        server_pids=env.server_pids,
        management_pids=env.management_pids,
        processes=min(sizes.joiners, len(nodes)),
        at_once=sizes.at_once,
        seconds=sizes.seconds,
    )


def _one_node(env: BenchEnvironment, node: Node, sizes: Sizes) -> Joiners:
    """Make a node ready to join."""
    servers = [server_of(env.world.workload)]
    return Joiners(Kind.TPM, servers, [node], processes=1, at_once=1, seconds=sizes.seconds)


def _restarted(env: BenchEnvironment, case: Case, node: Node, sizes: Sizes, *, what: str) -> RunningController:
    """Start a controller, while a node waits for it already."""
    joiner = _one_node(env, node, sizes)
    controller = launch(env.world, env.directory / f"controller-{what}", env.tools)
    env.stack.callback(controller.stop)
    joiner.go()
    serves = controller.await_serving()
    outcome = joiner.outcome()
    assert outcome.joins, f"nobody joined after a start: {outcome.failures}"
    joined = outcome.joins[0][1] - controller.began
    case.add(**{f"{what}_serves": min(serves, joined), f"{what}_join": joined})  # the metric lags by seconds
    say(f"{what}: serves after {min(serves, joined):.1f} s, a node after {joined:.1f} s")
    return controller


def _fill_ledgers(env: BenchEnvironment, wanted: int) -> int:
    """Copy ledgers under other names until there are so many; return how many there are."""
    client = PersistentClient.from_kubeconfig(env.world.management.admin_kubeconfig)
    present = client.list(LEDGERS)
    sample, missing = present[0], wanted - len(present)

    def copy(number: int) -> None:
        client.create(LEDGERS, _copy(sample, number))

    with ThreadPoolExecutor(PROVISIONERS) as pool:
        list(pool.map(copy, range(max(0, missing))))
    say(f"{max(wanted, len(present))} MachineAttestations")
    return max(wanted, len(present))


def _copy(sample: JsonObject, number: int) -> JsonObject:
    """Make the ledger of a machine outside this run, with a node and provider ID of its own."""
    made = deepcopy(sample)
    metadata, spec = map_at(made, "metadata"), map_at(made, "spec")
    for key in OWNED_BY_SERVER:
        metadata.pop(key, None)
    metadata["name"] = f"{text_at(metadata, 'name')[:200]}-{number}"
    metadata.pop("ownerReferences", None)
    for key in ("nodeName", "providerID"):
        if key in spec:
            spec[key] = f"{spec[key]}-copy-{number}"
    return made


ROWS = (
    ("joins", "joins", ""),
    ("joins that failed", "failed", ""),
    ("joins a second", "rate", ""),
    ("a join takes, median", "latency", "ms"),
    ("CPU of the controller, a join", "controller_cpu", "ms"),
    ("CPU of API servers and etcds, a join", "server_cpu", "ms"),
    ("of this, the management cluster's", "management_cpu", "ms"),
    ("CPU of the nodes, a join", "node_cpu", "ms"),
    ("requests of the controller, a join", "controller_requests", ""),
    ("requests of the node, a join", "node_requests", ""),
    ("memory of the controller after (RSS)", "resident", "MiB"),
    ("the most that it had", "peak", "MiB"),
)
RESTARTS = (
    ("after_restart_serves", "a killed controller serves the cluster again after"),
    ("after_restart_join", "… and a node that waits has its certificate after"),
    ("cold_start_serves", "a controller that starts with all Machines, tokens, CSRs and ledgers serves after"),
    ("cold_start_join", "… and a node that waits has its certificate after"),
)


def _growth(key: str) -> Callable[[Run], float | None]:
    """Return how a sample of many nodes compares with the median of the few before and after them."""

    def ratio(run: Run) -> float | None:
        found = _singles(run)
        many = found[MANY].median(key) if len(found) > MANY else None
        few = [value for case in found[::2] if (value := case.median(key))]
        return many / median(few) if many is not None and few else None

    return ratio


def _memory(run: Run) -> float | None:
    found = _singles(run)
    return found[MANY].median("resident") if len(found) > MANY else None


MANY = 1
"""Which burst is the large one."""
GOALS: Sequence[Goal] = (
    Goal("CPU of the controller a join, many nodes / few", TIMES, 1.2, _growth("controller_cpu")),
    Goal("CPU of API servers and etcds a join, many nodes / few", TIMES, 1.2, _growth("server_cpu")),
    Goal("memory of the controller of one large cluster", "MiB", 150, _memory),
    Goal("cold start until it serves", "s", 10, lambda run: run.median("restarts", "cold_start_serves")),
)


def _singles(run: Run) -> list[Case]:
    """Return the bursts: few nodes, many, and few again in another cluster, which older runs have not."""
    return [case for name, case in run.cases.items() if name.startswith("one cluster, ")]


def _control_note(run: Run) -> str:
    """Explain the last burst; empty for a run without one."""
    if len(_singles(run)) <= MANY + 1:
        return ""
    title = _singles(run)[-1].name.removeprefix("one cluster, ")
    return (
        f"The {title} join a cluster of their own after the large one: the machine's speed drifts during the run, so "
        "the goals divide the cost of many by the median of both small bursts."
    )


def write(run: Run) -> str:
    """Write the page's section."""
    found = _singles(run)
    rows = [
        (title, *(spread(case.samples.get(key), unit) for case in found))
        for title, key, unit in ROWS
        if any(key in case.samples for case in found)
    ]
    moments = [(title, f"{number(value)} s") for key, title in RESTARTS if (value := run.median("restarts", key))]
    ledgers = run.median("restarts", "ledgers")
    setting = run.cases["setting"].notes.get("said", "") if "setting" in run.cases else ""
    parts = [
        "\n".join(wrapped(f"{where(run)} {setting}")),
        table(["", *(case.name.removeprefix("one cluster, ") for case in found)], rows),
        "\n".join(wrapped(_control_note(run))),
        table(["", "seconds"], moments) if moments else "",
        f"All ledgers: {ledgers:.0f} MachineAttestations." if ledgers else "",
        goals(run, GOALS),
    ]
    return "\n\n".join(part for part in parts if part)
