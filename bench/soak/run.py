"""The soak: joins, minutes of renewals, a controller killed and an API server frozen meanwhile, and a verdict."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from bench.environment import BenchEnvironment, start_environment
from bench.figures import Figure, table
from bench.joins import installed
from bench.processes import TICKS
from bench.soak.audit import audit
from bench.soak.kubelet import Diary, Kubelet
from bench.soak.supervisor import Life, Supervisor
from nodeattest_authenticator.state.lock import exclusive
from nodeattest_authenticator.state.storage import Storage
from nodeattest_cli.demo.children import Children
from nodeattest_cli.demo.fleet import join, node_kubeconfig, provision
from nodeattest_cli.demo.machine_spec import MachineSpec
from nodeattest_cli.demo.platforms.tpm import TpmDemoPlatform
from nodeattest_cli.demo.tools import Tools
from nodeattest_cli.demo.world import CLUSTER, NAMESPACE
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_kube.jsontypes import JsonObject

AT_ONCE = 4
"""Machines set up at a time."""
QUIET = 90.0
"""Seconds for renewals that were begun to end; the agent gives up after 60."""
OWN = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


@dataclass(frozen=True)
class Plan:
    nodes: int
    seconds: float
    lifetime: str
    """As the policy writes it."""
    beat: float
    """Seconds between two requests of a node."""
    logs: Path | None = None
    """Where the logs of controllers and renewals are kept."""

    @property
    def frozen(self) -> float:
        """Seconds for which the API server answers nobody."""
        return min(8.0, self.seconds / 10)


def soak(tools: Tools, plan: Plan) -> tuple[list[Figure], list[str]]:
    """Run the plan; returns figures, and what went otherwise than it must."""
    with start_environment(tools) as env:
        policies = f"{OWN}/nodeattestationpolicies/{CLUSTER}"
        env.world.management.client().patch(policies, {"spec": {"certificateLifetime": plan.lifetime}})
        stop = threading.Event()
        fleet, supervisor = Fleet(env, plan, stop), Supervisor(env)
        try:
            supervisor.begin()
            fleet.set_up()
            supervisor.mark()
            _say(f"{plan.nodes} nodes joined; {plan.seconds:.0f} s of renewals begin")
            busy = _disturb(env, plan, supervisor)
        finally:
            supervisor.end()
            fleet.end()
            if plan.logs is not None:
                _keep_logs(env.directory, plan.logs)
        found = audit(_csrs(env), env.world.management.client().list(f"{OWN}/machineattestations"))
        diaries = {kubelet.name: kubelet.diary for kubelet in fleet.kubelets}
        problems = [f"{name} was lost at {lost}" for name, diary in diaries.items() for lost in diary.lost]
        problems += found.violations
        problems += [f"{name} never renewed" for name, diary in diaries.items() if _never_renewed(diary, plan)]
        if problems:
            said = Counter(diary.last_words for diary in diaries.values() if diary.failed_calls)
            problems = [f"{count} plugins said last: {words}" for words, count in said.most_common(3)] + problems
        extra = Figure("keys certified", found.keys, "", "", f"{found.published} requests hold a certificate")
        return [*_figures(env, plan, list(diaries.values()), supervisor.lives), busy, extra], problems


class Fleet:
    """The machines, each with its TPM and its kubelet's thread."""

    def __init__(self, env: BenchEnvironment, plan: Plan, stop: threading.Event) -> None:
        self.kubelets: list[Kubelet] = []
        self._children = Children(installed(env.directory))
        env.stack.callback(self._children.close)
        self._env, self._plan, self._stop = env, plan, stop
        self._threads: list[threading.Thread] = []

    def set_up(self) -> None:
        """Make the TPMs, then let every machine join; its kubelet runs from then on."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            platform = TpmDemoPlatform(self._env.directory, self._env.stack)
            made = list(pool.map(platform.create_machine, range(self._plan.nodes)))
            _say(f"{len(made)} software TPMs run")
            for kubelet in pool.map(self._join, range(self._plan.nodes), made):
                thread = threading.Thread(target=kubelet.run, args=(self._stop,), name=kubelet.name, daemon=True)
                thread.start()
                self.kubelets.append(kubelet)
                self._threads.append(thread)

    def _join(self, number: int, made: MachineSpec) -> Kubelet:
        env = self._env
        machine = provision(env.world, number, made)
        root = env.directory / "nodes" / machine.identity.node
        env.world.workload.await_token(machine.token)
        join(env.world, self._children, env.tools.agent, root, machine)
        cache = root / "var/lib/kubelet-authenticator"
        return Kubelet(machine.identity.node, node_kubeconfig(root), cache, self._children, beat=self._plan.beat)

    def end(self) -> None:
        """Let every kubelet end, and every renewal that was begun."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        deadline = Deadline.after(Clock(), QUIET)
        for kubelet in self.kubelets:
            with Storage(str(kubelet.cache)) as storage, exclusive(storage, deadline):
                pass


def _disturb(env: BenchEnvironment, plan: Plan, supervisor: Supervisor) -> Figure:
    """Halfway kill the controller, at three quarters freeze the API server; returns how busy the machine was."""
    begun, before = time.monotonic(), _busy()
    _sleep_until(begun + plan.seconds / 2)
    supervisor.kill()
    _say("controller killed")
    _sleep_until(begun + plan.seconds * 3 / 4)
    env.world.workload.freeze()
    try:
        time.sleep(plan.frozen)
    finally:
        env.world.workload.resume()
    _say(f"the API server was frozen for {plan.frozen:.0f} s")
    _sleep_until(begun + plan.seconds)
    cores = os.cpu_count() or 1
    share = 100 * (_busy() - before) / plan.seconds / cores
    return Figure("processors busy", share, "%", "", f"of {cores}, by whomever")


def _figures(env: BenchEnvironment, plan: Plan, diaries: list[Diary], lives: list[Life]) -> list[Figure]:
    lost = sum(bool(diary.lost) for diary in diaries)
    renewals = sorted(seconds for diary in diaries for seconds in diary.renewals)
    cuts = quantiles(renewals, n=100) if len(renewals) > 1 else [0.0] * 99
    changed = sum(len(diary.certificates) - 1 for diary in diaries)
    failed = sum(diary.failed_calls for diary in diaries)
    calls = sum(diary.calls for diary in diaries)
    beats, silent = sum(diary.beats for diary in diaries), sum(diary.silent for diary in diaries)
    refused = sum(_refusals(env.directory / "nodes"))
    used = sum(life.cpu - life.began for life in lives)
    resident = ", ".join(f"{life.first:.0f} to {life.resident:.0f}" for life in lives)
    shape = f"certificates of {plan.lifetime}, {plan.seconds:.0f} s, on {env.world.version}"
    return [
        Figure("nodes lost", lost, f"of {len(diaries)}", "0", shape),
        Figure("certificates renewed", changed, "", "", f"{failed} of {calls} plugin calls failed"),
        Figure("renewals that failed and were repeated", refused, "", "", "by the agents' logs"),
        Figure("a renewal, median", cuts[49], "s", "", "from the call that begins it to the stored certificate"),
        Figure("a renewal, 99th percentile", cuts[98], "s", "", f"longest {max(renewals, default=0):.1f} s"),
        Figure("requests by nodes", beats, "", "", f"{silent} without an answer, while the server was frozen"),
        Figure("controller CPU", 100 * used / plan.seconds, "%", "", "of one core"),
        Figure("controllers, one after the other", len(lives), "", "", "one was killed; others lost their Lease"),
        Figure("controller memory", lives[-1].resident, "MiB", "", f"from first to last look: {resident}"),
    ]


def _keep_logs(directory: Path, target: Path) -> None:
    for log in (*directory.glob("controller*/*.log"), *directory.glob("nodes/*/var/lib/*/renewal.log")):
        kept = target / "-".join(log.relative_to(directory).parts)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)


def _never_renewed(diary: Diary, plan: Plan) -> bool:
    return plan.seconds >= 240 and len(diary.certificates) < 2


def _refusals(nodes: Path) -> list[int]:
    logs = nodes.glob("*/var/lib/kubelet-authenticator/renewal.log")
    return [log.read_text(errors="replace").count("the renewal failed") for log in logs]


def _csrs(env: BenchEnvironment) -> list[JsonObject]:
    return env.world.workload.client(timeout=120.0).list(CSRS)


def _busy() -> float:
    """Sum what all processors did but idle and wait (proc(5), /proc/stat)."""
    words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    ticks = [int(word) for word in words]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def show(figures: list[Figure], problems: list[str]) -> str:
    """Write figures and verdict."""
    told = [*problems[:20], *([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])]
    return "\n".join([table(figures), "", *(told or ["no node was lost, no key certified twice"])])
