"""A value that is read from a file and read again when the file changes.

The file is checked at the next use, at most every few seconds. Content that cannot be used leaves the last good value
in force, and a warning is logged. A mounted ConfigMap or Secret swaps all its files at once, so a directory counts as
one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from nodeattest_providers.errors import Denied

_RECHECK: Final = 5.0
"""Seconds between two checks for a change."""
_log: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


class ReloadedFile(Generic[_T]):
    """The value in force."""

    def __init__(
        self, path: Path, read: Callable[[Path], _T], *, what: str, pattern: str = "*", monotonic: Callable[[], float]
    ) -> None:
        """Read it; raises what ``read`` raises. ``pattern``: the files that count where ``path`` is a directory."""
        self._path, self._read, self._what, self._pattern = path, read, what, pattern
        self._monotonic = monotonic
        self._checked = monotonic()
        self._seen = self._state()
        self._value = read(path)

    def current(self) -> _T:
        """Return the value."""
        now = self._monotonic()
        if now - self._checked >= _RECHECK:
            self._checked = now
            seen = self._state()
            if seen != self._seen:
                self._seen = seen
                self._read_again()
        return self._value

    def _read_again(self) -> None:
        try:
            self._value = self._read(self._path)
        except Denied as denied:
            _log.warning("the new %s is not used, the last good one stays: %s", self._what, denied)
        else:
            _log.info("read the %s again", self._what)

    def _state(self) -> tuple[tuple[str, int, int, int], ...]:
        try:
            files = sorted(self._path.glob(self._pattern)) if self._path.is_dir() else [self._path]
            found = [(str(one), one.stat()) for one in files]
        except OSError:
            return ()
        return tuple((name, status.st_ino, status.st_mtime_ns, status.st_size) for name, status in found)


def read_bounded(path: Path, limit: int, too_large: Denied) -> bytes:
    """Read at most ``limit`` bytes; raises ``too_large`` for more, OSError where the file cannot be read."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise too_large
    return content
