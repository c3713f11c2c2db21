"""Serving certificates of machines whose platform tells addresses: what it says now decides, and it alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from addressed_provider import Platform, installed_platform, places
from kubelet_requests import Kubelet, kubelet_asks
from polling import eventually
from serving_requests import Asked, certificate_of, end_of
from world import World

from nodeattest_providers.identifiers import ANNOTATION_REASON
from nodeattest_sandbox.apiserver.jsonvalue import JsonValue

APPROVING: dict[str, JsonValue] = {"authorizedAttestors": ["addressed"], "serving": {"kubelet": "Approve"}}


@pytest.fixture(scope="module")
def platform(world: World) -> Iterator[Platform]:
    world.set_policy(**APPROVING)
    with installed_platform(world) as platform, world.controller("--leader-elect", "false", log="live.log") as running:
        world.await_service(running)
        yield platform


def test_names_of_an_attested_request_are_those_that_the_platform_lists_now(platform: Platform) -> None:
    name = "live-1"
    node, (released, current) = platform.joined(name), places(name)
    platform.tell(name, current)
    assert end_of(node.file(Asked(dns_names=[name], ip_addresses=[released]))) == "Denied:AddressNotAllowed"
    assert end_of(node.file(Asked(ip_addresses=[current, released]))) == "Denied:AddressNotAllowed"
    assert certificate_of(node.file(Asked(dns_names=[name], ip_addresses=[current])))


def test_a_platform_that_does_not_answer_is_waited_for_and_nothing_else_is_believed(platform: Platform) -> None:
    name = "live-111"
    node, (listed, _) = platform.joined(name), places(name)
    attested = node.file(Asked(ip_addresses=[listed]))
    kubelets = kubelet_asks(platform.world, Kubelet(node=name, ip_addresses=[listed]))
    for one in (attested, kubelets):
        eventually(lambda one=one: one.annotation(ANNOTATION_REASON).startswith("PlatformUnavailable"), what="the wait")
        assert one.state() == ""
    platform.tell(name, listed)
    assert end_of(attested) == "issued"
    eventually(lambda: kubelets.state() == "Approved", what="the approval")


def test_kubelets_own_request_asks_no_platform_where_the_policy_dropped_its_provider(platform: Platform) -> None:
    name, world = "live-11111", platform.world
    platform.joined(name)
    listed, _ = places(name)
    world.set_policy(authorizedAttestors=["tpm"], serving={"kubelet": "Approve"})
    world.await_policy()
    try:
        filed = kubelet_asks(world, Kubelet(node=name, ip_addresses=[listed]))
        eventually(lambda: filed.state() == "Approved", what="the approval by the Machine's own list")
    finally:
        world.set_policy(**APPROVING)
        world.await_policy()
