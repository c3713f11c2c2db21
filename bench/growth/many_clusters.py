"""Hundreds of clusters: one controller for all, replicas that share them, and the loss of one replica."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.burst import Joiners, count_requests, run, say, settle
from bench.controllers import CONNECTED, RunningController, launch
from bench.environment import BenchEnvironment, start_environment
from bench.growth.one_cluster import SETTLE, add
from bench.growth.sizes import Sizes
from bench.growth.workload_clusters import WorkloadCluster, WorkloadClusters, workload_clusters
from bench.joiner import Kind, Node
from bench.page.samples import Case
from bench.processes import cpu_seconds, resident
from nodeattest_cli.demo.manifests import create_all
from nodeattest_cli.demo.tools import Tools
from nodeattest_cli.demo.world import NAMESPACE, USER
from nodeattest_controller import manifests
from nodeattest_sandbox.apiserver.jsonvalue import text_at

LEASES = "/apis/coordination.k8s.io/v1/namespaces/nodeattest-system/leases"
SHARD = "nodeattest.x-k8s.io/shard"
LIMIT = 300.0
"""Seconds for all clusters to be connected, or shared."""


@dataclass(frozen=True)
class Scene:
    env: BenchEnvironment
    clusters: WorkloadClusters
    sizes: Sizes


def measure(tools: Tools, sizes: Sizes) -> list[Case]:
    with start_environment(tools, controller=False) as env:
        create_all(env.world.management.client(), manifests.objects("sharding"), user=USER)
        directory = env.directory / "clusters"
        with workload_clusters(
            env.world.management, directory, sizes.clusters, processes=sizes.server_processes
        ) as clusters:
            say(f"{sizes.clusters} clusters run")
            nodes = clusters.provision(env.world.management, Kind.TPM, 0, sizes.machines)
            say(f"{len(nodes)} Machines and tokens are made")
            settle(SETTLE)
            turn = sizes.joins * sizes.clusters
            assert len(nodes) >= 2 * turn + sizes.clusters, "too few machines for so many joins"
            scene = Scene(env, clusters, sizes)
            alone = _one_controller(scene, nodes[:turn])
            shared, lost = _sharing(scene, nodes[turn : 2 * turn], nodes[2 * turn :])
    return [alone, shared, lost]


def _one_controller(scene: Scene, nodes: Sequence[Node]) -> Case:
    env, sizes = scene.env, scene.sizes
    case = Case(f"{sizes.clusters} clusters, one controller")
    controller = launch(env.world, env.directory / "controller-one", env.tools)
    try:
        seconds = await_connected([controller], sizes.clusters + 1)
        case.add(connected=seconds, connect_cpu=cpu_seconds(controller.pid))
        say(f"connected to all after {seconds:.1f} s")
        settle(SETTLE)
        case.add(resident_idle=resident(controller.pid))
        _joins(scene, [controller], nodes, case)
    finally:
        controller.stop()
    return case


def _sharing(scene: Scene, nodes: Sequence[Node], rest: Sequence[Node]) -> tuple[Case, Case]:
    env, sizes = scene.env, scene.sizes
    shared, lost = Case(f"{sizes.clusters} clusters, {sizes.replicas} that share"), Case("lost shard")
    config = {"shardClusters": True}
    replicas = [
        launch(env.world, env.directory / f"replica-{number}", env.tools, config) for number in range(sizes.replicas)
    ]
    try:
        seconds = await_connected(replicas, sizes.clusters + 1)
        shared.add(connected=seconds)
        say(f"{sizes.replicas} replicas connected to all after {seconds:.1f} s")
        settle(SETTLE)
        for replica in replicas:
            shared.add(resident_idle=resident(replica.pid), owned=replica.gauge(CONNECTED))
        _joins(scene, replicas, nodes, shared)
        _lose_one(scene, replicas, rest, lost)
    finally:
        for replica in replicas:
            replica.stop()
    return shared, lost


def _joins(scene: Scene, controllers: Sequence[RunningController], nodes: Sequence[Node], case: Case) -> None:
    env, clusters, sizes = scene.env, scene.clusters, scene.sizes
    before, recorded = clusters.requests(), env.recorder()
    burst = run(
        Kind.TPM,
        clusters.servers,
        nodes,
        controller_pids=[controller.pid for controller in controllers],
        server_pids=[*env.server_pids, *clusters.pids],
        management_pids=env.management_pids,
        processes=sizes.joiners,
        at_once=sizes.at_once,
        seconds=sizes.seconds,
    )
    add(case, burst)
    settle(SETTLE)
    there: Counter[str] = clusters.requests() - before
    here = count_requests(recorded(), user=USER, joins=max(1, burst.joins))
    case.add(
        node_requests=there["node"] / max(1, burst.joins),
        controller_requests=here.controller + there[USER] / max(1, burst.joins),
    )
    for controller in controllers:
        case.add(resident=resident(controller.pid), peak=resident(controller.pid, "VmHWM"))
    say(f"{case.name}: {burst.rate:.1f}/s")


def _lose_one(scene: Scene, replicas: Sequence[RunningController], nodes: Sequence[Node], case: Case) -> None:
    """Kill a replica; one node of each of its clusters asks at this moment."""
    clusters, sizes = scene.clusters, scene.sizes
    victim = replicas[0]
    mine = {cluster.index for cluster in clusters.clusters if _holder(scene.env, cluster) == victim.identity()}
    asking = [node for node in nodes[: sizes.clusters] if node.server in mine]
    assert asking, "the replica owns no cluster"
    joiners = Joiners(Kind.TPM, clusters.servers, asking, processes=1, at_once=len(asking), seconds=sizes.seconds)
    victim.kill()
    killed = time.monotonic()
    joiners.go()
    outcome = joiners.outcome()
    ends = sorted(end for _, end in outcome.joins)
    assert ends, f"nobody joined after the loss: {outcome.failures}"
    case.add(
        clusters=len(mine), first_join=ends[0] - killed, last_join=ends[-1] - killed, failed=len(asking) - len(ends)
    )
    say(f"{len(mine)} clusters lost their replica: first join after {ends[0] - killed:.1f} s")


def _holder(env: BenchEnvironment, cluster: WorkloadCluster) -> str:
    wanted = f"{NAMESPACE}/{cluster.name}"
    for lease in env.world.management.client().list(LEASES):
        if text_at(lease, "metadata", "annotations", SHARD) == wanted:
            return text_at(lease, "spec", "holderIdentity")
    return ""


def await_connected(controllers: Sequence[RunningController], count: int) -> float:
    """Wait until so many clusters are watched by one of them each; return the seconds since the first one's start."""
    return _await(controllers, lambda: sum(each.gauge(CONNECTED) for each in controllers) >= count)


def _await(controllers: Sequence[RunningController], holds: Callable[[], bool]) -> float:
    began = min(controller.began for controller in controllers)
    while not holds():
        assert time.monotonic() - began < LIMIT, "the clusters were not connected in time"
        for controller in controllers:
            assert controller.process.popen.poll() is None, controller.log.read_text()[-2000:]
        time.sleep(0.5)
    return time.monotonic() - began
