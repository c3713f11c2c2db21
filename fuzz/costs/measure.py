"""CPU and memory of one run of a handler, in units that do not depend on the machine much.

CPU is this thread's own time, so that other processes hardly matter, as the best of several runs. It is given in
milliseconds of a processor on which ``calibrate`` takes ``REFERENCE`` seconds. Memory is the peak of what Python's
allocator hands out (tracemalloc): what OpenSSL holds for a moment is not in it.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

__all__ = ["MIB", "REFERENCE", "calibrate", "milliseconds", "peak"]

MIB: Final = 1 << 20
REFERENCE: Final = 0.010
"""Seconds of the calibration loop on the processor that the bounds were declared for."""
_STEPS: Final = 100_000
_ROUNDS: Final = 9


def calibrate() -> float:
    """Return the seconds that a fixed loop takes here: the best of some runs."""
    return min(_seconds(_loop) for _ in range(_ROUNDS))


def milliseconds(action: Callable[[], object], unit: float, runs: int = 3) -> float:
    """Return the CPU time of an action, the best of some runs, in milliseconds of the reference processor."""
    return min(_seconds(action) for _ in range(runs)) / unit * REFERENCE * 1000


def peak(action: Callable[[], object]) -> float:
    """Return how many MiB an action holds at most, besides what was held before."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        return (tracemalloc.get_traced_memory()[1] - before) / MIB
    finally:
        tracemalloc.stop()


def _seconds(action: Callable[[], object]) -> float:
    began = time.thread_time()
    action()
    return time.thread_time() - began


def _loop() -> int:
    value, table = 1, {number: number for number in range(64)}
    for number in range(_STEPS):
        value = (value * 31 + table[number & 63]) & 0xFFFFFF
    return value
