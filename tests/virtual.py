"""An event loop whose time passes at once whenever nobody has anything to do."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Turns waiting into a jump of the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        assert timeout is not None, "everybody waits, and for nothing"
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time; for tasks that only wait for each other."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def spend(self, seconds: float) -> None:
        """Let time pass within one callback."""
        self._jumping.now += seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def advance(seconds: float) -> None:
    """Let virtual time pass; a real event loop has none."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop)
    await asyncio.sleep(seconds)


def spend(seconds: float) -> None:
    """Work for so long without letting others run; a real event loop cannot."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.spend(seconds)


def now() -> float:
    """Tell the running loop's time."""
    return asyncio.get_running_loop().time()


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtually(test(*args, **kwargs))

    return run
