"""Work, counted: a law about cost that holds on a slow and busy machine, too."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def lines_run(action: Callable[[], object]) -> int:
    """Count the lines of Python that an action runs, those of libraries included.

    The garbage collector waits meanwhile: it would run finalizers of whatever came before.
    """
    ran = 0

    def count(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal ran
        ran += event == "line"
        return count

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return ran
