"""Bytes as a file; the runner lets temporary files live in memory, and removes what a fuzzer's abrupt end leaves."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def as_file(data: bytes) -> Generator[Path]:
    """Hold bytes in a file for a while."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
