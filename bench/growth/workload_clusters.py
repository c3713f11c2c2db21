"""Workload clusters of the sandbox beside a real management cluster: hundreds in a few processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.burst import PROVISIONERS, ROOT, provision
from bench.joiner import Kind, Node, Server
from bench.persistent_client import PersistentClient
from nodeattest_cli.demo.automatic_approval import leave_open
from nodeattest_cli.demo.manifests import create_all
from nodeattest_cli.demo.world import NAMESPACE, USER
from nodeattest_controller import manifests
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_cluster
from nodeattest_sandbox.pki import ClusterPki

RIGHTS = ("workload-rbac", "workload-bootstrap-token", "workload-hardening")
SPACING = 1_000
"""Numbers of a cluster's nodes: those of the next one begin so much later."""


@dataclass(frozen=True)
class WorkloadCluster:
    name: str
    index: int
    pki: ClusterPki
    url: str
    cluster: JsonObject
    """The Cluster object."""

    def client(self) -> Client:
        directory = self.pki.directory.parent
        path = self.pki.client_kubeconfig(directory / "admin.kubeconfig", self.url, "admin", ("system:masters",))
        return PersistentClient.from_kubeconfig(path)

    def numbers(self, first: int, count: int) -> range:
        """Return the numbers of some of its nodes; no other cluster has them."""
        begin = (self.index + 1) * SPACING + first
        return range(begin, begin + count)


class WorkloadClusters:
    """All of them."""

    def __init__(self, processes: list[subprocess.Popen[str]], clusters: list[WorkloadCluster]) -> None:
        self._processes = processes
        self.clusters = clusters

    @property
    def servers(self) -> list[Server]:
        return [Server(one.url, str(one.pki.ca_certificate)) for one in self.clusters]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def requests(self) -> Counter[str]:
        """Return the finished requests to all of them, by side."""
        total: Counter[str] = Counter()
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            total.update(json.loads(process.stdout.readline()))
        return total

    def provision(self, management: ControlPlane, kind: Kind, first: int, count: int) -> list[Node]:
        """Make Machines and tokens of so many nodes in every cluster; nodes of all clusters take turns."""
        here = PersistentClient.from_kubeconfig(management.admin_kubeconfig)

        def one(cluster: WorkloadCluster) -> list[Node]:
            return provision(
                here, cluster.client(), cluster.cluster, kind, cluster.numbers(first, count), server=cluster.index
            )

        with ThreadPoolExecutor(PROVISIONERS) as pool:
            made = list(pool.map(one, self.clusters))
        return [node for turn in zip(*made, strict=True) for node in turn]


@contextmanager
def workload_clusters(
    management: ControlPlane, directory: Path, count: int, *, processes: int
) -> Generator[WorkloadClusters]:
    """Start them, fill them, and create their Cluster objects; the policy of the namespace selects all."""
    names = [f"c{number:03d}" for number in range(count)]
    folders = [directory / name for name in names]
    shares = [folders[first::processes] for first in range(min(processes, count))]
    running = [_start(share) for share in shares]
    try:
        urls: dict[Path, str] = {}
        for process, share in zip(running, shares, strict=True):
            assert process.stdout is not None
            urls |= dict(zip(share, json.loads(process.stdout.readline()), strict=True))
        here = PersistentClient.from_kubeconfig(management.admin_kubeconfig)

        def one(index: int) -> WorkloadCluster:
            return _join_fleet(here, index, folders[index], urls[folders[index]])

        with ThreadPoolExecutor(PROVISIONERS) as pool:
            made = list(pool.map(one, range(count)))
        yield WorkloadClusters(running, made)
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _start(share: Sequence[Path]) -> subprocess.Popen[str]:
    for folder in share:
        folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.growth.workload_servers"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps([str(folder) for folder in share]) + "\n")
    process.stdin.flush()
    return process


def _join_fleet(here: Client, index: int, folder: Path, url: str) -> WorkloadCluster:
    pki = ClusterPki(folder / "pki")
    kubeconfig = pki.client_kubeconfig(folder / "controller.kubeconfig", url, USER, ())
    cluster = create_cluster(
        here,
        folder.name,
        kubeconfig=kubeconfig.read_bytes(),
        ca_certificate=pki.ca_certificate.read_bytes(),
        ca_key=pki.ca_key.read_bytes(),
        namespace=NAMESPACE,
    )
    made = WorkloadCluster(folder.name, index, pki, url, cluster)
    there = made.client()
    for rights in RIGHTS:
        create_all(there, manifests.objects(rights), user=USER)
    leave_open(there)
    return made
