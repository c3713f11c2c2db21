"""The token controllers in the controller's process: for the fleet's clusters, by leader, with the shipped rights."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from polling import eventually
from token_world import TokenCluster, signature
from world import World

ENABLED = ("--controllers", "*,bootstrap-signer,token-cleaner")


@pytest.fixture
def tokens(world: World) -> Iterator[TokenCluster]:
    world.set_policy(authorizedAttestors=["insecure"])
    made = TokenCluster(world.workload)
    made.clean()
    yield made
    made.clean()


def soon(seconds: float) -> str:
    """Write the time in some seconds."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_a_cluster_of_the_fleet_gets_its_signatures_and_loses_expired_tokens(
    world: World, tokens: TokenCluster
) -> None:
    tokens.publish()
    with world.controller("--leader-elect", "false", *ENABLED, log="tokens.log") as controller:
        lasting = tokens.add("sys001")
        eventually(lambda: tokens.signed_ids() == {"sys001"}, seconds=60, what="the signature: the pair is at work")
        tokens.add("sys002")
        eventually(lambda: tokens.signed_ids() == {"sys001", "sys002"}, what="the signatures")
        tokens.prolong("sys002", soon(2))
        assert tokens.info()["jws-kubeconfig-sys001"] == signature(lasting)
        eventually(lambda: tokens.signed_ids() == {"sys001"}, seconds=60, what="the expired token's signature to go")
        eventually(lambda: not tokens.has("bootstrap-token-sys002"), seconds=60, what="the expired token to go")
        assert eventually(lambda: controller.said("deleted an expired bootstrap token"))["cluster"] == "fleet/c1"
        assert eventually(lambda: controller.said("signed cluster-info"), what="its log line, which follows the write")
        assert lasting.secret not in controller.log()
