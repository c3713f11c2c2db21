"""Whose connection makes room where none is authenticated yet."""

from __future__ import annotations

import asyncio

import pytest

from nodeattest_serving.pending_slots import PendingSlots

MOST = 64


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
