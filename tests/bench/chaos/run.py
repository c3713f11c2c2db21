"""One run: clusters, replicas, nodes, attackers and faults; then a quiet time, and the laws."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.chaos.attackers import Attackers
from bench.chaos.checker import Verdict, check
from bench.chaos.collector import Collector
from bench.chaos.faults import Injected, Injector, every, say
from bench.chaos.fleet import ClusterApi, Fleet
from bench.chaos.history import ConditionSeen, History
from bench.chaos.nodes import Nodes, Probes
from bench.chaos.replicas import Replicas, through
from bench.chaos.schedule import Kind, plan
from bench.environment import BenchEnvironment, start_environment
from bench.figures import Figure
from nodeattest_demo.world import CLUSTER, NAMESPACE, USER, Tools
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject

QUIET = 420.0
"""Seconds after the last fault for all to be right again: longer than the agent's longest back-off, 5 minutes."""
STALE = 90.0
"""Seconds that a condition may be late: it is derived once a minute and after changes."""
POLICIES = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies"


@dataclass(frozen=True)
class Plan:
    """What the command line says."""

    seconds: float
    seed: int
    nodes: int
    lease: int
    kinds: tuple[Kind, ...]
    lifetime: str = "6m"
    logs: Path | None = None

    @property
    def slot(self) -> float:
        """Seconds from one fault to the next."""
        return self.lease * 3.5 + 5

    @property
    def age(self) -> float:
        """Seconds that are lost when a control plane is set back: 5 minutes of 30."""
        return min(300.0, self.seconds / 6)


@dataclass(frozen=True)
class Result:
    """What a run found."""

    verdicts: list[Verdict]
    faults: list[Injected]
    figures: list[Figure]


def chaos(tools: Tools, options: Plan) -> Result:
    """Run it."""
    history = History()
    stop = threading.Event()
    with start_environment(tools, controller=False) as env, ExitStack() as stack:
        world = env.world
        if "etcd" not in world.management.pids:
            raise SystemExit(
                f"chaos: {world.version} as built here dies of custom resources; a management cluster needs them"
            )
        if options.logs is not None:
            stack.callback(_keep_logs, env.directory, options.logs)
        world.management.client().patch(f"{POLICIES}/{CLUSTER}", {"spec": {"certificateLifetime": options.lifetime}})
        replicas = Replicas(world, env.directory, tools, lease=options.lease)
        stack.callback(replicas.close)
        _lead_through(env, replicas)
        fleet = Fleet(world, stop)
        nodes = Nodes(env, fleet, history, beat=5.0)
        stack.callback(nodes.unmount)
        stack.callback(stop.set)
        collector = Collector(world, history)
        probes = Probes(env, fleet, history, gap=2.0)
        attackers = Attackers(env, fleet, history, gap=4.0)
        injector = Injector(env, replicas, nodes, fleet, collector, history, options.lease, options.age)
        _publish_cluster_info(env)
        collector.begin()
        replicas.begin()
        every(2.0, ClusterApi(fleet, lambda: list(nodes.kubelets)).reconcile, stop)
        attackers.begin()
        probes.begin()
        say("replicas, attackers and first nodes begin")
        nodes.add(1, options.nodes // 2)
        _await(lambda: len(nodes.kubelets) == options.nodes // 2, "the first nodes")
        began = time.monotonic()
        snapshots = every(options.age / 3, injector.snapshot, probes.last)
        later = threading.Thread(target=_add_later, args=(nodes, options, probes.last), daemon=True)
        later.start()
        injector.run(plan(options.seed, seconds=options.seconds, slot=options.slot, kinds=options.kinds), began)
        time.sleep(max(0.0, began + options.seconds - time.monotonic()))
        say("faults are over")
        probes.last.set()
        later.join()
        snapshots.join()
        ended = time.time()
        _settle(env, nodes, history, ended)
        stop.set()
        for part in (attackers, probes, nodes, collector):
            part.end()
        collector.read_audit_logs(replicas.replicas)
        figures = _figures(options, history, injector.done, (nodes, probes, attackers, replicas))
        return Result(check(history), injector.done, figures)


def _publish_cluster_info(env: BenchEnvironment) -> None:
    """Create what kubeadm creates last, so that automatic approval is known to be closed."""
    meta: JsonObject = {"name": "cluster-info", "namespace": "kube-public"}
    body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"kubeconfig": "{}"}}
    env.world.workload.client().create("/api/v1/namespaces/kube-public/configmaps", body)


def _lead_through(env: BenchEnvironment, replicas: Replicas) -> None:
    """Let the workload cluster's kubeconfig lead through the link."""
    workload = env.world.workload
    document = workload.client_kubeconfig(USER).read_text(encoding="utf-8")
    body: JsonObject = {"stringData": {"value": through(document, workload.server, replicas.workload)}}
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/{CLUSTER}-kubeconfig"
    env.world.management.client().patch(secret, body)


def _add_later(nodes: Nodes, options: Plan, last: threading.Event) -> None:
    """Let the other half of the machines join one by one, while faults happen."""
    rest = options.nodes - options.nodes // 2
    for number in range(rest):
        if last.wait(options.seconds / (rest + 1)):
            return
        nodes.add(1 + options.nodes // 2 + number, 1)


def _await(done: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what} were not there after {seconds:.0f} s"
        time.sleep(0.2)


def _settle(env: BenchEnvironment, nodes: Nodes, history: History, ended: float) -> None:
    """Wait until all is well, and note what is not when the time is over."""
    end = time.monotonic() + QUIET
    while True:
        for name in [
            one for one, truth in list(history.machines.items()) if truth.joins and not one.startswith("probe-")
        ]:
            renewed = any(at > ended and node == name for at, node in list(history.seen_at.values()))
            history.ends[name] = nodes.state(name, since=ended) or ("" if renewed else "it has not renewed since")
        history.conditions = _conditions(env, history)
        wrong = [name for name, said in history.ends.items() if said]
        untrue = [one for one in history.conditions if one.status not in one.expected]
        if not wrong and not untrue:
            return
        if time.monotonic() > end:
            say(f"not well after {QUIET:.0f} s: {wrong[:5]} {untrue[:5]}")
            return
        time.sleep(2.0)


def _conditions(env: BenchEnvironment, history: History) -> list[ConditionSeen]:
    client = env.world.management.client()
    base = f"/apis/{text(env.world.cluster, 'apiVersion')}/namespaces/{NAMESPACE}"
    true, never = frozenset({"True"}), frozenset({"False", "Unknown", ""})
    found = [
        _seen(client.get(f"{base}/clusters/{CLUSTER}"), f"Cluster {CLUSTER}", "SideDoorsClosed", true),
        _seen(client.get(f"{POLICIES}/{CLUSTER}"), f"policy {CLUSTER}", "Ready", true),
    ]
    nodes = {f"{CLUSTER}-{name}": truth for name, truth in history.machines.items()}
    for machine in client.list(f"{base}/machines"):
        truth = nodes.get(text(machine, "metadata", "name"))
        if truth is None:
            continue
        left = history.valid_until.get(truth.node, 0.0) - time.time()
        if abs(left) > STALE:  # one whose certificate ends about now may say either
            found.append(_seen(machine, f"Machine of {truth.node}", "NodeAttested", true if left > 0 else never))
    return found


def _seen(obj: JsonObject, subject: str, kind: str, expected: frozenset[str]) -> ConditionSeen:
    conditions = [*items(obj, "status", "conditions"), *items(obj, "status", "v1beta2", "conditions")]
    found = condition(conditions, kind)
    return ConditionSeen(subject, kind, str(found["status"]) if found else "", expected)


def _keep_logs(directory: Path, target: Path) -> None:
    patterns = ("replica-*/*.log", "nodes/*/var/lib/*/renewal.log", "management/*.log", "workload/*.log")
    for log in (found for pattern in patterns for found in directory.glob(pattern)):
        kept = target / "-".join(log.relative_to(directory).parts)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)


def _figures(
    options: Plan,
    history: History,
    faults: list[Injected],
    parts: tuple[Nodes, Probes, Attackers, Replicas],
) -> list[Figure]:
    nodes, probes, attackers, replicas = parts
    issued = Counter(node for _, node in history.seen_at.values())
    real = {name for name, truth in history.machines.items() if truth.joins and not name.startswith("probe-")}
    renewals = sum(count - 1 for name, count in issued.items() if name in real)
    waits = sorted(seconds for _, seconds in probes.joined)
    tried = ", ".join(f"{count} {what}" for what, count in attackers.outcomes.most_common())
    ends = sum(len(replica.ends) for replica in replicas.replicas)
    lost = {name: kubelet.diary.lost for name, kubelet in nodes.kubelets.items() if kubelet.diary.lost}
    told = "; ".join(f"{name} {said[0]}, {len(said)} times" for name, said in sorted(lost.items()))
    return [
        Figure(
            "faults injected", len(faults), "", "", f"{len({one.kind for one in faults})} kinds, seed {options.seed}"
        ),
        Figure("nodes that joined and live on", len(nodes.kubelets), f"of {len(real)}", "", "agent, TPM and kubelet"),
        Figure("nodes that were for a moment without a credential", len(lost), "", "", told),
        Figure("renewals", renewals, "", "", f"certificates of {options.lifetime}"),
        Figure("further joins", len(waits), "", "", f"median {_at(waits, 0.5):.2f} s, longest {_at(waits, 1):.0f} s"),
        Figure("joins that failed and were repeated", len(probes.failures), "", "", ""),
        Figure("certificates", len(history.seen_at), "", "", f"of {len(history.requests)} requests"),
        Figure("attacks", sum(attackers.outcomes.values()), "", "", tried),
        Figure("replicas that ended and were started again", ends, "", "", "killed, or without a Lease"),
        *pauses(history, faults),
    ]


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def pauses(history: History, faults: list[Injected]) -> list[Figure]:
    """For each kind of fault: the longest time without a new certificate, from its beginning to the next fault."""
    moments = sorted(at for at, _ in history.seen_at.values())
    longest = defaultdict[Kind, float](float)
    after = defaultdict[Kind, float](float)
    counted = Counter(one.kind for one in faults)
    for number, one in enumerate(faults):
        until = faults[number + 1].began if number + 1 < len(faults) else one.ended + 30.0
        inside = [one.began, *(at for at in moments if one.began < at < until), until]
        longest[one.kind] = max(longest[one.kind], *(b - a for a, b in pairwise(inside)))
        next_one = next((at for at in moments if at > one.ended), until)
        after[one.kind] = max(after[one.kind], next_one - one.ended)
    return [
        Figure(
            kind, longest[kind], "s", "", f"longest pause; {after[kind]:.1f} s after it ended; {counted[kind]} times"
        )
        for kind in Kind
        if kind in counted
    ]
