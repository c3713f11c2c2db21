"""D4 at a running controller: what a stolen token and an observed answer are worth, by each provider that proves.

Each attacker has machines and Machines of its own; all try at once, each end is then awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

import pytest
from attacked_world import attempted, becomes, controlled
from cases import attacks
from catalogue import Row
from exchanges import evidence_of, node_client, opened, settled, token_client, tpm_node
from filing_requests import Filed, Wanted, file_request
from kubelet_requests import register_node
from operator_commands import collection_of, made_anew
from polling import eventually
from serving_requests import Asked, Node, certificate_of, enrol
from world import NAMESPACE, World

from nodeattest_providers import registry
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE, ANNOTATION_REASON
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import Client

MACHINES: Final = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
CLUSTERS: Final = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters"


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster that wants proofs; one machine has joined it."""

    world: World
    member: Node
    member_key: Asked
    tpm: Node
    """A machine with a TPM that the platform vouches for; it never joins, so all may try at it, in turn."""
    turn: Lock

    def token(self) -> Client:
        """Steal a token."""
        return token_client(self.world)

    def machine(self, name: str) -> Node:
        """Make a machine with a secret of its own."""
        return enrol(self.world, name)


@pytest.fixture(scope="module")
def scene(world: World) -> Iterator[Scene]:
    with controlled(world, "d4.log", authorizedAttestors=["challenge", "tpm"]):
        made, key = enrol(world, "d4-member"), Asked()
        world.machine("d4-tpm", tpm=world.tpm("d4-tpm"))
        with tpm_node(world, "d4-tpm") as tpm:
            built = Scene(world, made, key, tpm, Lock())
            certificate_of(opened(made, asked=key).carry_out(built.token()))
            register_node(world, "d4-member")
            yield built


Attempt = Callable[[Scene], Filed]
Enrolled = Callable[[Scene], Node]


# With a stolen token


def name_of_a_foreign_node(scene: Scene) -> Filed:
    """The thief's guest reports the host name of a Node that was there before."""
    register_node(scene.world, "d4-elder", "sandbox://somebody-else")
    thief = enrol(scene.world, "d4-liar", addresses=[("Hostname", "d4-elder")])
    return opened(thief, node="d4-elder").carry_out(scene.token())


def downgrade(scene: Scene) -> Filed:
    scene.machine("d4-down")
    return file_request(scene.world, Wanted(node="d4-down"))


def no_proof(scene: Scene) -> Filed:
    mine = opened(scene.machine("d4-bare"))
    return mine.file(scene.token(), Evidence(mine.seat.provider, 1, {}))


def guessed_secret(scene: Scene) -> Filed:
    victim = scene.machine("d4-guessed")
    path = scene.world.directory / "d4.guess"
    path.touch(mode=0o600)
    path.write_bytes(b"hunter2-hunter2-hunter2-hunter2-hunter2")
    guessing = replace(victim, attestor=registry.make_attestor(victim.provider, {"secretFile": str(path)}))
    return opened(guessing).carry_out(scene.token())


def anothers_machine(scene: Scene) -> Filed:
    scene.machine("d4-wanted")
    thief = scene.machine("d4-genuine")
    return opened(thief, node="d4-wanted", provider_id="sandbox://d4-wanted").carry_out(scene.token())


def anothers_name(scene: Scene) -> Filed:
    return opened(scene.machine("d4-misnamed"), node="d4-member").carry_out(scene.token())


def second_join(scene: Scene) -> Filed:
    return opened(scene.member).carry_out(scene.token())


def one_key_for_two(scene: Scene) -> Filed:
    return opened(scene.machine("d4-second"), asked=scene.member_key).carry_out(scene.token())


def machine_of_another_cluster(scene: Scene) -> Filed:
    body: JsonMap = {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "d4-c2"},
        "spec": {},
    }
    other = scene.world.admin.create(CLUSTERS, body)
    fleet.create_machine(scene.world.admin, "d4-abroad", cluster=other, provider_id="sandbox://d4-abroad")
    return opened(scene.member, node="d4-abroad", provider_id="sandbox://d4-abroad").first(scene.token())


def forged_challenge(scene: Scene) -> Filed:
    mine, client, forged = opened(scene.machine("d4-forged")), scene.token(), '{"v":1}'
    first = mine.first(client, {"annotations": {ANNOTATION_CHALLENGE: forged}})
    return mine.file(client, mine.answer(first, before=forged))


# With what could be observed


def with_new_key(enrolled: Enrolled) -> Attempt:
    def attempt(scene: Scene) -> Filed:
        victim, client = opened(enrolled(scene)), scene.token()
        answer = victim.answer(victim.first(client))
        return opened(victim.seat).file(client, answer)

    return attempt


def by_another_token(enrolled: Enrolled) -> Attempt:
    def attempt(scene: Scene) -> Filed:
        victim = opened(enrolled(scene))
        answer = victim.answer(victim.first(scene.token()))
        return victim.file(scene.token(), answer)

    return attempt


def to_ones_own_first(enrolled: Enrolled) -> Attempt:
    """Copy the victim's first request, and link the victim's answer to the copy."""

    def attempt(scene: Scene) -> Filed:
        victim, thief = opened(enrolled(scene)), scene.token()
        first = victim.first(scene.token())
        answer = victim.answer(first)
        copy = victim.file(thief, evidence_of(first))
        assert settled(copy)
        return victim.file(thief, linked(answer, copy.name, text_at(copy.read(), "metadata", "uid")))

    return attempt


def linked(answer: Evidence, name: str, uid: str) -> Evidence:
    return replace(answer, data={**answer.data, "first": {"name": name, "uid": uid}})


def to_no_first(scene: Scene) -> Filed:
    mine, client = opened(scene.machine("d4-nofirst")), scene.token()
    answer = mine.answer(mine.first(client))
    return mine.file(client, linked(answer, "nobody-filed-this", "00000000-0000-4000-8000-000000000000"))


def to_itself(scene: Scene) -> Filed:
    """Answer a first request that is itself an answer."""
    mine, client = opened(scene.machine("d4-chain")), scene.token()
    answer = mine.answer(mine.first(client))
    broken = mine.file(scene.token(), answer)
    return mine.file(client, linked(answer, broken.name, text_at(broken.read(), "metadata", "uid")))


def copied(*, returned: int) -> Attempt:
    """File one answer twice under one token; both are the node's own."""

    def attempt(scene: Scene) -> Filed:
        mine, client = opened(scene.machine(f"d4-copied-{returned}")), scene.token()
        answer = mine.answer(mine.first(client))
        return (mine.file(client, answer), mine.file(client, answer))[returned]

    return attempt


# By nodes and people


def of_another_node(scene: Scene) -> Filed:
    thief = scene.machine("d4-neighbour")
    return opened(scene.member, node="d4-member").first(node_client(scene.world, thief.name))


def by_an_administrator(scene: Scene) -> Filed:
    admin = scene.world.workload.client(scene.world.workload.client_kubeconfig("d4-root", ["system:masters"]))
    return opened(scene.machine("d4-byhand")).first(admin)


def after_the_machine(scene: Scene) -> Filed:
    """Renew when the Machine is gone; until the controller has seen that, it still asks for proof."""
    mine, client = opened(scene.machine("d4-gone")), node_client(scene.world, "d4-gone")
    certificate_of(mine.carry_out(scene.token()))
    scene.world.admin.delete(f"{MACHINES}/d4-gone")

    def refused() -> Filed | None:
        first = opened(mine.seat).first(client)
        eventually(
            lambda: first.annotation(ANNOTATION_CHALLENGE) or first.annotation(ANNOTATION_REASON) or first.state(),
            seconds=60,
            what="the answer to the renewal",
        )
        return first if first.annotation(ANNOTATION_REASON) else None

    return eventually(refused, seconds=60, what="the news of the Machine's end")


def between_the_rounds(scene: Scene) -> Filed:
    mine, client = opened(scene.machine("d4-mortal")), scene.token()
    answer = mine.answer(mine.first(client))
    scene.world.admin.delete(f"{MACHINES}/d4-mortal")
    return mine.file(client, answer)


def made_anew_between(scene: Scene) -> Filed:
    mine, client = opened(scene.machine("d4-reborn")), scene.token()
    answer = mine.answer(mine.first(client))
    found = scene.world.admin.get(f"{MACHINES}/d4-reborn")
    assert collection_of(found) == MACHINES
    made_anew(scene.world, found)
    return mine.file(client, answer)


def by_anothers_tpm(scene: Scene) -> Filed:
    scene.world.machine("d4-tpm-wanted", tpm=scene.world.tpm("d4-tpm-wanted"))
    return opened(replace(scene.tpm, name="d4-tpm-wanted")).carry_out(scene.token())


def secret(name: str) -> Enrolled:
    return lambda scene: scene.machine(name)


def by_tpm(scene: Scene) -> Node:
    return scene.tpm


def in_turn(attempt: Attempt) -> Attempt:
    def one(scene: Scene) -> Filed:
        with scene.turn:
            return attempt(scene)

    return one


CASES: Final[Mapping[str, Attempt]] = {
    "D4-63": name_of_a_foreign_node,
    "D4-64": downgrade,
    "D4-65": no_proof,
    "D4-66": guessed_secret,
    "D4-67": anothers_machine,
    "D4-68": anothers_name,
    "D4-69": by_another_token(secret("d4-watched")),
    "D4-70": with_new_key(secret("d4-rekeyed")),
    "D4-71": to_ones_own_first(secret("d4-replayed")),
    "D4-72": to_no_first,
    "D4-73": to_itself,
    "D4-74": copied(returned=1),
    "D4-75": copied(returned=0),
    "D4-76": second_join,
    "D4-77": one_key_for_two,
    "D4-78": machine_of_another_cluster,
    "D4-79": of_another_node,
    "D4-80": after_the_machine,
    "D4-81": by_an_administrator,
    "D4-82": forged_challenge,
    "D4-83": between_the_rounds,
    "D4-84": made_anew_between,
    "D4-85": in_turn(by_anothers_tpm),
    "D4-86": in_turn(by_another_token(by_tpm)),
    "D4-87": in_turn(with_new_key(by_tpm)),
    "D4-88": in_turn(to_ones_own_first(by_tpm)),
}


@pytest.fixture(scope="module")
def filed(scene: Scene) -> Mapping[str, Future[Filed]]:
    return attempted(CASES, scene)


@pytest.mark.swtpm
@pytest.mark.parametrize(("row", "attempt"), attacks(CASES))
def test_who_steals_a_token_or_an_answer_gets_nothing_by_it(
    filed: Mapping[str, Future[Filed]], row: Row, attempt: Attempt
) -> None:
    assert attempt
    becomes(filed[row.id].result(), row)
