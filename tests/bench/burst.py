"""Many nodes that join at once, in a few processes, and what each side used meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.installed_tpm import software_tpm
from bench.joiner import Kind, Node, Orders, Outcome, Server
from bench.persistent_client import PersistentClient
from bench.processes import cpu_seconds
from nodeattest_demo.world import World, new_token
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import AuditEntry, ControlPlane
from nodeattest_sandbox.fleet import create_bootstrap_token, create_machine

ROOT = Path(__file__).parents[1]
PROVISIONERS = 4
"""Threads that create the fleet's objects."""
READS = {"get", "list", "watch"}


@dataclass(frozen=True)
class Burst:
    """What so many joins took; CPU is in milliseconds a join."""

    joins: int
    seconds: float
    latencies: list[float]
    controller_cpu: float
    server_cpu: float
    management_cpu: float
    """That part of ``server_cpu`` which is the management cluster's."""
    node_cpu: float
    failures: dict[str, int]
    ends: list[float]
    """When each ended, in their order; monotonic seconds."""

    @property
    def rate(self) -> float:
        """Joins a second."""
        return self.joins / self.seconds if self.seconds else 0.0


def provision(
    here: Client, there: Client, cluster: JsonObject, kind: Kind, numbers: Sequence[int], *, server: int = 0
) -> list[Node]:
    """Do what Cluster API and an infrastructure provider do for new machines: each has a bootstrap token of its own.

    ``here`` is the management cluster, ``there`` the workload cluster, which is number ``server`` of the run.
    """

    def one(number: int) -> Node:
        node = Node(number, f"worker-{number}", f"demo://rack-2/{number}", new_token(), server)
        create_bootstrap_token(there, node.token)
        proof = {ANNOTATION_TPM_ENDORSEMENT_KEY: software_tpm(number).fingerprint} if kind is Kind.TPM else {}
        create_machine(
            here,
            f"md-{number}",
            cluster=cluster,
            provider_id=node.provider_id,
            addresses=[("Hostname", node.name)],
            infrastructure_annotations=proof,
            bootstrap_token=node.token,
        )
        return node

    with ThreadPoolExecutor(PROVISIONERS) as pool:
        return list(pool.map(one, numbers))


def provision_in(world: World, kind: Kind, numbers: Sequence[int]) -> list[Node]:
    """Do it in the demo's workload cluster, and wait until its API server knows the tokens."""
    here, there = (
        PersistentClient.from_kubeconfig(plane.admin_kubeconfig) for plane in (world.management, world.workload)
    )
    made = provision(here, there, world.cluster, kind, numbers)
    world.workload.await_token(made[-1].token)
    return made


def server_of(plane: ControlPlane) -> Server:
    return Server(plane.server, str(plane.ca_certificate))


class Joiners:
    """Processes of nodes that are ready to join."""

    def __init__(
        self, kind: Kind, servers: list[Server], nodes: Sequence[Node], *, processes: int, at_once: int, seconds: float
    ) -> None:
        share = [list(nodes[first::processes]) for first in range(processes)]
        self._running = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.joiner"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in share
        ]
        try:
            for process, part in zip(self._running, share, strict=True):
                assert process.stdin is not None
                orders = Orders(kind, servers, part, max(1, at_once // processes), seconds)
                process.stdin.write(orders.dump() + "\n")
                process.stdin.flush()
            for process in self._running:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n", "the nodes' process did not start"
        except BaseException:
            self.close()
            raise

    def go(self) -> None:
        for process in self._running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def outcome(self) -> Outcome:
        """Wait until all have joined, or given up."""
        whole = Outcome()
        for process in self._running:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            whole.joins += [(begun, ended) for begun, ended in told["joins"]]
            whole.cpu += told["cpu"]
            for said, count in told["failures"].items():
                whole.failures[said] = whole.failures.get(said, 0) + count
            process.communicate()
        return whole

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


def run(
    kind: Kind,
    servers: list[Server],
    nodes: Sequence[Node],
    *,
    controller_pids: Sequence[int],
    server_pids: Sequence[int],
    management_pids: Sequence[int] = (),
    processes: int = 2,
    at_once: int = 20,
    seconds: float = 120.0,
) -> Burst:
    """Let all nodes join; ``management_pids`` are among ``server_pids``."""
    joiners = Joiners(kind, servers, nodes, processes=processes, at_once=at_once, seconds=seconds)
    try:
        groups = (controller_pids, server_pids, management_pids)
        before = [cpu_seconds(*pids) for pids in groups]
        joiners.go()
        outcome = joiners.outcome()
        after = [cpu_seconds(*pids) for pids in groups]
    except BaseException:
        joiners.close()
        raise
    count = max(1, len(outcome.joins))
    controller, servers_cpu, management = (1000 * (now - then) / count for now, then in zip(after, before, strict=True))
    begun, ended = zip(*outcome.joins, strict=True) if outcome.joins else ((0.0,), (0.0,))
    return Burst(
        joins=len(outcome.joins),
        seconds=max(ended) - min(begun),
        latencies=sorted(end - begin for begin, end in outcome.joins),
        controller_cpu=controller,
        server_cpu=servers_cpu,
        management_cpu=management,
        node_cpu=1000 * outcome.cpu / count,
        failures=outcome.failures,
        ends=sorted(ended),
    )


def rate_of_last(ends: Sequence[float], count: int) -> float:
    """Return the rate of the last joins of a burst, which has more of them."""
    return count / (ends[-1] - ends[-1 - count])


def settle(seconds: float) -> None:
    """Let API servers end what follows from their start and from the making of the fleet."""
    time.sleep(seconds)


def say(what: str) -> None:
    """Tell whoever waits how far a run is."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Requests:
    """Requests a join, by side."""

    node: float
    controller: float
    controller_writes: float
    lease_reads: float
    """Reads of Leases by the controller, which are in none of the others."""
    kinds: str
    """Those of the controller, each with its number a join."""


def count_requests(entries: Sequence[AuditEntry], *, user: str, joins: int) -> Requests:
    """Count the finished requests of nodes, and of the controller's user; those of Leases by themselves."""
    nodes = [one for one in entries if one.user.startswith(("system:bootstrap:", "system:node:"))]
    own = [one for one in entries if one.user == user and one.resource != "leases"]
    counted: dict[str, int] = {}
    for entry in own:
        what = f"{entry.verb} {'/'.join(filter(None, (entry.resource, entry.subresource)))}"
        counted[what] = counted.get(what, 0) + 1
    kinds = ", ".join(f"{count / joins:.2g} {what}" for what, count in sorted(counted.items()) if count / joins >= 0.05)
    writes = sum(one.verb not in READS for one in own)
    leases = [one for one in entries if one.user == user and one.resource == "leases" and one.verb == "get"]
    return Requests(len(nodes) / joins, len(own) / joins, writes / joins, len(leases) / joins, kinds)
