"""Long work in one event loop, in slices: other tasks run between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Final, TypeVar

__all__ = ["BATCH", "in_batches"]

T = TypeVar("T")

BATCH: Final = 200
"""Things that are worked on before other tasks may run: some 20 µs each, so 4 ms."""


async def in_batches(things: Iterable[T], size: int = BATCH) -> AsyncGenerator[T]:
    """Yield every thing, and let other tasks run before each batch."""
    for number, thing in enumerate(things):
        if number % size == 0:
            await asyncio.sleep(0)
        yield thing
