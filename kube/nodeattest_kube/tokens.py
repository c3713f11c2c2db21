"""The bearer token of an endpoint, read again as its file is rotated.

Source: client-go transport/token_source.go (re-read each minute; a failed re-read keeps the token in hand).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodeattest_kube.errors import Unauthorized

__all__ = ["TokenSource"]

_REREAD: Final = 60.0
"""Seconds; a projected service-account token is replaced when 80 % of its life, at least 8 minutes, is gone."""


class TokenSource:
    """Gives the current token; ``clock`` is monotonic seconds."""

    def __init__(self, token: str | None, file: Path | None, *, clock: Callable[[], float]) -> None:
        self._token = token
        self._file = file
        self._clock = clock
        self._read_again = float("-inf")

    def current(self) -> str | None:
        """Return the token, None when the endpoint has none; ``Unauthorized`` when its file never gave one."""
        if self._file is not None and self._clock() >= self._read_again:
            self._token = _read(self._file) or self._token
            self._read_again = self._clock() + _REREAD
            if self._token is None:
                self.refused()
                raise Unauthorized(401, "Unauthorized", f"no token in {self._file}; check the mounted service account")
        return self._token

    def refused(self) -> None:
        """Note that the server refused the token: the file is read again before the next request."""
        self._read_again = float("-inf")


def _read(file: Path) -> str | None:
    """Read a token file; None when it is absent or holds no token (RFC 6750 §2.1: visible ASCII)."""
    try:
        text = file.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return text if text and text.isprintable() and " " not in text else None
