"""What one verification of a TPM's answer costs, as counts: functions called, signatures checked, bytes allocated."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from types import FrameType

from handmade import Made
from tpm_world import SoftTpm, sound_round

from nodeattest_providers.csr import parse_csr

CALLS = 750
"""Of functions of ours; this answer takes 500."""
ALLOCATED = 64 << 10
"""Bytes at the peak of one verification."""


def calls_of(action: Callable[[], object]) -> Counter[str]:
    """Count calls of our functions by name, also those of the thread in which a verification runs."""
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "nodeattest_" in frame.f_code.co_filename:
            called[frame.f_code.co_name] += 1

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        action()
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    return called


def test_one_verification_checks_one_signature_and_calls_few_functions() -> None:
    answered = sound_round(SoftTpm())
    answered.verify()
    called = calls_of(answered.verify)
    assert called["signature_is_valid"] == 1
    assert called.total() <= CALLS, called


def test_one_verification_allocates_little_and_keeps_nothing() -> None:
    answered = sound_round(SoftTpm())
    for _ in range(3):
        answered.verify()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10):
            tracemalloc.reset_peak()
            answered.verify()
            assert tracemalloc.get_traced_memory()[1] - before <= ALLOCATED
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before <= ALLOCATED // 8
    finally:
        tracemalloc.stop()


def test_the_signature_of_a_request_is_checked_once_however_often_its_bytes_are_read() -> None:
    request = Made().der()

    def three_times() -> None:
        for _ in range(3):  # as the first request, as the first one that the second names, and as the second
            parse_csr(request)

    assert calls_of(three_times)["_verify_signature"] == 1
