"""An upgrade as docs/upgrade.md describes it, from an older state of this project, with requests in flight.

Real: etcd, kube-apiserver, kubectl, swtpm; of both states the controller, the rights of its manifests, and the agent.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from killed_controller import which
from needs import not_possible
from older_release import OlderRelease, unpacked
from polling import eventually, succeeds
from world import BIN, CSRS, NAMESPACE, OWN, Agent, Controller, World
from write_gate import Call, Gate

from nodeattest_controller.model.webhook_label import label_command
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane, start_real
from nodeattest_sandbox.definitions import keeps_custom_resources

pytestmark = [pytest.mark.conformance, pytest.mark.swtpm, pytest.mark.timeout(600)]

ACCOUNT: Final = "node-attestation-controller"
TODAY: Final = Path(__file__).parents[2] / "manifests"
STAGES: Final = ("publish", "approval", "certificate")
"""The writes to a request of a machine with a TPM, in their order; the ledger is written before the approval."""
STOPPED: Final = {"filed": "publish", "recorded": "approval", "approved": "certificate"}
"""By node: the first write to its requests that the older controller does not get done."""
ANSWERING: Final = "answering"
"""The node that has a challenge of the older controller, and answers when that one is gone."""
IN_FLIGHT: Final = (*STOPPED, ANSWERING)
JOIN: Final = 150.0
"""Seconds that a join may take which waits for the upgrade."""
WAITS: Final = ("--timeout", f"{JOIN:g}", "--patience", f"{JOIN:g}")
SPENT: Final = "gone00.0123456789abcdef"
"""A bootstrap token of the past: a node renews by its own certificate."""
Done = subprocess.CompletedProcess[str]


class UninstalledWorld(World):
    """A world in which nobody applied our manifests yet."""

    def definitions(self) -> list[JsonMap]:
        return []


def kubectl(plane: ControlPlane, *words: str) -> None:
    """Do as an operator does."""
    assert plane.kubectl is not None
    command = [str(plane.kubectl), f"--kubeconfig={plane.admin_kubeconfig}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def apply_all(world: World, tree: Path) -> None:
    """Apply a state's manifests in the order of docs/upgrade.md: in workload clusters, then definitions and rights."""
    there = [(world.workload, folder) for folder in sorted(tree.glob("workload-*"))]
    for plane, folder in (*there, (world.management, tree / "crd"), (world.management, tree / "rbac")):
        # kubectl before 1.25 knows no CEL rules, and would refuse them by itself.
        kubectl(plane, "apply", "--validate=false", "-k", str(folder))


def check_policies(world: World) -> None:
    """Run today's check over the policies that are there."""
    file = world.directory / "policies.json"
    kind = {"apiVersion": "v1", "kind": "List"}
    file.write_text(json.dumps({**kind, "items": world.admin.list(f"{OWN}/nodeattestationpolicies")}))
    done = subprocess.run(
        [BIN / "nodeattest", "policy", "check", "-f", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def account_kubeconfig(plane: ControlPlane, namespace: str) -> Path:
    """Make a kubeconfig of the controller's account, which has the rights of the manifests and no others."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"
    asked: JsonMap = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return plane.token_kubeconfig(text_at(plane.client().create(path, asked), "status", "token"))


@dataclass
class Stops:
    """Refuses the controller's writes to the requests of some nodes, from a stage on."""

    world: World
    reached: set[str] = field(default_factory=set[str])
    """The nodes of which a write was refused."""

    def refusal(self, call: Call) -> int | None:
        """Return the code with which the gate answers a call itself."""
        kind, node = which(call), self._node(call.path)
        if kind not in STAGES or node not in STOPPED or STAGES.index(kind) < STAGES.index(STOPPED[node]):
            return None
        self.reached.add(node)
        return 500

    def _node(self, path: str) -> str:
        nodes = {text_at(one, "metadata", "name"): node for node in STOPPED for one in self.world.requests_of(node)}
        return nodes.get(path.partition("/certificatesigningrequests/")[2].partition("/")[0], "")


@dataclass(frozen=True)
class Upgraded:
    """A world after the upgrade, and what was there before."""

    world: World
    older: OlderRelease
    kubeconfig: Path
    """Of the controller's account."""
    controller: Controller
    agents: dict[str, Agent]
    joins: dict[str, Done]
    ledgers: dict[str, JsonMap]
    """As the older controller left them, by node."""


def tpm_agent(world: World, name: str, server: str = "") -> Agent:
    """Make a machine with its agent."""
    tpm = world.tpm(name)
    world.machine(name, tpm=tpm)
    return world.agent(name, "tpm", server=server, tcti=tpm.tcti)


def certificates(world: World, node: str = "") -> list[tuple[bytes, bytes]]:
    """List key and certificate of every request that has one."""
    requests = world.requests_of(node) if node else world.requests()
    given = [text_at(one, "status", "certificate") for one in requests]
    found = [x509.load_pem_x509_certificate(base64.b64decode(one)) for one in given if one]
    return [
        (one.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), one.public_bytes(Encoding.DER))
        for one in found
    ]


@pytest.fixture(scope="module")
def world(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("upgraded")
    with start_real(directory / "management", assets, name="management") as management:
        if not keeps_custom_resources(management):
            not_possible("this kube-apiserver dies of custom resources")
        with start_real(directory / "workload", assets, name="workload") as workload:
            built = UninstalledWorld(directory, management, workload)
            yield built
            built.close()


@dataclass(frozen=True)
class InFlight:
    """Joins that are under way, each stopped where the controller is replaced."""

    joins: dict[str, Future[Done]]
    gate: Gate
    """Before the API server that the controller writes to."""
    front: Gate
    """The same for the agent of ``ANSWERING``."""

    def go_on(self) -> None:
        """Stop nothing any more."""
        self.gate.refused = lambda _call: None
        self.front.refused = lambda _call: None

    def ended(self) -> dict[str, Done]:
        """Wait for their ends."""
        return {node: join.result(2 * JOIN) for node, join in self.joins.items()}


@contextmanager
def in_flight(world: World, older: OlderRelease, gate: Gate) -> Generator[InFlight]:
    """Begin joins, and yield them when each is where it is stopped."""
    stops = Stops(world)
    with Gate(world.workload) as front, ThreadPoolExecutor(len(IN_FLIGHT)) as pool:

        def filed() -> int:
            return sum(call.method == "POST" and call.path == CSRS for call in front.calls)

        front.refused = lambda call: 503 if call.method == "POST" and filed() > 1 else None
        gate.refused = stops.refusal
        agents = {node: tpm_agent(world, node, front.server if node == ANSWERING else "") for node in IN_FLIGHT}
        begun = {
            node: pool.submit(older.agent(agents[node]).join, world.token(), *WAITS, timeout=2 * JOIN)
            for node in agents
        }
        joins = InFlight(begun, gate, front)
        try:
            eventually(lambda: stops.reached == set(STOPPED) and filed() > 1, seconds=60, what="all stops")
            yield joins
        finally:
            joins.go_on()


@pytest.fixture(scope="module")
def upgraded(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    """Install the older state, let nodes join, and upgrade the controller while others do."""
    older = unpacked(tmp_path_factory.mktemp("older"))
    apply_all(world, older.manifests)
    kubeconfig = account_kubeconfig(world.management, "nodeattest-system")
    with Gate(world.workload) as gate:
        there = account_kubeconfig(world.workload, "kube-system")
        world.route_workload(gate.kubeconfig(there, world.directory / "gated.kubeconfig").read_bytes())
        succeeds(lambda: world.set_policy(authorizedAttestors=["tpm"]))  # the definitions take a moment
        agents = {name: tpm_agent(world, name) for name in ("joined", "between")}
        with older.controller(kubeconfig, world.directory / "older.log") as before:
            world.await_service(before)
            joins = {"joined": older.agent(agents["joined"]).join(world.token())}
            with in_flight(world, older, gate) as others:
                check_policies(world)
                kubectl(world.management, *label_command(NAMESPACE).split()[1:])
                apply_all(world, TODAY)
                joins["between"] = older.agent(agents["between"]).join(world.token())
                ledgers = {node: map_at(world.ledger(node), "spec") for node in (*agents, *IN_FLIGHT)}
                with world.controller(kubeconfig=kubeconfig, log="today.log") as controller:
                    assert before.terminate() == 0, before.log()
                    others.go_on()
                    joins |= others.ended()
                    yield Upgraded(world, older, kubeconfig, controller, agents, joins, ledgers)


def issued(ledger: JsonMap) -> list[JsonMap]:
    return list(maps_at(ledger, "issued"))


def test_the_older_controller_serves_while_only_the_manifests_are_new(upgraded: Upgraded) -> None:
    assert upgraded.joins["between"].returncode == 0, upgraded.joins["between"].stderr


@pytest.mark.parametrize("node", IN_FLIGHT)
def test_what_is_in_flight_ends_with_one_certificate(upgraded: Upgraded, node: str) -> None:
    assert bool(issued(upgraded.ledgers[node])) is (node in {"recorded", "approved"})
    assert upgraded.joins[node].returncode == 0, upgraded.joins[node].stderr
    assert len(issued(map_at(upgraded.world.ledger(node), "spec"))) == 1
    assert len({key for key, _ in certificates(upgraded.world, node)}) == 1


def test_nothing_that_was_on_record_is_lost(upgraded: Upgraded) -> None:
    for node, before in upgraded.ledgers.items():
        after = map_at(upgraded.world.ledger(node), "spec")
        assert issued(after)[: len(issued(before))] == issued(before)
        assert {key: after[key] for key in before if key != "issued"} == {
            key: value for key, value in before.items() if key != "issued"
        }


def test_a_joined_node_renews_with_the_older_agent_and_then_with_todays(upgraded: Upgraded) -> None:
    agent = upgraded.agents["joined"]
    for count, program in enumerate((upgraded.older.agent(agent), agent), 2):
        renewal = program.join(SPENT, "--renew")
        assert renewal.returncode == 0, renewal.stderr
        assert len(issued(map_at(upgraded.world.ledger("joined"), "spec"))) == count


def test_a_new_machine_joins(upgraded: Upgraded) -> None:
    joined = tpm_agent(upgraded.world, "new").join(upgraded.world.token())
    assert joined.returncode == 0, joined.stderr


def test_after_a_roll_back_a_node_renews_that_todays_agent_joined(upgraded: Upgraded) -> None:
    """The definitions stay today's; what the older controller does not know of an entry, it drops."""
    world, agent = upgraded.world, upgraded.agents["joined"]
    before = issued(map_at(world.ledger("joined"), "spec"))
    assert upgraded.controller.terminate() == 0, upgraded.controller.log()
    with upgraded.older.controller(upgraded.kubeconfig, world.directory / "rolled-back.log"):
        renewal = agent.join(SPENT, "--renew")
        assert renewal.returncode == 0, renewal.stderr
        after = [text_at(one, "serial") for one in issued(map_at(world.ledger("joined"), "spec"))]
        assert after[:-1] == [text_at(one, "serial") for one in before]


def test_nothing_is_signed_twice(upgraded: Upgraded) -> None:
    """After all of it, no key of any request has two certificates."""
    times = Counter(key for key, _ in set(certificates(upgraded.world)))
    assert times
    assert set(times.values()) == {1}
