"""Signatures of a cluster with many tokens: made once, in slices, and not looked at without end."""

from __future__ import annotations

import asyncio

import pytest

from nodeattest_discovery import jwt as jws
from nodeattest_discovery.controllers.bootstrap_signer import SignatureCache
from nodeattest_discovery.token import BootstrapToken

MEBIBYTE = 1 << 20
TOKENS = [BootstrapToken(f"many{number:02d}", "0123456789abcdef") for number in range(10)]


class Counting:
    """Signs, and remembers by whom."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def __call__(self, content: bytes, token: BootstrapToken) -> str:
        self.ids.append(token.id)
        return jws.sign(content, token)


async def test_one_token_more_costs_one_signature() -> None:
    made = Counting()
    signatures = SignatureCache(made)
    await signatures.prepare(b"text", TOKENS[:5])
    await signatures.prepare(b"text", TOKENS[:6])
    assert made.ids == [token.id for token in TOKENS[:6]]
    assert [signatures.sign(b"text", token) for token in TOKENS[:6]] == [jws.sign(b"text", one) for one in TOKENS[:6]]
    assert len(made.ids) == 6


@pytest.mark.parametrize(("size", "turns"), [(MEBIBYTE, len(TOKENS)), (MEBIBYTE // 5, 2), (100, 0)])
async def test_others_are_served_between_two_slices(size: int, turns: int) -> None:
    served: list[None] = []
    done = asyncio.Event()

    async def others() -> None:
        while not done.is_set():
            await asyncio.sleep(0)
            served.append(None)

    async def sign() -> None:
        await SignatureCache().prepare(b"x" * (size + 1), TOKENS)
        done.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sign())
        tasks.create_task(others())
    assert abs(len(served) - turns) <= 1
