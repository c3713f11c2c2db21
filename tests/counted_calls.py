"""Counts what an action does instead of its time: a count is the same on every machine, whatever else runs there."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction


@contextmanager
def without_garbage_collection() -> Generator[None]:
    """Keep the garbage collector from running the finalizers of whatever came before."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def calls(action: Callable[[], object], *, of: CodeType | None = None) -> int:
    """Count the calls of functions, Python's and C's, that an action makes; or those of one function."""
    count = 0

    def counted(frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"} if of is None else event == "call" and frame.f_code is of

    with without_garbage_collection():
        sys.setprofile(counted)
        try:
            action()
        finally:
            sys.setprofile(None)
    return count


def lines_run(action: Callable[[], object]) -> int:
    """Count the lines of Python that an action runs, those of libraries included."""
    ran = 0

    def count(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal ran
        ran += event == "line"
        return count

    before = sys.gettrace()
    with without_garbage_collection():
        sys.settrace(count)
        try:
            action()
        finally:
            sys.settrace(before)
    return ran
