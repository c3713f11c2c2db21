"""Whose connection makes room where none is authenticated yet."""

from __future__ import annotations

import asyncio

import pytest

from nodeattest_serving.connection_slots import ConnectionSlots
from nodeattest_serving.pending_slots import PendingSlots

MOST = 64
NETWORKS = (8, 9, 16, 32, 63, 64, 100, 1000)


class _Transport(asyncio.Transport):
    ended = False

    def abort(self) -> None:
        self.ended = True


@pytest.mark.parametrize(("addresses", "most_of_client"), [(1, MOST), (2, MOST), (4, 16), (7, 16)])
def test_no_number_of_connections_from_few_addresses_ends_a_clients_only_one(
    addresses: int, most_of_client: int
) -> None:
    slots, honest = PendingSlots(MOST, most_of_client), _Transport()
    for _ in range(MOST):
        slots.take("stranger 0", _Transport())
    slots.take("honest", honest)
    for number in range(5000):
        slots.take(f"stranger {number % addresses}", _Transport())
    assert not honest.ended


def test_of_clients_that_hold_most_the_oldest_connection_makes_room() -> None:
    slots = PendingSlots(4, 4)
    held = [(client, _Transport()) for client in ("a", "b", "b", "a")]
    for client, transport in held:
        slots.take(client, transport)
    slots.leave(*held[0])
    slots.take("a", last := _Transport())
    slots.take("c", _Transport())
    assert [each.ended for _, each in held] == [False, True, False, False]
    assert not last.ended


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("networks", NETWORKS)
@pytest.mark.parametrize("each", [1, 2, 8])
def test_a_clients_only_handshake_survives_its_first_second_beside_many_networks(networks: int, each: int) -> None:
    """Strangers come as fast as they are let; one that has to wait comes when it may."""
    clock = _Clock()
    slots, honest = PendingSlots(MOST, 16, now=clock), _Transport()
    strangers = [f"stranger {number // each % networks}" for number in range(5000)]
    for client in strangers[:MOST]:
        slots.take(client, _Transport())
        clock.now += 0.001
    clock.now += slots.delay()
    slots.take("honest", honest)
    begun = clock.now
    for client in strangers[MOST:]:
        clock.now += 0.001 + slots.delay()
        if clock.now - begun > 1.0:
            break
        slots.take(client, _Transport())
        assert not honest.ended


def test_nobody_waits_while_clients_with_several_connections_hold_more_than_a_half() -> None:
    slots = PendingSlots(MOST, 16, now=_Clock())
    for number in range(1000):
        assert slots.delay() == 0.0
        slots.take(f"stranger {number % 16}", _Transport())


def test_a_clients_only_handshake_survives_its_first_second_where_no_client_is_authenticated_by_it() -> None:
    clock = _Clock()
    slots, honest = ConnectionSlots(MOST, 16, now=clock), _Transport()
    slots.take("honest", honest)
    for number in range(1000):
        clock.now += slots.delay()
        if clock.now >= 1.0:
            break
        slots.take(f"stranger {number}", _Transport())
        assert not honest.ended
    assert clock.now >= 1.0, "one had to wait"
