"""Replicas that share clusters: balance, moves, kill -9, SIGSTOP; no request is answered twice with effect."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from filing_requests import Filed, Wanted, file_request
from polling import eventually
from shared_clusters import LEASE, LEASES, PERIOD, Replicas, identity, many_clusters
from world import NAMESPACE, World

from nodeattest_controller import manifests
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.client import Client

USER = "sharing-controller"
"""Stands for the shipped service account, whose name is too long for a certificate."""
TAKEOVER = 8
"""Lease durations until others serve what a dead replica had: one until its Leases end, the rest for a busy machine."""


@pytest.fixture(scope="module")
def clusters(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, World]]:
    world.set_policy(authorizedAttestors=["insecure"])
    with many_clusters(world, tmp_path_factory.mktemp("clusters"), ("s2", "s3", "s4")) as made:
        yield made


@pytest.fixture
def replicas(world: World, clusters: dict[str, World]) -> Iterator[Replicas]:
    made = Replicas(world, clusters)
    yield made
    made.close()


def issued(world: World, machine: str) -> int:
    return len(list(maps_at(world.ledger(machine), "spec", "issued")))


def test_clusters_are_shared_moved_to_a_newcomer_and_handed_over_at_an_orderly_end(
    replicas: Replicas, clusters: dict[str, World]
) -> None:
    first = replicas.start()
    replicas.await_owners(first)
    second = replicas.start()
    replicas.await_owners(first, second)
    assert max(len(replicas.owned_by(one)) for one in (first, second)) <= 4  # of five, the management's among them
    for name, world in clusters.items():
        world.machine(f"up-{name}")
        filed = file_request(world, Wanted(node=f"up-{name}"))
        eventually(lambda: filed.state() == "issued", what=f"a certificate in {name}")
    gone = identity(first)
    assert first.terminate() == 0
    assert gone not in replicas.holders().values()  # given back: nobody waits for them to run out
    replicas.await_owners(second)
    assert first.said("a bug keeps a shard from being begun; trying again") is None


def test_clusters_of_a_replica_that_is_killed_move_to_the_others(
    replicas: Replicas, clusters: dict[str, World]
) -> None:
    both = [replicas.start() for _ in range(2)]
    replicas.await_owners(*both)
    rest, dead = sorted(both, key=lambda one: len(replicas.owned_by(one)))
    lost = sorted(replicas.owned_by(dead) - {"management"})
    assert lost
    name = lost[0].removeprefix(f"{NAMESPACE}/")
    world = clusters[name]
    world.machine(f"killed-{name}")
    killed = datetime.now(UTC)
    dead.kill()
    joined = world.agent(f"killed-{name}", "insecure").join(world.token())
    assert joined.returncode == 0, joined.stderr
    replicas.await_owners(rest)
    moved = [entry for entry in rest.events() if entry.get("msg") == "owning"]
    assert {str(entry["shard"]) for entry in moved} >= set(lost)
    served = {
        str(entry["cluster"]): datetime.fromisoformat(str(entry["ts"]))
        for entry in rest.events()
        if entry.get("msg") == "connected"
    }
    assert max(served[shard] for shard in lost) - killed <= TAKEOVER * timedelta(seconds=LEASE)
    assert issued(world, f"killed-{name}") == 1


def test_a_replica_that_was_stopped_and_wakes_after_its_clusters_moved_changes_nothing(
    replicas: Replicas, clusters: dict[str, World]
) -> None:
    both = replicas.start(), replicas.start()
    replicas.await_owners(*both)
    awake, asleep = sorted(both, key=lambda one: len(replicas.owned_by(one)))
    names = [shard.removeprefix(f"{NAMESPACE}/") for shard in replicas.owned_by(asleep) - {"management"}]
    filed: list[tuple[World, str, Filed]] = []
    for name in names:
        world = clusters[name]
        world.machine(f"stopped-{name}")
        for attempt in range(4):  # some are in its hands when it stops, at whatever step
            key = ec.generate_private_key(ec.SECP256R1())
            wanted = Wanted(node=f"stopped-{name}", key=key)
            filed.append((world, name, file_request(world, wanted)))
            if attempt == 1:
                asleep.signal(signal.SIGSTOP)
    replicas.await_owners(awake)
    for _, name, request in filed:
        eventually(lambda: request.state() not in {"", "Approved"}, what=f"an answer in {name}")
    before = [request.read() for _, _, request in filed]
    ledgers = {name: clusters[name].ledger(f"stopped-{name}") for name in names}
    asleep.signal(signal.SIGCONT)
    assert asleep.wait(20) == 1  # it may not act any more, and a fresh process takes part anew
    assert [request.read() for _, _, request in filed] == before
    for name in names:
        ledger = clusters[name].ledger(f"stopped-{name}")
        assert ledger == ledgers[name]
        serials = [text_at(entry, "serial") for entry in maps_at(ledger, "spec", "issued")]
        keys = [text_at(entry, "spki") for entry in maps_at(ledger, "spec", "issued")]
        assert len(set(serials)) == len(serials)
        assert len(set(keys)) == len(keys)
    replicas.await_owners(awake)


def test_the_shipped_rights_suffice_and_without_them_a_replica_names_the_manifest(
    world: World, clusters: dict[str, World]
) -> None:
    kubeconfig = world.management.client_kubeconfig(USER)
    applied = [apply(world.admin, one) for one in shipped("rbac")]
    made = Replicas(world, clusters, kubeconfig)
    try:
        short = made.start()
        said = eventually(lambda: short.said("cannot share clusters"), seconds=60, what="the missing right")
        assert "manifests/sharding" in str(said["remedy"])
        short.kill()
        applied += [apply(world.admin, one) for one in shipped("sharding")]
        first, second = made.start(), made.start()
        made.await_owners(first, second)
        first.kill()
        made.await_owners(second)
    finally:
        made.close()
        for path in applied:
            world.admin.delete(path)


def apply(admin: Client, made: JsonMap) -> str:
    kind, namespace = text_at(made, "kind"), text_at(made, "metadata", "namespace")
    folder = f"/namespaces/{namespace}" if namespace else ""
    collection = f"/apis/rbac.authorization.k8s.io/v1{folder}/{kind.lower()}s"
    admin.create(collection, made)
    return f"{collection}/{text_at(made, 'metadata', 'name')}"


def shipped(base: str) -> list[JsonMap]:
    """Return the roles of a base and their bindings, to the test's user."""
    found = [one for one in cast("list[JsonMap]", manifests.objects(base)) if one["kind"] != "ServiceAccount"]
    subject: JsonMap = {"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
    return [{**one, "subjects": [subject]} if "subjects" in one else one for one in found]


def asked_for_leadership(world: World) -> int:
    """Count how often the leader's Lease was read: its holder only writes it."""
    return sum(
        (one.verb, one.resource, one.name) == ("get", "leases", "node-attestation-controller")
        for one in world.management.requests()
    )


def test_a_leader_and_replicas_that_share_never_act_beside_each_other(replicas: Replicas, world: World) -> None:
    config = world.directory / "leads.yaml"
    config.write_text((world.directory / "shared.yaml").read_text().replace("shardClusters: true", ""))
    with world.controller("--config", str(config), log="leads.log") as leader:
        eventually(lambda: leader.said("connected"), seconds=60, what="the leader")
        before = asked_for_leadership(world)
        sharing = replicas.start()
        eventually(lambda: asked_for_leadership(world) > before + LEASE / PERIOD, what="attempts to take the Lease")
        assert sharing.said("serving") is None
        assert leader.terminate() == 0
    replicas.await_owners(sharing)
    holder = text_at(world.admin.get(f"{LEASES}/node-attestation-controller"), "spec", "holderIdentity")
    assert holder == "shared-among-replicas"
