"""Signatures of a cluster with many tokens: made once, in slices, and not looked at without end."""

from __future__ import annotations

import asyncio

import pytest

from nodeattest_discovery import jwt as jws
from nodeattest_discovery.controllers.bootstrap_signer import DutyCycle, SignatureCache
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


async def test_another_text_and_another_secret_are_signed_anew() -> None:
    signatures = SignatureCache()
    await signatures.prepare(b"text", TOKENS[:1])
    other = BootstrapToken(TOKENS[0].id, "fedcba9876543210")
    assert signatures.sign(b"text", other) == jws.sign(b"text", other)
    assert signatures.sign(b"other", TOKENS[0]) == jws.sign(b"other", TOKENS[0])
    await signatures.prepare(b"other", [other])
    assert signatures.sign(b"other", other) == jws.sign(b"other", other)


async def test_what_nobody_wants_any_more_is_forgotten() -> None:
    made = Counting()
    signatures = SignatureCache(made)
    await signatures.prepare(b"text", TOKENS[:1])
    await signatures.prepare(b"text", ())
    await signatures.prepare(b"text", TOKENS[:1])
    assert len(made.ids) == 2


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


def test_what_took_long_waits_nine_times_as_long() -> None:
    now = 100.0
    pace = DutyCycle(lambda: now)
    assert pace.wait() == 0
    now = 102.0
    pace.worked(since=100.0)
    assert pace.wait() == 18.0
    now = 119.0
    assert pace.wait() == 1.0
    now = 121.0
    assert pace.wait() == 0
