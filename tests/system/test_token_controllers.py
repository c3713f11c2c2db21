"""The token controllers in the controller's process: for the fleet's clusters, by leader, with the shipped rights."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from polling import eventually
from token_rights import GROUPS, USER, apply, shipped, withdraw
from token_world import TokenCluster, signature
from world import NAMESPACE, World
from write_gate import Call, Gate

from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at

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


def test_they_are_off_unless_named(world: World, tokens: TokenCluster) -> None:
    tokens.publish()
    tokens.add("sys003", expiration=soon(-5))
    with world.controller("--leader-elect", "false", log="off.log") as controller:
        world.await_service(controller)
        assert not tokens.signed_ids()
        assert tokens.has("bootstrap-token-sys003")


def test_alone_they_ask_for_nothing_but_tokens_and_cluster_info(world: World, tokens: TokenCluster) -> None:
    only = TokenCluster(world.workload, USER, GROUPS)
    world.route_workload(only.kubeconfig().read_bytes())
    applied = apply(tokens.admin, shipped("workload-discovery"))
    only.publish()
    before = len(only.requests())
    try:
        flags = ("--leader-elect", "false", "--controllers", "bootstrap-signer,token-cleaner")
        with world.controller(*flags, log="alone.log"):
            only.add("sys010")
            only.add("sys011", expiration=soon(-5))
            eventually(lambda: only.signed_ids() == {"sys010"}, what="the signature")
            eventually(lambda: not only.has("bootstrap-token-sys011"), what="the expired token to go")
    finally:
        withdraw(tokens.admin, applied)
        world.route_workload(world.workload.admin_kubeconfig.read_bytes())
    asked = only.requests()[before:]
    assert {entry.resource for entry in asked} == {"secrets", "configmaps"}
    assert 403 not in {entry.code for entry in asked}


def test_a_missing_right_is_told_on_the_cluster_with_its_manifest_and_used_when_it_comes(
    world: World, tokens: TokenCluster
) -> None:
    poor = TokenCluster(world.workload, USER, GROUPS)
    world.route_workload(poor.kubeconfig().read_bytes())
    applied: list[str] = []
    poor.publish()
    poor.add("sys020")
    try:
        with world.controller("--leader-elect", "false", *ENABLED, log="poor.log"):
            event = eventually(lambda: told_on_cluster(world), seconds=60, what="the Event")
            assert "403" in text_at(event, "message")
            assert "manifests/workload-discovery" in text_at(event, "message")
            applied += apply(tokens.admin, shipped("workload-discovery", "nodeattest:bootstrap-signer"))
            eventually(lambda: poor.signed_ids() == {"sys020"}, seconds=90, what="the signature")
    finally:
        withdraw(tokens.admin, applied)
        world.route_workload(world.workload.admin_kubeconfig.read_bytes())


def told_on_cluster(world: World) -> JsonMap | None:
    events = world.admin.list(f"/api/v1/namespaces/{NAMESPACE}/events")
    return next((one for one in events if text_at(one, "reason") == "TokenControllerForbidden"), None)


def test_a_cluster_that_hangs_delays_no_other(world: World, tokens: TokenCluster) -> None:
    clusters = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = world.workload.admin_kubeconfig.read_text()
        hung = kubeconfig.replace(world.workload.server, f"https://127.0.0.1:{silent.getsockname()[1]}")
        fleet.create_cluster(
            world.admin,
            "a-hung-one",
            namespace=NAMESPACE,
            kubeconfig=hung.encode(),
            ca_certificate=world.workload.ca_certificate.read_bytes(),
            ca_key=world.workload.ca_key.read_bytes(),
        )
        try:
            tokens.publish()
            with world.controller("--leader-elect", "false", *ENABLED, log="hung.log") as controller:
                tokens.add("sys030")
                eventually(lambda: tokens.signed_ids() == {"sys030"}, what="the other cluster's signature")
                silent.settimeout(60)
                silent.accept()[0].close()  # it was called, too
                assert controller.said("connected")
        finally:
            world.admin.delete(f"{clusters}/a-hung-one")


def test_what_happened_while_the_controller_was_dead_is_made_up_for(world: World, tokens: TokenCluster) -> None:
    tokens.publish()
    with world.controller("--leader-elect", "false", *ENABLED, log="dead.log") as controller:
        tokens.add("sys040")
        eventually(lambda: tokens.signed_ids() == {"sys040"}, what="the signature")
        controller.kill()
        tokens.remove("sys040")
        kept = tokens.add("sys041")
        tokens.add("sys042", expiration=soon(-1))
        tokens.edit(kubeconfig="another\n")
        controller.start()
        eventually(lambda: tokens.signed_ids() == {"sys041"}, what="the new signature")
        assert tokens.info()["jws-kubeconfig-sys041"] == signature(kept, "another\n")
        eventually(lambda: not tokens.has("bootstrap-token-sys042"), what="the expired token to go")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_kill_around_a_write_costs_nothing(world: World, tokens: TokenCluster, method: str, moment: str) -> None:
    with Gate(world.workload) as gate:
        path = gate.kubeconfig(tokens.kubeconfig(), world.directory / f"tokens-{method}-{moment}.kubeconfig")
        world.route_workload(path.read_bytes())
        controller = world.controller("--leader-elect", "false", *ENABLED, log=f"tokens-{method}-{moment}.log")
        killed = threading.Event()

        def decide(call: Call) -> bool:
            if call.method != method or killed.is_set():
                return True
            controller.kill()
            killed.set()
            return False

        if moment == "before":
            gate.before = decide
        else:
            gate.after = decide
        tokens.publish()
        token = tokens.add("sys050")
        tokens.add("sys051", expiration=soon(-1))
        try:
            with controller:
                assert killed.wait(60)
                controller.start()
                eventually(lambda: tokens.signed_ids() == {"sys050"}, what="the signature")
                eventually(lambda: not tokens.has("bootstrap-token-sys051"), what="the expired token to go")
                assert tokens.info()["jws-kubeconfig-sys050"] == signature(token)
        finally:
            world.route_workload(world.workload.admin_kubeconfig.read_bytes())


def test_of_two_replicas_one_signs_and_the_other_goes_on_when_it_dies(world: World, tokens: TokenCluster) -> None:
    tokens.publish()
    with ExitStack() as stack:
        first, second = (world.controller(*ENABLED, log=f"token-replica-{number}.log") for number in range(2))
        stack.enter_context(first)
        eventually(lambda: first.said("connected"), seconds=60, what="the leader's connection")
        stack.enter_context(second)
        tokens.add("sys060")
        eventually(lambda: tokens.signed_ids() == {"sys060"}, what="the leader's signature")
        assert second.said("signed cluster-info") is None
        first.kill()
        tokens.add("sys061")
        eventually(lambda: tokens.signed_ids() == {"sys060", "sys061"}, seconds=60, what="the successor's signature")
        eventually(lambda: second.said("signed cluster-info"), what="its log line, which follows the write")
        assert second.terminate() == 0
