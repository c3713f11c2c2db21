"""Bytes as a file, in memory where there is such a place."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["as_file", "folder"]


def folder() -> Path | None:
    """Where files cost no disk; None: wherever the system puts temporary ones."""
    memory = Path("/dev/shm")  # noqa: S108 - files in it get random names and are private
    return memory if memory.is_dir() else None


@contextmanager
def as_file(data: bytes) -> Generator[Path]:
    """Hold bytes in a file for a while."""
    with tempfile.NamedTemporaryFile(dir=folder()) as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
