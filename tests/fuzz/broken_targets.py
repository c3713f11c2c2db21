"""Targets that the runner must find wanting, each in one way; given to the fuzzer's child as its catalogue."""

from __future__ import annotations

import threading

from fuzz.target import Target, require


def _crashes(data: bytes) -> bool:
    if data.startswith(b"b"):
        raise IndexError("a parser's bug")
    return bool(data)


def _hangs(data: bytes) -> bool:
    if data.startswith(b"b"):
        threading.Event().wait()
    return True


def _lies(data: bytes) -> bool:
    require(data != b"b", "one spelling of a value")
    return True


def _keeps_its_promise(data: bytes) -> bool:
    return data.isascii()


TARGETS = {
    "crashes": Target("crashes", _crashes, 8),
    "hangs": Target("hangs", _hangs, 8),
    "lies": Target("lies", _lies, 8),
    "sound": Target("sound", _keeps_its_promise, 8),
}
