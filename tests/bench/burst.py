"""Clusters and a controller, many nodes that join at once in a few processes, and what each side used meanwhile."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from bench.joiner import Kind, Node, Orders, Outcome, SoftwareAttestor, join_all
from nodeattest_authenticator.formats.client_go import Cluster
from nodeattest_demo.machines import Children
from nodeattest_demo.world import (
    Tools,
    World,
    create_world,
    new_token,
    start_control_planes,
    start_controller,
)
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_sandbox.control_plane import AuditEntry, ControlPlane
from nodeattest_sandbox.fleet import create_bootstrap_token, create_machine

TICKS = os.sysconf("SC_CLK_TCK")
KIB_A_MIB = 1024


def cpu_seconds(*pids: int) -> float:
    """Return the user and system time of the processes, together."""
    words = [Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in words) / TICKS


def resident(pid: int, field: str = "VmRSS") -> float:
    """Return the resident memory of a process in MiB; ``VmHWM`` is the most that it had.

    Raises ``ValueError`` for a process that is over, and only not waited for: it has no such line.
    """
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"process {pid} has no {field}")
    return int(found[1]) / KIB_A_MIB


def first_line(path: Path, start: str) -> str:
    """Return what stands after the colon of the first line that begins so."""
    lines: Iterable[str] = path.read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(start)), "")


@dataclass(frozen=True)
class BenchEnvironment:
    world: World
    tools: Tools
    children: Children
    directory: Path
    stack: ExitStack
    controller_pid: int

    @property
    def pids(self) -> dict[str, list[int]]:
        """Return the processes of each side, by the name of what their CPU is called."""
        management, workload = (list(each.pids.values()) for each in (self.world.management, self.world.workload))
        servers = {"server_cpu": management + workload, "management_cpu": management}
        return {"controller_cpu": [self.controller_pid], **servers}

    def recorder(self) -> Callable[[], list[AuditEntry]]:
        """Start recording; the returned function gives the requests to both API servers that have finished since."""
        planes = (self.world.management, self.world.workload)
        before = [len(plane.requests()) for plane in planes]
        return lambda: [
            entry for plane, count in zip(planes, before, strict=True) for entry in plane.requests()[count:]
        ]


@contextmanager
def start_environment(tools: Tools, *, controller: bool = True, provider: str = "tpm") -> Generator[BenchEnvironment]:
    """Start clusters, and one controller unless the measurement brings its own."""
    with tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        children = Children(os.environ)
        stack.callback(children.close)
        planes = start_control_planes(directory, assets=tools.assets, stack=stack)
        world = create_world(*planes, provider=provider)
        env = BenchEnvironment(world, tools, children, directory, stack, 0)
        if controller:
            started = start_controller(world, directory / "controller", tools, stack)
            env = replace(env, controller_pid=started.pid())
        yield env


PROVISIONERS = 4
"""Threads that create the fleet's objects."""
READS = {"get", "list", "watch"}


@dataclass(frozen=True)
class Burst:
    """What so many joins took."""

    joins: int
    failures: Counter[str]
    ends: list[float]
    """When each ended, in their order; monotonic seconds."""
    samples: dict[str, float]
    """The figures of the page; CPU is in milliseconds a join."""


def provision_in(world: World, kind: Kind, numbers: Sequence[int]) -> list[Node]:
    """Do what Cluster API and an infrastructure provider do for new machines: each has a bootstrap token of its own."""
    management, workload = world.management.client(), world.workload.client()

    def one(number: int) -> Node:
        node = Node(number, f"worker-{number}", f"demo://rack-2/{number}", new_token())
        create_bootstrap_token(workload, node.token)
        proof = {ANNOTATION_TPM_ENDORSEMENT_KEY: SoftwareAttestor(number).fingerprint} if kind is Kind.TPM else {}
        create_machine(
            management,
            f"md-{number}",
            cluster=world.cluster,
            provider_id=node.provider_id,
            addresses=[("Hostname", node.name)],
            infrastructure_annotations=proof,
            bootstrap_token=node.token,
        )
        return node

    with ThreadPoolExecutor(PROVISIONERS) as pool:
        made = list(pool.map(one, numbers))
    world.workload.await_token(made[-1].token)
    return made


def cluster_of(plane: ControlPlane) -> Cluster:
    return Cluster(endpoint=Endpoint.parse(plane.server), ca_pem=plane.ca_certificate.read_bytes())


def run(
    kind: Kind,
    cluster: Cluster,
    nodes: Sequence[Node],
    *,
    pids: Mapping[str, Sequence[int]],
    processes: int = 2,
    at_once: int = 20,
    seconds: float = 120.0,
) -> Burst:
    """Let all nodes join; ``pids`` are the processes whose CPU is measured, by the figure's name."""
    shares = [list(nodes[first::processes]) for first in range(processes)]
    orders = [Orders(kind, cluster, share, max(1, at_once // processes), seconds) for share in shares]
    outcome = Outcome()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(len, shares))  # the processes have started
        before = {name: cpu_seconds(*each) for name, each in pids.items()}
        for part in pool.map(join_all, orders):
            outcome.joins += part.joins
            outcome.cpu += part.cpu
            outcome.failures += part.failures
        spent = {name: cpu_seconds(*each) - before[name] for name, each in pids.items()}
    count = max(1, len(outcome.joins))
    begun, ended = zip(*outcome.joins, strict=True) if outcome.joins else ((0.0,), (1.0,))
    samples = {
        "rate": len(outcome.joins) / (max(ended) - min(begun)),
        "latency": 1000 * median(end - begin for begin, end in zip(begun, ended, strict=True)),
        **{name: 1000 * each / count for name, each in {**spent, "node_cpu": outcome.cpu}.items()},
        "failed": outcome.failures.total(),
    }
    return Burst(len(outcome.joins), outcome.failures, sorted(ended), samples)


def rate_of_last(ends: Sequence[float], count: int) -> float:
    """Return the rate of the last joins of a burst, which has more of them."""
    return count / (ends[-1] - ends[-1 - count])


def say(what: str) -> None:
    """Tell whoever waits how far a run is."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def count_requests(entries: Sequence[AuditEntry], *, user: str, joins: int) -> dict[str, float]:
    """Count the finished requests a join of nodes, and of the controller's user; reads of Leases by themselves."""
    nodes = sum(one.user.startswith(("system:bootstrap:", "system:node:")) for one in entries)
    own = [one for one in entries if one.user == user]
    controller = [one for one in own if one.resource != "leases"]
    counted = {
        "node_requests": nodes,
        "controller_requests": len(controller),
        "controller_writes": sum(one.verb not in READS for one in controller),
        "lease_reads": sum(one.resource == "leases" and one.verb == "get" for one in own),
    }
    return {name: count / joins for name, count in counted.items()}
