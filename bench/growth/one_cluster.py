"""Thousands of nodes in one cluster, on real API servers: the cost of a join as the cluster grows, and restarts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

from bench.burst import PROVISIONERS, Burst, Joiners, count_requests, provision_in, run, say, server_of, settle
from bench.controllers import RunningController, launch, start_controller
from bench.environment import BenchEnvironment, start_environment
from bench.growth.sizes import Sizes
from bench.joiner import Kind, Node
from bench.page.samples import Case
from bench.persistent_client import PersistentClient
from bench.processes import resident
from nodeattest_cli.demo.tools import Tools
from nodeattest_cli.demo.world import NAMESPACE, USER
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import map_at, text_at

LEDGERS = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/machineattestations"
SETTLE = 10.0
FIRST_OF_BURSTS = 8
"""Lower numbers are of nodes that join alone."""
OWNED_BY_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


def bursts(nodes: int) -> list[tuple[str, range]]:
    """Return few nodes and many, by name; the numbers of each are its own."""
    few = max(1, nodes // 10)
    many = FIRST_OF_BURSTS + few
    return [(f"{few} nodes", range(FIRST_OF_BURSTS, many)), (f"{nodes} nodes", range(many, many + nodes))]


def measure(tools: Tools, sizes: Sizes) -> list[Case]:
    with start_environment(tools, controller=False) as env:
        controller, spare = _begun(env, sizes)
        grown = [_grown(env, controller, name, numbers, sizes) for name, numbers in bursts(sizes.nodes)]
        restarts = Case("restarts")
        controller.kill()
        controller = _restarted(env, restarts, spare[0], sizes, what="after_restart")
        _server_restarted(env, restarts, spare[1], sizes)
        controller.stop()
        restarts.add(ledgers=_fill_ledgers(env, sizes.ledgers))
        controller = _restarted(env, restarts, spare[2], sizes, what="cold_start")
        settle(SETTLE)
        restarts.add(cold_resident=resident(controller.pid))
    control = _control(tools, sizes)
    _ledgers_alone(tools, sizes, restarts)
    return [*grown, control, restarts]


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
        return _grown(env, controller, f"{name} again", numbers, sizes)


def _ledgers_alone(tools: Tools, sizes: Sizes, case: Case) -> None:
    """Start a controller with as many ledgers in a cluster of hardly any machines."""
    with start_environment(tools, controller=False) as env:
        controller, spare = _begun(env, sizes)
        controller.stop()
        _fill_ledgers(env, sizes.ledgers)
        _restarted(env, case, spare[0], sizes, what="ledgers_alone")


def _grown(env: BenchEnvironment, controller: RunningController, name: str, numbers: range, sizes: Sizes) -> Case:
    """Add nodes, which join at once."""
    count = len(numbers)
    case = Case(f"one cluster, {name}")
    nodes = provision_in(env.world, Kind.TPM, numbers)
    say(f"{count} Machines and tokens are made")
    settle(SETTLE)
    recorded = env.recorder()
    add(case, _join(env, controller, nodes, sizes))
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


def add(case: Case, burst: Burst) -> None:
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


def one_node(env: BenchEnvironment, node: Node, sizes: Sizes) -> Joiners:
    """Make a node ready to join."""
    servers = [server_of(env.world.workload)]
    return Joiners(Kind.TPM, servers, [node], processes=1, at_once=1, seconds=sizes.seconds)


def _restarted(env: BenchEnvironment, case: Case, node: Node, sizes: Sizes, *, what: str) -> RunningController:
    """Start a controller, while a node waits for it already."""
    joiner = one_node(env, node, sizes)
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


def _server_restarted(env: BenchEnvironment, case: Case, node: Node, sizes: Sizes) -> None:
    """Restart the workload cluster's API server and etcd; a node asks once it answers."""
    joiner = one_node(env, node, sizes)
    env.world.workload.restart()
    answered = time.monotonic()
    joiner.go()
    outcome = joiner.outcome()
    assert outcome.joins, f"nobody joined after the API server's restart: {outcome.failures}"
    case.add(after_server_restart_join=outcome.joins[0][1] - answered)
    say(f"first join {outcome.joins[0][1] - answered:.1f} s after the API server answered again")


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
    """Make the ledger of a machine that is none of the run's, with another node and provider ID."""
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
