"""D4 at a running controller: tokens that are bound to a machine, machines that are reset, unknown versions."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

import pytest
from attacked_world import attempted, becomes, controlled
from cases import attacks
from catalogue import Row
from exchanges import Exchange, opened, token_client
from filing_requests import Filed, Wanted, file_request
from operator_commands import rejoin_token, reset
from polling import eventually
from serving_requests import Asked, Node, certificate_of, enrol
from world import CLUSTER, NAMESPACE, World

from nodeattest_controller.model.issuance_rules import BOUND_GROUP_PREFIX, bound_group
from nodeattest_providers import registry
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ANNOTATION_SUPPORTED_VERSIONS, ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

CHALLENGE: Final = ProviderName("challenge")
SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
Attempt = Callable[[World], Filed]


@pytest.fixture(scope="module")
def guarded(world: World) -> Iterator[World]:
    """The world, with a controller in it that wants proofs."""
    with controlled(world, "d4-rejoin.log", authorizedAttestors=["challenge"]):
        yield world


# Bound tokens


def group_of(name: str, cluster: str = CLUSTER) -> str:
    return bound_group(f"{NAMESPACE}/{cluster}", f"sandbox://{name}")


def by_token_of(name: str, *groups: str, node: str = "") -> Attempt:
    """Join a genuine machine with a token whose user is in these groups."""

    def attempt(world: World) -> Filed:
        return opened(enrol(world, name), node=node).carry_out(token_client(world, *groups))

    return attempt


def by_a_rejoin_token(world: World) -> Filed:
    """Steal what an operator made for another machine."""
    owner, _ = joined(world, "d4-owner")
    reset(world, owner.name)
    token = rejoin_token(world, owner.name)
    thief = opened(enrol(world, "d4-taker"))
    return thief.carry_out(world.workload.client(world.workload.token_kubeconfig(token)))


def answered_by_another_bound_token(world: World) -> Filed:
    victim = opened(enrol(world, "d4-bound-watched"))
    answer = victim.answer(victim.first(token_client(world, group_of("d4-bound-watched"))))
    return victim.file(token_client(world, group_of("d4-bound-thief")), answer)


# Resets


def joined(world: World, name: str) -> tuple[Node, Asked]:
    """Make a machine that has joined; returns the key that it joined by, too."""
    node, asked = enrol(world, name), Asked()
    certificate_of(opened(node, asked=asked).carry_out(token_client(world)))
    return node, asked


def with_new_secret(world: World, node: Node) -> Node:
    """Give the Machine another secret, as an operator does."""
    secret = b"a new secret of the machine " + node.name.encode()
    path = world.directory / f"{node.name}.secret-2"
    path.touch(mode=0o600)
    path.write_bytes(secret)
    world.admin.patch(f"{SECRETS}/{node.name}-attestation", {"data": {"secret": base64.b64encode(secret).decode()}})
    return replace(node, attestor=registry.make_attestor(node.provider, {"secretFile": str(path)}))


def before_the_reset(world: World) -> Filed:
    node, _ = joined(world, "d4-unreset")
    return opened(with_new_secret(world, node)).carry_out(token_client(world))


def after_the_reset(name: str, prepare: Callable[[Node, Node, Asked], Exchange]) -> Attempt:
    """Ask until the controller has seen the reset: before, it refuses the new secret."""

    def attempt(world: World) -> Filed:
        old, key = joined(world, name)
        new = with_new_secret(world, old)
        reset(world, name)
        client = token_client(world)

        def filed() -> Filed | None:
            one = prepare(old, new, key).carry_out(client)
            ended = eventually(lambda: one.state().removeprefix("Approved"), seconds=60, what="the end")
            return None if ended == f"Denied:{Reason.SECRET_MISSING}" else one

        return eventually(filed, seconds=60, what="the news of the reset")

    return attempt


def another_key_after_the_rejoin(world: World) -> Filed:
    rejoin = after_the_reset("d4-reset-twice", lambda _, new, __: opened(new))
    assert certificate_of(rejoin(world))
    path = world.directory / "d4-reset-twice.secret-2"
    thief = Node(world, "d4-reset-twice", CHALLENGE, registry.make_attestor(CHALLENGE, {"secretFile": str(path)}))
    return opened(thief).carry_out(token_client(world))


# Versions


def in_version(evidence: Evidence, version: int) -> Evidence:
    return replace(evidence, version=version)


def first_of_the_future(world: World) -> Filed:
    mine = opened(enrol(world, "d4-future"))
    return mine.file(token_client(world), in_version(mine.seat.attestor.attest(mine.binding), 9))


def answer_of_the_future(world: World) -> Filed:
    mine, client = opened(enrol(world, "d4-mixed")), token_client(world)
    return mine.file(client, in_version(mine.answer(mine.first(client)), 2))


def forged_versions(world: World) -> Filed:
    mine = opened(enrol(world, "d4-downgraded"))
    evidence = in_version(mine.seat.attestor.attest(mine.binding), 2)
    forged: JsonMap = {"annotations": {ANNOTATION_SUPPORTED_VERSIONS: "insecure/v1"}}
    filed = mine.file(token_client(world), evidence, forged)
    eventually(
        lambda: filed.annotation(ANNOTATION_SUPPORTED_VERSIONS) == "challenge/v1", seconds=60, what="the right list"
    )
    return filed


def version_of_another_provider(world: World) -> Filed:
    return file_request(world, Wanted(node="d4-probe", provider="tpm", version=9))


CASES: Final[Mapping[str, Attempt]] = {
    "D4-89": by_token_of("d4-b-other", group_of("d4-b-mine")),
    "D4-90": by_token_of("d4-b-abroad", group_of("d4-b-abroad", "c2")),
    "D4-91": by_token_of("d4-b-two", group_of("d4-b-two"), group_of("d4-b-more")),
    "D4-92": by_token_of("d4-b-short", group_of("d4-b-short")[: len(BOUND_GROUP_PREFIX) + 8]),
    "D4-93": by_token_of("d4-b-named", group_of("d4-b-named"), node="d4-b-other-name"),
    "D4-94": by_token_of("d4-b-own", group_of("d4-b-own")),
    "D4-95": by_a_rejoin_token,
    "D4-96": answered_by_another_bound_token,
    "D4-97": before_the_reset,
    "D4-98": after_the_reset("d4-reset-key", lambda _, new, key: opened(new, asked=key)),
    "D4-99": after_the_reset("d4-reset-secret", lambda old, _, __: opened(old)),
    "D4-100": another_key_after_the_rejoin,
    "D4-101": after_the_reset("d4-reset-well", lambda _, new, __: opened(new)),
    "D4-102": first_of_the_future,
    "D4-103": answer_of_the_future,
    "D4-104": forged_versions,
    "D4-105": version_of_another_provider,
}


@pytest.fixture(scope="module")
def filed(guarded: World) -> Mapping[str, Future[Filed]]:
    return attempted(CASES, guarded)


@pytest.mark.parametrize(("row", "attempt"), attacks(CASES))
def test_a_token_a_reset_and_a_version_permit_nothing_else(
    filed: Mapping[str, Future[Filed]], row: Row, attempt: Attempt
) -> None:
    assert attempt
    becomes(filed[row.id].result(), row)
