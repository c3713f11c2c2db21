"""Several workload clusters under one management cluster, and replicas that share them."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from polling import eventually
from world import NAMESPACE, Controller, World

from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import text_at
from nodeattest_sandbox.control_plane import start_sandbox

__all__ = ["LEASES", "SHARED", "Replicas", "identity", "many_clusters"]

LEASES = "/apis/coordination.k8s.io/v1/namespaces/nodeattest-system/leases"
SHARED = """\
apiVersion: config.nodeattest.x-k8s.io/v1alpha1
kind: NodeAttestationControllerConfiguration
shardClusters: true
leaseDuration: 4s
renewDeadline: 3s
retryPeriod: 500ms
"""
LEASE, PERIOD = 4.0, 0.5


@contextmanager
def many_clusters(world: World, directory: Path, names: Sequence[str]) -> Generator[dict[str, World]]:
    """Add workload clusters, each on a sandbox of its own, beside the world's; by name, the world's among them."""
    with ExitStack() as stack:
        made = {"c1": world}
        for name in names:
            plane = stack.enter_context(start_sandbox(directory / name, name=name))
            beside = copy.copy(world)
            beside.workload, beside.workload_admin = plane, plane.client()
            beside.cluster = fleet.create_cluster(
                world.admin,
                name,
                namespace=NAMESPACE,
                kubeconfig=plane.admin_kubeconfig.read_bytes(),
                ca_certificate=plane.ca_certificate.read_bytes(),
                ca_key=plane.ca_key.read_bytes(),
            )
            made[name] = beside
        yield made
        for name in names:
            version = text_at(world.cluster, "apiVersion")
            world.admin.delete(f"/apis/{version}/namespaces/{NAMESPACE}/clusters/{name}")


class Replicas:
    """The processes of one controller, by what their logs and Leases say."""

    def __init__(self, world: World, clusters: Mapping[str, World], kubeconfig: Path | None = None) -> None:
        self._kubeconfig = kubeconfig
        self.world = world
        self.clusters = clusters
        self._stack = ExitStack()
        self._config = world.directory / "shared.yaml"
        self._config.write_text(SHARED)
        self._started = 0

    def start(self) -> Controller:
        """Start one more."""
        self._started += 1
        log = f"shared-{self._started}.log"
        (self.world.directory / log).unlink(missing_ok=True)
        return self._stack.enter_context(
            self.world.controller("--config", str(self._config), kubeconfig=self._kubeconfig, log=log)
        )

    def close(self) -> None:
        """End all of them, and remove what they share by."""
        self._stack.close()
        for lease in self.world.admin.list(LEASES):
            self.world.admin.delete(f"{LEASES}/{text_at(lease, 'metadata', 'name')}")

    def holders(self) -> dict[str, str]:
        """Return who holds the Lease of each shard; nobody is an empty string."""
        found: dict[str, str] = {}
        for lease in self.world.admin.list(LEASES):
            shard = text_at(lease, "metadata", "annotations", "nodeattest.x-k8s.io/shard")
            if shard:
                found[shard] = text_at(lease, "spec", "holderIdentity")
        return found

    def owned_by(self, replica: Controller) -> set[str]:
        """Return the shards whose Leases a replica holds."""
        me = identity(replica)
        return {shard for shard, holder in self.holders().items() if me and holder == me}

    def await_owners(self, *replicas: Controller, seconds: float = 60.0) -> None:
        """Wait until these replicas own everything, each something, and serve their clusters."""
        wanted = {"management", *(f"{NAMESPACE}/{name}" for name in self.clusters)}

        def settled() -> bool:
            owned = [self.owned_by(replica) for replica in replicas]
            return all(owned) and set[str]().union(*owned) == wanted and all(map(self.serves, replicas))

        eventually(settled, seconds=seconds, what=f"owners of {sorted(wanted)}")

    def serves(self, replica: Controller) -> bool:
        """Tell whether a replica is connected to exactly the clusters that it owns."""
        connected: set[str] = set()
        for entry in replica.events():
            if entry.get("msg") == "connected":
                connected.add(str(entry["cluster"]))
            elif entry.get("msg") == "disconnected":
                connected.discard(str(entry["cluster"]))
        return connected == self.owned_by(replica) - {"management"}


def identity(replica: Controller) -> str:
    """Read from its log who a replica is."""
    serving = replica.said("serving")
    return str(serving["identity"]) if serving is not None else ""
