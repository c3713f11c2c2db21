"""One target under libFuzzer: ``python -m fuzz.child NAME COUNTS SECONDS [libFuzzer's arguments]``.

The only module that needs atheris. COUNTS is a file of 16 bytes: how many inputs ran, and how many gave a value.
After SECONDS the process ends and says where it was: libFuzzer bounds the time of an input, not that of a mutation.
"""

from __future__ import annotations

import faulthandler
import mmap
import sys
from importlib import import_module
from random import Random
from typing import Final, cast

import atheris  # pyright: ignore[reportMissingImports] - no wheel for every platform

from fuzz import structure
from fuzz.target import Target

COUNTS_SIZE: Final = 16
INSTRUMENTED: Final = [
    *("nodeattest_providers", "nodeattest_kube", "nodeattest_discovery", "nodeattest_identity"),
    *("nodeattest_authenticator", "nodeattest_controller", "nodeattest_cli.token", "nodeattest_cli.cluster_info"),
    "yaml",
]
"""Packages whose coverage guides the fuzzer: the parsers, those of their libraries that are Python, second opinions."""


def main() -> None:
    """Fuzz for as long as libFuzzer's arguments say; ends the process."""
    _, name, counts, seconds, *arguments = sys.argv
    with atheris.instrument_imports(include=INSTRUMENTED):  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue] - it has no types
        targets = cast("dict[str, Target]", import_module("fuzz.catalogue").TARGETS)
    target = targets[name]
    faulthandler.dump_traceback_later(float(seconds), exit=True)  # from now on: imports take long on a busy machine
    with open(counts, "r+b") as file:  # noqa: PTH123 - mmap needs the descriptor only
        shared = mmap.mmap(file.fileno(), COUNTS_SIZE)
    ran = read = 0

    def one_input(data: bytes) -> None:
        nonlocal ran, read
        ran += 1
        shared[:8] = ran.to_bytes(8, "little")
        if target.law(data):
            read += 1
            shared[8:] = read.to_bytes(8, "little")

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        return structure.mutate(data, size, Random(seed), atheris.Mutate)

    atheris.Setup([sys.argv[0], f"-max_len={target.max_len}", *arguments], one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
