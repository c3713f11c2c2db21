"""``python -m bench chaos``: a seeded schedule of faults beside joins and attacks, then a quiet time, and the laws."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from random import Random

from bench.burst import BenchEnvironment, say, start_environment
from bench.chaos_laws import History, Verdict, Write, check, ledger_seen
from bench.chaos_nodes import Crowd
from bench.chaos_servers import UNREACHABLE, Link, Mode, Replica, revive, start_replicas
from nodeattest_demo.world import NAMESPACE, USER, Tools, World
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.control_plane import ControlPlane

LEASE = "/apis/coordination.k8s.io/v1/namespaces/nodeattest-system/leases/node-attestation-controller"
QUIET = 420.0
"""Seconds after the last fault for all to be right again: longer than the agent's longest back-off, 5 minutes."""


class Kind(StrEnum):
    """What goes wrong; a value that begins with a Mode is one of a link."""

    KILL_REPLICA = "replica killed (SIGKILL)"
    STOP_REPLICA = "replica stopped longer than its Lease (SIGSTOP)"
    DROP_MANAGEMENT = f"{Mode.DROP}: replica and management cluster"
    HANG_MANAGEMENT = f"{Mode.HANG}: replica and management cluster"
    RESET_MANAGEMENT = f"{Mode.RESET}: replica and management cluster"
    ANSWERS_MANAGEMENT = f"{Mode.ANSWERS}: replica and management cluster"
    DROP_WORKLOAD = f"{Mode.DROP}: workload cluster"
    HANG_WORKLOAD = f"{Mode.HANG}: workload cluster"
    RESET_WORKLOAD = f"{Mode.RESET}: workload cluster"
    ANSWERS_WORKLOAD = f"{Mode.ANSWERS}: workload cluster"
    KILL_MANAGEMENT = "management API server killed (SIGKILL)"
    KILL_WORKLOAD = "workload API server killed (SIGKILL)"
    ETCD_MANAGEMENT = "management etcd killed (SIGKILL)"
    ETCD_WORKLOAD = "workload etcd killed (SIGKILL)"


def plan(seed: int, faults: int, kinds: tuple[Kind, ...] = tuple(Kind)) -> list[Kind]:
    """Order faults: every kind once, in a drawn order, before any comes again."""
    random, found = Random(seed), list[Kind]()
    while len(found) < faults:
        found += random.sample(kinds, len(kinds))
    return found[:faults]


@dataclass
class Injector:
    """Holds everything that can be broken."""

    env: BenchEnvironment
    replicas: list[Replica]
    workload: Link
    lease: int
    faults: list[tuple[Kind, float, float]] = field(default_factory=list[tuple[Kind, float, float]])
    """Each with its beginning and end, Unix time."""

    def inject(self, kind: Kind, *, on_leader: bool) -> None:
        world, leader = self.env.world, self._leader()
        replica = leader if on_leader else next(one for one in self.replicas if one is not leader)
        plane = world.management if "MANAGEMENT" in kind.name else world.workload
        began = time.time()
        say(f"{kind}: {replica.name}")
        match kind.name.partition("_")[0]:
            case "ETCD":
                self._kill(plane, "etcd")
            case "KILL" if kind is not Kind.KILL_REPLICA:
                self._kill(plane, "kube-apiserver")
            case "KILL":
                replica.send(signal.SIGKILL)
            case "STOP":
                replica.send(signal.SIGSTOP)
                time.sleep(self.lease * 1.7)
                replica.send(signal.SIGCONT)
            case _:
                link = replica.management if plane is world.management else self.workload
                link.set(Mode(kind.partition(":")[0]))
                time.sleep(self.lease * 1.7)
                link.set(Mode.OPEN)
        self.faults.append((kind, began, time.time()))

    def _leader(self) -> Replica:
        holder = ""
        with suppress(*UNREACHABLE):
            holder = text(self.env.world.management.client(timeout=5.0).get(LEASE), "spec", "holderIdentity")
        return next((one for one in self.replicas if one.leads(holder)), self.replicas[0])

    def _kill(self, plane: ControlPlane, part: str) -> None:
        os.kill(plane.pids[part], signal.SIGKILL)
        time.sleep(self.lease / 3)
        revive(plane, part)


LEDGERS = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/machineattestations"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
WINDOW = 2
"""Seconds of one watch."""


class Collector:
    """Lists and watches requests and ledgers until ``end``."""

    def __init__(self, world: World, history: History) -> None:
        self._world, self._history = world, history
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._follow, args=(world.workload, CSRS, self._add_request), daemon=True),
            threading.Thread(target=self._follow, args=(world.management, LEDGERS, self._add_ledger), daemon=True),
        ]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self, replicas: list[Replica]) -> None:
        """Read everything once more, and what only the end shows: the last ledgers, and writes in the audit log."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for csr in self._world.workload.client().list(CSRS):
            self._add_request(csr)
        self._history.final_ledgers = [ledger_seen(obj) for obj in self._world.management.client().list(LEDGERS)]
        self._history.ledgers |= {*self._history.final_ledgers}
        names = {replica.address: replica.name for replica in replicas}
        for entry in self._world.management.requests():
            what = {"leases": "lease", "machineattestations": "ledger"}.get(entry.resource)
            is_write = entry.verb in {"create", "update", "patch"} and entry.code in range(200, 300)
            if what and is_write and entry.user == USER and entry.source in names:
                moments = (datetime.fromisoformat(each).timestamp() for each in (entry.received, entry.completed))
                self._history.writes.append(Write(names[entry.source], what, *moments))

    def _follow(self, plane: ControlPlane, path: str, add: Callable[[JsonObject], None]) -> None:
        version = ""
        while not self._stop.is_set():
            try:
                client = plane.client(timeout=WINDOW + 10.0)
                if not version:
                    version = text(client.get(path), "metadata", "resourceVersion")
                    for obj in client.list(path):
                        add(obj)
                for event in client.watch(path, WINDOW, resourceVersion=version):
                    if text(event, "type") == "ERROR":
                        version = ""
                        break
                    add(mapping(event, "object"))
                    version = text(event, "object", "metadata", "resourceVersion")
            except UNREACHABLE:
                version = ""
                self._stop.wait(1.0)

    def _add_request(self, csr: JsonObject) -> None:
        with self._lock:
            self._history.add_request(csr, time.time())

    def _add_ledger(self, obj: JsonObject) -> None:
        with self._lock:
            self._history.ledgers.add(ledger_seen(obj))


def main(arguments: list[str], tools: Tools) -> int:
    """Run it; the exit status is 1 if a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m bench chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draws order and targets of the faults (%(default)s)")
    parser.add_argument("--lease", type=int, default=6, help="leaseDuration in seconds (%(default)s)")
    parser.add_argument("--only", action="append", choices=[kind.name for kind in Kind], help="these faults only")
    options = parser.parse_args(arguments)
    if tools.assets is None:
        parser.error("set KUBEBUILDER_ASSETS: API servers and etcd that can be killed are real ones")
    slot, seconds = options.lease * 3.5 + 5, options.minutes * 60
    kinds = tuple(Kind[name] for name in options.only) if options.only else tuple(Kind)
    history, stop = History(), threading.Event()
    with start_environment(tools, controller=False) as env, ExitStack() as stack:
        replicas, workload = start_replicas(env.world, env.directory, tools, options.lease)
        for replica in replicas:
            stack.callback(replica.close)
        crowd, collector = Crowd(env.world, history, stop), Collector(env.world, history)
        stack.callback(stop.set)
        injector = Injector(env, replicas, workload, options.lease)
        collector.begin()
        crowd.begin()
        random, began = Random(options.seed), time.monotonic()
        for number, kind in enumerate(plan(options.seed, int(seconds / slot), kinds)):
            time.sleep(max(0.0, began + slot * (number + 0.5) - time.monotonic()))
            injector.inject(kind, on_leader=random.random() < 0.75)
        say("faults are over")
        crowd.last.set()
        end = time.monotonic() + QUIET
        while any([*history.ends.values()]) and time.monotonic() < end:
            time.sleep(1.0)
        crowd.end()
        collector.end(replicas)
        verdicts = check(history)
        print(show(history, injector.faults, crowd, verdicts))
        return 1 if any(verdict.violations for verdict in verdicts) else 0


def show(history: History, faults: list[tuple[Kind, float, float]], crowd: Crowd, verdicts: list[Verdict]) -> str:
    """Write what happened, the longest pause of issuing by kind of fault, and verdicts."""
    waits = sorted(crowd.joined)
    lines = [
        f"{len(waits)} joins: median {waits[len(waits) // 2]:.2f} s, longest {waits[-1]:.0f} s",
        f"{len(crowd.failures)} joins failed and were repeated; {crowd.attacks} attacks",
        f"{len(history.requests)} requests; {len(history.seen_at)} certificates",
    ]
    moments = sorted(history.seen_at.values())
    for number, (kind, began, ended) in enumerate(faults):
        until = faults[number + 1][1] if number + 1 < len(faults) else ended + 30.0
        inside = [began, *(at for at in moments if began < at < until), until]
        lines.append(f"{kind}: the longest pause was {max(b - a for a, b in pairwise(inside)):.1f} s")
    for one in verdicts:
        word = "BROKEN" if one.violations else "holds"
        lines.append(f"{word}: {one.law} ({one.checked} checked)")
        lines += [f"  {said}" for said in one.violations[:10]]
    return "\n".join(lines)
