"""D8 where a platform tells addresses: what a machine has no more is not its own, whatever its Machine still lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest
from addressed_provider import Platform, installed_platform, places
from attacked_world import becomes, controlled
from cases import attacks
from catalogue import Row
from filing_requests import Filed
from kubelet_requests import Kubelet, kubelet_asks
from serving_requests import Asked
from world import World


@pytest.fixture(scope="module")
def platform(world: World) -> Iterator[Platform]:
    policy = {"authorizedAttestors": ["addressed"], "serving": {"kubelet": "Approve"}}
    with installed_platform(world) as platform, controlled(world, "d8-platform.log", **policy):
        yield platform


Attempt = Callable[[Platform, str], Filed]


def attested_for_a_released_address(platform: Platform, name: str) -> Filed:
    node, (released, current) = platform.joined(name), places(name)
    platform.tell(name, current)
    return node.file(Asked(dns_names=[name], ip_addresses=[released]))


def kubelets_for_a_released_address(platform: Platform, name: str) -> Filed:
    released, current = places(name)
    platform.joined(name)
    platform.tell(name, current)
    return kubelet_asks(platform.world, Kubelet(node=name, ip_addresses=[released]))


def while_the_platform_is_silent(platform: Platform, name: str) -> Filed:
    node, (listed, _) = platform.joined(name), places(name)
    return node.file(Asked(ip_addresses=[listed]))


CASES: Final[Mapping[str, Attempt]] = {
    "D8-106": attested_for_a_released_address,
    "D8-107": kubelets_for_a_released_address,
    "D8-108": while_the_platform_is_silent,
}


@pytest.mark.parametrize(("row", "attempt"), attacks(CASES))
def test_what_the_platform_does_not_confirm_is_not_certified(platform: Platform, row: Row, attempt: Attempt) -> None:
    becomes(attempt(platform, f"d8-{'p' * int(row.id.removeprefix('D8-10'))}"), row)
