"""Which tests run in which process (pytest-xdist): a file's tests together, the long ones first.

A file's tests share control planes and keys, so they stay in one process. Every process makes its own worlds, with
folders and ports of its own. Without ``-n`` only the order has an effect.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_SPLIT: Final = frozenset({"tests/cli/test_demo.py"})
"""Files whose tests share nothing and take long: each test is distributed alone."""
_FIRST: Final = tuple(f"tests/{folder}/" for folder in ("capi", "system", "conformance", "attacks", "cli", "discovery"))
"""Folders that take longest, in this order; the many short tests fill the gaps at the end."""


class FileScheduling(LoadScopeScheduling):
    """Distributes files, and the tests of ``_SPLIT`` one by one."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # the order is ``order``'s
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in _SPLIT else file


def order(nodeid: str) -> int:
    """Return the rank of a test: those of ``_SPLIT`` first, then folder by folder."""
    if nodeid.partition("::")[0] in _SPLIT:
        return -1
    return next((rank for rank, folder in enumerate(_FIRST) if nodeid.startswith(folder)), len(_FIRST))
