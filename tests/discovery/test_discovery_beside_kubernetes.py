"""The token controllers beside kube-controller-manager's: the same Secrets, the same fate, the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from odd_secrets import odd_secrets
from polling import until
from token_world import KUBECONFIG, SECRETS, TokenCluster, signature, working

from nodeattest_sandbox.apiserver.jsonvalue import map_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane, controller_manager

pytestmark = pytest.mark.conformance
THEIRS = ("bootstrapsigner", "tokencleaner")
PAST = "2020-01-01T00:00:00Z"


@pytest.fixture
def cluster(real_control_plane: ControlPlane) -> Iterator[TokenCluster]:
    made = TokenCluster(real_control_plane)
    made.clean()
    yield made
    made.clean()


def fill(cluster: TokenCluster) -> None:
    """Publish cluster-info with stale signatures in it, and create one Secret an oddity."""
    stale = {"jws-kubeconfig-": "x", "jws-kubeconfig-not-a-token": "x", "jws-kubeconfig-t00000": "x"}
    cluster.publish({"kubeconfig": KUBECONFIG, "note": "kept", **stale})
    for odd in odd_secrets("t"):
        cluster.admin.create(SECRETS, odd.body)


def fate(cluster: TokenCluster) -> tuple[dict[str, object], frozenset[str]]:
    """Return cluster-info's data and the numbers of the Secrets that are left."""
    names = {text_at(map_at(secret, "metadata"), "name") for secret in cluster.secrets()}
    return dict(cluster.info()), frozenset(name for name in names if name.startswith("bootstrap-token-t"))


def is_settled(cluster: TokenCluster) -> bool:
    """Tell whether the oddities have the fate that is expected, of which no later run changes anything."""
    signed = {odd.id for odd in odd_secrets("t") if odd.signed}
    left = frozenset(odd.name for odd in odd_secrets("t") if not odd.cleaned)
    return cluster.signed_ids() == signed and fate(cluster)[1] == left


async def work_of(cluster: TokenCluster, number: int) -> None:
    """Give signer and cleaner one token each, and wait until they are done, so with what was there before, too."""
    signed, cleaned = f"w{number:05d}", f"x{number:05d}"
    cluster.add(signed)
    cluster.add(cleaned, expiration=PAST)
    await until(lambda: signed in cluster.signed_ids(), "the signature with a later token")
    await until(lambda: not cluster.has(f"bootstrap-token-{cleaned}"), "the end of a later token")


async def test_odd_secrets_have_the_same_fate_and_the_same_bytes(cluster: TokenCluster, assets: Path) -> None:
    fill(cluster)
    with controller_manager(cluster.plane, assets, THEIRS):
        await until(
            lambda: is_settled(cluster), "the end of kube-controller-manager's work", state=lambda: fate(cluster)
        )
        theirs = fate(cluster)
    cluster.clean()
    fill(cluster)
    async with working(cluster.kubeconfig()):
        await until(lambda: is_settled(cluster), "the end of our work", state=lambda: fate(cluster))
        ours = fate(cluster)
    assert ours[1] == theirs[1]
    assert sorted(ours[0].items()) == sorted(theirs[0].items())


async def test_both_at_once_settle_without_a_storm(cluster: TokenCluster, assets: Path) -> None:
    cluster.publish()
    before = len(cluster.plane.requests())
    with controller_manager(cluster.plane, assets, THEIRS):
        async with working(cluster.kubeconfig()) as told:
            tokens = [cluster.add(f"s{number:05d}") for number in range(20)]
            await until(lambda: len(cluster.signed_ids()) == 20)
            for token in tokens[::2]:
                cluster.remove(token.id)
            cluster.edit(kubeconfig="anew\n")
            await until(lambda: len(cluster.signed_ids()) == 10)
            for number in range(5):
                await work_of(cluster, number)
    done = len(writes_since(cluster, before))
    # Of both, a change has one successful write at most; others lose the race once.
    assert done <= 3 * (31 + 2 * 5)
    assert cluster.info()["jws-kubeconfig-s00001"] == signature(tokens[1], "anew\n")
    assert told.signings or done


def writes_since(cluster: TokenCluster, count: int, *, lost: bool = True) -> list[str]:
    """Return who wrote tokens or cluster-info since a number of requests, tests apart; ``lost``: lost races, too."""
    return [
        f"{entry.user} {entry.verb} {entry.name}"
        for entry in cluster.plane.requests()[count:]
        if entry.verb in {"update", "patch", "delete", "create"}
        and entry.resource in {"secrets", "configmaps"}
        and entry.user != "admin"
        and (lost or entry.code != HTTPStatus.CONFLICT)
    ]
