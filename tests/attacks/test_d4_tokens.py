"""D4 at a running controller: a bootstrap token is worth the machine whose bootstrap configuration names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Final

import pytest
from attacked_world import attempted, becomes, controlled
from cases import attacks
from catalogue import Row
from exchanges import opened, token_client
from filing_requests import Filed
from polling import eventually
from serving_requests import enrol
from world import CLUSTER, NAMESPACE, World

from nodeattest_controller.model.issuance_rules import bound_group
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE, ANNOTATION_REASON
from nodeattest_sandbox.apiserver.jsonvalue import JsonValue
from nodeattest_sandbox.client import Client

CONFIGS: Final = f"/apis/bootstrap.cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/kubeadmconfigs"
Attempt = Callable[[World], Filed]


@pytest.fixture(scope="module")
def guarded(world: World) -> Iterator[World]:
    """The world, with a controller in it that wants proofs and the machine's own token."""
    with controlled(world, "d4-tokens.log", authorizedAttestors=["challenge"], tokenBinding="Required"):
        yield world


def holder(world: World, token: str) -> Client:
    return world.workload.client(world.workload.token_kubeconfig(token))


def rename(world: World, name: str, token: str) -> None:
    """Write another token into a machine's configuration."""
    discovery: JsonValue = {"bootstrapToken": {"token": token}}
    world.admin.patch(f"{CONFIGS}/{name}", {"spec": {"joinConfiguration": {"discovery": discovery}}})


def anothers(world: World) -> Filed:
    mine, other = world.token(), world.token()
    enrol(world, "d4-t-other", bootstrap_token=other)
    return opened(enrol(world, "d4-t-mine", bootstrap_token=mine)).carry_out(holder(world, other))


def nobodys(world: World) -> Filed:
    return opened(enrol(world, "d4-t-made", bootstrap_token=world.token())).carry_out(token_client(world))


def unnamed(world: World) -> Filed:
    return opened(enrol(world, "d4-t-unnamed")).carry_out(token_client(world))


def gone(world: World) -> Filed:
    token = world.token()
    mine = opened(enrol(world, "d4-t-gone", bootstrap_token=token))
    world.admin.delete(f"{CONFIGS}/d4-t-gone")
    thief = holder(world, token)

    def waiting() -> Filed | None:
        filed = mine.first(thief)
        told = (ANNOTATION_REASON, ANNOTATION_CHALLENGE)
        eventually(lambda: any(map(filed.annotation, told)), "an answer to a first request")
        return filed if filed.annotation(ANNOTATION_REASON) else None  # what the watch showed a moment ago lets it pass

    return eventually(waiting, "the watch's event")


def malformed(world: World) -> Filed:
    token = world.token()
    # From the first on: what the watch showed a moment ago lets a first request pass.
    return opened(enrol(world, "d4-t-odd", bootstrap_token=token[:12])).first(holder(world, token))


def answered_by_another(world: World) -> Filed:
    token = world.token()
    mine = opened(enrol(world, "d4-t-watched", bootstrap_token=token))
    return mine.file(token_client(world), mine.answer(mine.first(holder(world, token))))


def taken_back(world: World) -> Filed:
    token = world.token()
    mine = opened(enrol(world, "d4-t-back", bootstrap_token=token))
    rename(world, "d4-t-back", world.token())
    return mine.carry_out(holder(world, token))


def own(world: World) -> Filed:
    token = world.token()
    return opened(enrol(world, "d4-t-own", bootstrap_token=token)).carry_out(holder(world, token))


def bound_by_group(world: World) -> Filed:
    group = bound_group(f"{NAMESPACE}/{CLUSTER}", "sandbox://d4-t-bound")
    return opened(enrol(world, "d4-t-bound", bootstrap_token=world.token())).carry_out(token_client(world, group))


CASES: Final[Mapping[str, Attempt]] = {
    "D4-106": anothers,
    "D4-107": nobodys,
    "D4-108": unnamed,
    "D4-109": gone,
    "D4-110": malformed,
    "D4-111": answered_by_another,
    "D4-112": taken_back,
    "D4-113": own,
    "D4-114": bound_by_group,
}


@pytest.fixture(scope="module")
def filed(guarded: World) -> Mapping[str, Future[Filed]]:
    return attempted(CASES, guarded)


@pytest.mark.parametrize(("row", "attempt"), attacks(CASES))
def test_a_token_is_good_for_the_machine_whose_configuration_names_it(
    filed: Mapping[str, Future[Filed]], row: Row, attempt: Attempt
) -> None:
    assert attempt
    becomes(filed[row.id].result(), row)
