"""The condition NodeAttested and a policy's onFailure, from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from killed_controller import Killer, Moment
from kubelet_requests import register_node
from polling import eventually
from serving_requests import end_of
from tested_provider import Fleet, installed
from token_rights import GROUPS, USER, shipped
from world import NAMESPACE, OWN, Controller, World
from write_gate import Gate

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.fleet import create_machine_pool

CAPI = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}"
REASON = "PCRValueNotAllowed"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
FLAGS = ("--leader-elect", "false")


@pytest.fixture(scope="module")
def tested(world: World, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with installed(world, f"standing-{id(request)}") as found:
        yield found


@pytest.fixture
def controller(world: World, tested: Fleet) -> Iterator[Controller]:
    tested.policy()
    with world.controller("--leader-elect", "false", log="standing.log") as running:
        world.await_service(running)
        yield running


def shown(world: World, machine: str, kind: str = "machines") -> JsonMap:
    """Return the condition of a Machine, or an empty object."""
    found = world.admin.get(f"{CAPI}/{kind}/{machine}")
    nothing: JsonMap = {}
    conditions = maps_at(found, "status", "conditions")
    return next((one for one in conditions if text_at(one, "type") == "NodeAttested"), nothing)


def says(world: World, machine: str, status: str, reason: str, kind: str = "machines") -> JsonMap | None:
    condition = shown(world, machine, kind)
    is_so = (text_at(condition, "status"), text_at(condition, "reason")) == (status, reason)
    return condition if is_so else None


def told(world: World, reason: str, about: str = "") -> JsonMap | None:
    events = world.admin.list(f"/api/v1/namespaces/{NAMESPACE}/events")
    found = [one for one in events if text_at(one, "reason") == reason]
    return next((one for one in found if about in {"", text_at(one, "involvedObject", "name")}), None)


def told_of_node(world: World, machine: str) -> bool:
    """Tell whether the condition says what was done to the Node, which follows the deed."""
    refused = says(world, machine, "False", REASON)
    return refused is not None and "its Node was" in text_at(refused, "message")


@pytest.mark.usefixtures("controller")
def test_a_machine_says_that_it_is_attested_by_what_and_until_when(world: World, tested: Fleet) -> None:
    world.machine("st-a")
    eventually(lambda: says(world, "st-a", "Unknown", "NotYetAttested"), seconds=60, what="the first word")
    assert end_of(tested.file("st-a", "good", as_node=False)) == "issued"
    condition = eventually(lambda: says(world, "st-a", "True", "Attested"), seconds=60, what="the condition")
    assert text_at(condition, "message").startswith("by tested, until 2")
    kept = [text_at(one, "type") for one in maps_at(world.admin.get(f"{CAPI}/machines/st-a"), "status", "conditions")]
    assert kept == ["BootstrapReady", "NodeAttested"]


@pytest.mark.usefixtures("controller")
def test_a_refused_claim_on_a_machine_that_has_not_joined_is_shown_and_leaves_status_and_time(
    world: World, tested: Fleet
) -> None:
    world.machine("st-claimed")
    before = eventually(lambda: says(world, "st-claimed", "Unknown", "NotYetAttested"), seconds=60, what="the first")
    assert end_of(tested.file("st-claimed", "bad", as_node=False)) == f"Denied:{REASON}"
    eventually(lambda: REASON in text_at(shown(world, "st-claimed"), "message"), seconds=60, what="the claim")
    assert says(world, "st-claimed", "Unknown", "NotYetAttested")
    assert text_at(shown(world, "st-claimed"), "lastTransitionTime") == text_at(before, "lastTransitionTime")
    assert end_of(tested.file("st-claimed", "good", as_node=False)) == "issued"
    eventually(lambda: says(world, "st-claimed", "True", "Attested"), seconds=60, what="the certificate")


def test_a_refused_renewal_is_shown_survives_a_restart_and_a_certificate_clears_it(
    world: World, tested: Fleet, controller: Controller
) -> None:
    tested.joined("st-renewed")
    assert end_of(tested.file("st-renewed", "bad")) == f"Denied:{REASON}"
    eventually(lambda: says(world, "st-renewed", "False", REASON), seconds=60, what="the condition")
    verdict = map_at(world.ledger("st-renewed"), "spec", "lastVerdict")
    assert (verdict["verdict"], verdict["reason"]) == ("Denied", REASON)
    assert tested.marks("st-renewed") == []  # onFailure is None by default
    controller.kill()
    path = f"{CAPI}/machines/st-renewed"
    world.admin.patch(f"{path}/status", {"status": {"conditions": []}})  # as clusterctl move drops it
    controller.start()
    eventually(lambda: says(world, "st-renewed", "False", REASON), seconds=60, what="the same after a restart")
    assert end_of(tested.file("st-renewed", "good")) == "issued"
    eventually(lambda: says(world, "st-renewed", "True", "Attested"), seconds=60, what="the certificate")


@pytest.mark.usefixtures("controller")
def test_a_stolen_token_and_another_node_change_nothing_for_a_healthy_machine(world: World, tested: Fleet) -> None:
    tested.policy(onFailure="DeleteNode", maxFailedShare=100)
    for name in ("st-healthy", "st-evil"):
        tested.joined(name)
        eventually(lambda name=name: says(world, name, "True", "Attested"), seconds=60, what="the condition")
    before = map_at(world.ledger("st-healthy"), "spec")
    assert end_of(tested.file("st-healthy", "bad", as_node=False)).startswith("Denied:")
    assert end_of(tested.file("st-healthy", "bad", node="st-evil")).startswith(
        "Denied:"
    )  # with the other's provider ID
    assert end_of(tested.file("st-evil", "bad")) == f"Denied:{REASON}"
    eventually(lambda: says(world, "st-evil", "False", REASON), seconds=60, what="the evil one's own")
    eventually(lambda: not tested.has_node("st-evil"), seconds=60, what="its Node to go")
    assert says(world, "st-healthy", "True", "Attested")
    assert tested.has_node("st-healthy")
    assert map_at(world.ledger("st-healthy"), "spec") == before  # refused requests are in its status

    def asked_by() -> set[str]:
        found = maps_at(world.ledger("st-healthy"), "status", "refusals")
        return {text_at(one, "requester") for one in found}

    eventually(lambda: asked_by() == {"BootstrapToken", "Other"}, seconds=90, what="who asked in its name")


@pytest.mark.usefixtures("controller")
def test_a_node_is_tainted_then_cordoned_then_released_by_its_certificate(world: World, tested: Fleet) -> None:
    tested.policy(onFailure="Taint", maxFailedShare=100)
    tested.joined("st-taint")
    assert end_of(tested.file("st-taint", "bad")) == f"Denied:{REASON}"
    eventually(lambda: tested.marks("st-taint") == ["Taint"], seconds=60, what="the taint")
    assert eventually(lambda: told(world, "NodeTainted", "st-taint"), seconds=60, what="the Event")
    tested.policy(onFailure="Cordon", maxFailedShare=100)
    eventually(lambda: tested.marks("st-taint") == ["Cordon"], seconds=60, what="the cordon")
    assert map_at(tested.node("st-taint"), "spec")["unschedulable"] is True
    eventually(lambda: told_of_node(world, "st-taint"), seconds=60, what="the condition to tell of the Node")
    assert end_of(tested.file("st-taint", "good")) == "issued"
    eventually(lambda: tested.marks("st-taint") == [], seconds=60, what="the release")
    assert "unschedulable" not in map_at(tested.node("st-taint"), "spec")
    eventually(lambda: "onFailure" not in map_at(world.ledger("st-taint"), "spec"), seconds=60, what="the record to go")


def how_many_joined(world: World) -> int:
    """Count the members of the cluster that have a node or a certificate; ledgers of other tests' machines are none."""
    machines = [one for one in world.admin.list(f"{CAPI}/machines") if text_at(one, "spec", "clusterName") == "c1"]
    pools = [one for one in world.admin.list(f"{CAPI}/machinepools") if text_at(one, "spec", "clusterName") == "c1"]
    ids = {text_at(one, "spec", "providerID") for one in machines}
    for pool in pools:
        listed = map_at(pool, "spec").get("providerIDList")
        ids |= {one for one in listed if isinstance(one, str)} if isinstance(listed, list) else set()
    with_node = {text_at(one, "spec", "providerID") for one in machines if text_at(one, "status", "nodeRef", "name")}
    ledgers = world.admin.list(f"{OWN}/machineattestations")
    with_ledger = {text_at(one, "spec", "providerID") for one in ledgers if maps_at(one, "spec", "issued")}
    return len(ids & (with_node | with_ledger) - {""})


def treated(world: World) -> list[str]:
    """Name the Nodes of which a ledger records that something was done to them."""
    found = [map_at(one, "spec") for one in world.admin.list(f"{OWN}/machineattestations")]
    return [text_at(spec, "onFailure", "nodeName") for spec in found if "onFailure" in spec]


@pytest.mark.usefixtures("controller")
def test_a_wrong_policy_touches_no_more_than_the_share(world: World, tested: Fleet) -> None:
    names = [f"st-fleet-{number}" for number in range(5)]
    for name in names:
        tested.joined(name)
    eventually(lambda: not treated(world), seconds=60, what="what earlier tests did to be undone: it holds a place")
    joined = how_many_joined(world)
    share = 100 * 2 // joined + 1  # a whole percentage: of a fleet beyond two hundred one per cent is more than two
    few = joined * share // 100
    assert 1 <= few < len(names)
    tested.policy("godo", onFailure="Taint", maxFailedShare=share)
    filed = [tested.file(name, "good") for name in names]
    assert {end_of(one) for one in filed} == {f"Denied:{REASON}"}
    eventually(lambda: len(tested.marks(*names)) == few, seconds=60, what="the taints")
    withheld = eventually(lambda: told(world, "OnFailureWithheld", "c1"), seconds=60, what="the Event")
    assert "maxFailedShare" in text_at(withheld, "message")
    for name in names:
        eventually(lambda name=name: says(world, name, "False", REASON), seconds=60, what="the condition")
    assert len(tested.marks(*names)) == few
    tested.policy(onFailure="Taint", maxFailedShare=share, enforcement="Audit")
    eventually(lambda: tested.marks(*names) == [], seconds=60, what="Audit undoing it")


@pytest.mark.usefixtures("controller")
def test_a_node_that_comes_back_under_its_name_is_treated_again(world: World, tested: Fleet) -> None:
    tested.policy(onFailure="Taint", maxFailedShare=100)
    tested.joined("st-again")
    assert end_of(tested.file("st-again", "bad")) == f"Denied:{REASON}"
    eventually(lambda: tested.marks("st-again") == ["Taint"], seconds=60, what="the taint")
    world.workload_admin.delete("/api/v1/nodes/st-again")
    fresh: JsonMap = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "st-again"},
                      "spec": {"providerID": "sandbox://st-again"}}  # fmt: skip
    world.workload_admin.create("/api/v1/nodes", fresh)
    assert end_of(tested.file("st-again", "bad")) == f"Denied:{REASON}"
    eventually(lambda: tested.marks("st-again") == ["Taint"], seconds=60, what="the taint on the new Node")


@pytest.mark.usefixtures("controller")
def test_a_pool_counts_the_instances_that_are_attested(world: World, tested: Fleet) -> None:
    ids = ["sandbox://st-pool-0", "sandbox://st-pool-1"]
    create_machine_pool(world.admin, "st-pool", cluster=world.cluster, provider_ids=ids)
    eventually(
        lambda: says(world, "st-pool", "Unknown", "InstancesNotAttested", "machinepools"), seconds=60, what="the claim"
    )
    world.machine("st-pool-0")  # an instance that is a Machine besides
    assert end_of(tested.file("st-pool-0", "good", as_node=False)) == "issued"
    one = eventually(
        lambda: "1 of 2" in text_at(shown(world, "st-pool", "machinepools"), "message"), seconds=60, what="one instance"
    )
    assert one


def test_a_missing_right_is_told_with_its_manifest_and_used_when_it_comes(world: World, tested: Fleet) -> None:
    tested.policy(onFailure="Taint", maxFailedShare=100)
    made = grant(world, "workload-rbac")
    world.route_workload(world.workload.client_kubeconfig(USER, GROUPS).read_bytes())
    try:
        with world.controller(*FLAGS, log="standing-403.log") as controller:
            world.await_service(controller)
            tested.joined("st-poor")
            assert end_of(tested.file("st-poor", "bad")) == f"Denied:{REASON}"
            event = eventually(lambda: told(world, "OnFailureForbidden", "c1"), seconds=60, what="the Event")
            assert "manifests/workload-on-failure" in text_at(event, "message")
            eventually(lambda: says(world, "st-poor", "False", REASON), seconds=60, what="the condition all the same")
            assert tested.marks("st-poor") == []
            # nothing was done, nothing counts; while it tries again the intent stands there for a moment
            eventually(lambda: "onFailure" not in map_at(world.ledger("st-poor"), "spec"), what="the intent to go")
            made += grant(world, "workload-on-failure")
            assert end_of(tested.file("st-poor", "!EndorsementKeyChanged")).startswith(
                "Denied:"
            )  # sooner than in 2 min
            eventually(lambda: tested.marks("st-poor") == ["Taint"], seconds=60, what="the taint")
    finally:
        world.route_workload(world.workload.admin_kubeconfig.read_bytes())
        for path in made:
            world.workload_admin.delete(path)


def grant(world: World, base: str) -> list[str]:
    """Apply the ClusterRoles of a base and their bindings; returns their paths."""
    paths: list[str] = []
    for made in shipped(base):
        if made["kind"] in {"ClusterRole", "ClusterRoleBinding"}:
            collection = f"{RBAC}/{text_at(made, 'kind').lower()}s"
            world.workload_admin.create(collection, made)
            paths.append(f"{collection}/{text_at(made, 'metadata', 'name')}")
    return paths


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", ["ledger", "node"])
def test_a_node_is_treated_although_the_controller_dies_around_a_write(
    world: World, tested: Fleet, write: str, moment: Moment
) -> None:
    tested.policy(onFailure="Cordon", maxFailedShare=100)
    name = f"st-crash-{write}-{moment}"
    with ExitStack() as stack:
        stack.callback(lambda: world.route_workload(world.workload.admin_kubeconfig.read_bytes()))
        gates = [stack.enter_context(Gate(plane)) for plane in (world.management, world.workload)]
        first, second = (
            gate.kubeconfig(plane.admin_kubeconfig, world.directory / f"{name}-{plane.server[-5:]}.kubeconfig")
            for gate, plane in zip(gates, (world.management, world.workload), strict=True)
        )
        world.route_workload(second.read_bytes())
        controller = stack.enter_context(world.controller(*FLAGS, kubeconfig=first, log=f"{name}.log"))
        world.await_service(controller)
        tested.joined(name)
        eventually(lambda: says(world, name, "True", "Attested"), seconds=60, what="the condition")
        killer = Killer.of(world, controller, write, moment)
        for gate in gates:
            gate.before, gate.after = killer.passes("before"), killer.passes("after")
        assert end_of(tested.file(name, "bad")) == f"Denied:{REASON}"
        assert killer.done.wait(60)
        controller.start()
        if (write, moment) == ("ledger", "before"):  # nothing was remembered: the node asks again, as agents do
            assert end_of(tested.file(name, "bad")) == f"Denied:{REASON}"
        eventually(lambda: tested.marks(name) == ["Cordon"], seconds=60, what="the cordon")
        eventually(lambda: says(world, name, "False", REASON), seconds=60, what="the condition")
        assert end_of(tested.file(name, "good")) == "issued"
        eventually(lambda: tested.marks(name) == [], seconds=60, what="the release")
        assert "unschedulable" not in map_at(tested.node(name), "spec")


@pytest.mark.swtpm
def test_a_tpm_that_shows_another_boot_than_the_policy_wants_is_cordoned_until_it_shows_the_right_one(
    world: World,
) -> None:
    zero: JsonMap = {"selection": [16], "values": {"16": ["00" * 32]}}
    other: JsonMap = {"selection": [16], "values": {"16": ["ab" * 32]}}
    world.set_policy(authorizedAttestors=["tpm"], tpm={"pcrs": zero})
    with world.controller(*FLAGS, log="standing-tpm.log") as controller:
        world.await_service(controller)
        tpm = world.tpm("st-tpm")
        world.machine("st-tpm", tpm=tpm)
        agent = world.agent("st-tpm", "tpm", tcti=tpm.tcti)
        joined = agent.join(world.token())
        assert joined.returncode == 0, joined.stderr
        register_node(world, "st-tpm")
        eventually(lambda: says(world, "st-tpm", "True", "Attested"), seconds=60, what="the condition")
        policy: JsonMap = {"pcrs": other}
        world.set_policy(authorizedAttestors=["tpm"], tpm=policy, onFailure="Cordon", maxFailedShare=100)
        refused = agent.join(world.token(), "--renew")
        assert REASON in refused.stderr
        assert [text_at(one, "spec", "username") for one in world.requests_of("st-tpm")].count("system:node:st-tpm")
        eventually(lambda: says(world, "st-tpm", "False", REASON), seconds=60, what="the condition")
        eventually(lambda: Fleet(world).marks("st-tpm") == ["Cordon"], seconds=60, what="the cordon")
        world.set_policy(authorizedAttestors=["tpm"], tpm={"pcrs": zero}, onFailure="Cordon", maxFailedShare=100)
        renewed = agent.join(world.token(), "--renew")
        assert renewed.returncode == 0, renewed.stderr
        eventually(lambda: Fleet(world).marks("st-tpm") == [], seconds=60, what="the release")
        eventually(lambda: says(world, "st-tpm", "True", "Attested"), seconds=60, what="the condition")
