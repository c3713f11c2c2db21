"""The cases of the page: each starts what it needs, lets it settle, and gives samples of several rounds.

Every case says in its notes what it leaves out. All of them run on loopback, with nodes, controller and API servers on
the same cores.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import joins, tpm_keys
from bench.burst import Burst, count_requests, provision_in, run, server_of, settle, windows
from bench.environment import BenchEnvironment, start_environment
from bench.joiner import Kind, Node
from bench.page.samples import Case
from bench.page.webhook import admission_calls
from bench.processes import cpu_seconds, resident
from nodeattest_cli.demo.automatic_approval import leave_open
from nodeattest_cli.demo.fleet import new_token
from nodeattest_cli.demo.tools import Tools
from nodeattest_cli.demo.world import USER
from nodeattest_discovery.secret import DEFAULT_GROUP
from nodeattest_sandbox.control_plane import ControlPlane, start_real
from nodeattest_sandbox.fleet import create_bootstrap_token
from nodeattest_sandbox.kubernetes_binaries import controller_manager

MANAGER = "kube-controller-manager"
SIGNER = ("csrapproving", "csrsigning")
LIFTED = {"kube-api-qps": 5000, "kube-api-burst": 5000}
"""More than it can send."""
BURST = 40
"""Requests that use up the burst of its default limits (30)."""
PROCESSES = 2
QUIET = 1.0
"""Seconds for the last Events and watches of a round."""


@dataclass(frozen=True)
class Sizes:
    """How much a run measures."""

    rounds: int = 3
    joins: int = 170
    """Of one round."""
    limited: int = 60
    """Requests of a round with the in-tree signer's default limits: ten a second."""
    cold: int = 15
    calls: int = 200
    """Of the webhook, in a round."""
    at_once: int = 20
    settle: float = 20.0

    @property
    def fleet(self) -> int:
        return self.rounds * self.joins


def in_tree(tools: Tools, sizes: Sizes) -> list[Case]:
    """kube-controller-manager's approver and signer, with its default limits and without."""
    assets = tools.assets
    if assets is None or not (assets / MANAGER).exists():
        return []
    with (
        tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name,
        start_real(Path(name) / "plane", assets, name="in-tree") as plane,
    ):
        token = plane.await_token(_open_as_kubeadm_does(plane))
        settle(sizes.settle)
        lifted, limited = Case("in-tree lifted"), Case("in-tree default")
        with controller_manager(plane, assets, SIGNER, LIFTED) as process:
            _in_tree_round(
                plane, process.pid(), token, range(50), sizes
            )  # its informers are filled, connections are open
            for number in range(sizes.rounds):
                first = 1000 * (1 + number)
                numbers = range(first, first + sizes.joins)
                _add(lifted, _in_tree_round(plane, process.pid(), token, numbers, sizes))
            lifted.add(resident=resident(process.pid()))
        if sizes.limited:
            with controller_manager(plane, assets, SIGNER) as process:
                # In one go: a pause would let the limiter save up another burst.
                count = BURST + sizes.rounds * sizes.limited
                burst = _in_tree_round(plane, process.pid(), token, range(10_000, 10_000 + count), sizes)
                _add(limited, burst)
                limited.samples["rate"] = windows(burst.ends, sizes.limited)[-sizes.rounds :]
                limited.add(resident=resident(process.pid()))
    what = "one API server and etcd; the kubelet client certificate of whoever holds a bootstrap token"
    lifted.notes["excludes"] = f"proof of the machine, a management cluster, an inventory; {what}"
    limited.notes["excludes"] = (
        "the same; its client sends 20 requests a second at most (--kube-api-qps), after a burst of 30"
    )
    return [limited, lifted] if sizes.limited else [lifted]


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


def _in_tree_round(plane: ControlPlane, pid: int, token: str, numbers: range, sizes: Sizes) -> Burst:
    nodes = [Node(number, f"worker-{number}", "", token) for number in numbers]
    return run(
        Kind.IN_TREE,
        [server_of(plane)],
        nodes,
        controller_pids=[pid],
        server_pids=list(plane.pids.values()),
        processes=PROCESSES,
        at_once=sizes.at_once,
    )


def with_tpm(tools: Tools, sizes: Sizes) -> list[Case]:
    """This project, with proof by TPM: two requests a node, evidence that is verified, a ledger."""
    case = _rounds("tpm", Kind.TPM, tools, sizes)
    case.notes["excludes"] = "the TPM's own time (it is software), kubelet's registration, the making of the Machines"
    return [case]


def one_step(tools: Tools, sizes: Sizes) -> list[Case]:
    """This project, with a provider of one step."""
    case = _rounds("one-step", Kind.ONE_STEP, tools, sizes)
    case.notes["excludes"] = "any proof (provider insecure): what Machine, token, ledger and one request take"
    return [case]


def _rounds(name: str, kind: Kind, tools: Tools, sizes: Sizes) -> Case:
    case = Case(name)
    with start_environment(tools, provider=kind.value) as env:
        first, *fleet = provision_in(env.world, kind, range(1, 2 + sizes.fleet))
        _round(env, kind, [first], sizes)  # loads the provider, and the kinds of the infrastructure
        settle(sizes.settle)
        case.add(idle_server_cpu=_idle(env))
        recorded = env.recorder()
        done = 0
        for number in range(sizes.rounds):
            nodes = fleet[number * sizes.joins : (number + 1) * sizes.joins]
            burst = _round(env, kind, nodes, sizes)
            _add(case, burst)
            done += burst.joins
            case.add(resident=resident(env.controller_pid))
            time.sleep(QUIET)
        requests = count_requests(recorded(), user=USER, joins=max(1, done))
    case.add(
        node_requests=requests.node,
        controller_requests=requests.controller,
        controller_writes=requests.controller_writes,
    )
    case.notes["requests"] = requests.kinds
    return case


def _round(env: BenchEnvironment, kind: Kind, nodes: list[Node], sizes: Sizes) -> Burst:
    return run(
        kind,
        [server_of(env.world.workload)],
        nodes,
        controller_pids=[env.controller_pid],
        server_pids=env.server_pids,
        management_pids=env.management_pids,
        processes=min(PROCESSES, len(nodes)),
        at_once=sizes.at_once,
    )


def _idle(env: BenchEnvironment, seconds: float = 3.0) -> float:
    """Return how many per cent of a core API servers and etcds use while nothing is asked of them."""
    before = cpu_seconds(*env.server_pids)
    time.sleep(seconds)
    return 100 * (cpu_seconds(*env.server_pids) - before) / seconds


def _add(case: Case, burst: Burst) -> None:
    assert burst.joins, f"{case.name}: nobody joined: {burst.failures}"
    case.add(
        rate=burst.rate,
        latency=1000 * burst.latencies[len(burst.latencies) // 2],
        controller_cpu=burst.controller_cpu,
        server_cpu=burst.server_cpu,
        node_cpu=burst.node_cpu,
        failed=sum(burst.failures.values()),
    )
    if burst.management_cpu:  # the in-tree signer has no management cluster
        case.add(management_cpu=burst.management_cpu)
    for said in burst.failures:
        case.notes["failures"] = said


def alone(tools: Tools, sizes: Sizes) -> list[Case]:
    """One node after the other: a cold join, the warm credential, an interpreter that does nothing, in turns."""
    cold, persistent, warm, idle = Case("cold"), Case("cold persistent"), Case("warm"), Case("idle")
    with start_environment(tools) as env:
        first, *machines = joins.new_machines(env, 1 + 2 * sizes.cold)
        bare, keeping = machines[: sizes.cold], machines[sizes.cold :]
        for machine in bare:
            tpm_keys.forget(str(machine.attestor.settings["tcti"]))
        joins.cold_join(env, first)  # writes byte code; the controller looks up the kinds of the infrastructure
        call, environment = joins.warm_call(env, first)
        joins.taken_by(call, environment)
        settle(sizes.settle)
        for number, pair in enumerate(zip(bare, keeping, strict=True)):
            # The controller may still be at the end of the first join when the second begins: each is first in turn.
            joining = list(zip((cold, persistent), pair, strict=True))[:: -1 if number % 2 else 1]
            for case, taken in (
                *((case, joins.cold_join(env, machine)) for case, machine in joining),
                *((warm, joins.taken_by(call, environment)) for _ in range(3)),
                *((idle, joins.taken_by(joins.IDLE, environment)) for _ in range(3)),
            ):
                case.add(wall=1000 * taken.wall, cpu=1000 * taken.cpu)
    cold.notes["excludes"] = "the boot, kubelet; the TPM is swtpm on the same machine, and keeps no key: both are made"
    persistent.notes["excludes"] = "the same; the TPM keeps its EK, the agent makes the AK at each join"
    warm.notes["excludes"] = "kubelet's own part of the call"
    return [cold, persistent, warm, idle]


def webhook(tools: Tools, sizes: Sizes) -> list[Case]:
    """The admission webhook: KubeadmConfigs that are rendered, one call after the other on one connection."""
    case = Case("webhook")
    with start_environment(tools, controller=False) as env, admission_calls(env) as calls:
        calls.make(10)
        settle(sizes.settle)
        for _ in range(sizes.rounds):
            walls, cpu = calls.make(sizes.calls)
            case.add(wall=1000 * sorted(walls)[len(walls) // 2], cpu=1000 * cpu / sizes.calls)
    case.notes["excludes"] = "the API server's own part; its connection stays open"
    return [case]


CASES: dict[str, Callable[[Tools, Sizes], list[Case]]] = {
    "in-tree": in_tree,
    "tpm": with_tpm,
    "one-step": one_step,
    "alone": alone,
    "webhook": webhook,
}
