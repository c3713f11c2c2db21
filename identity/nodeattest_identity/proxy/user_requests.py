"""Counts the requests in flight of each user, and limits them: one user's slow requests leave room for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["UserBusyError", "UserRequests"]


class UserBusyError(Exception):
    """A user has too many requests."""


class UserRequests:
    """Requests in flight, by user."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str | None] = Counter()

    @property
    def total(self) -> int:
        """Number of requests in flight."""
        return self._held.total()

    @contextmanager
    def hold(self, user: str | None) -> Generator[None]:
        """Count a request inside the context; raises ``UserBusyError``. ``user``: None for unauthenticated ones."""
        if self._held[user] >= self._limit:
            raise UserBusyError
        self._held[user] += 1
        try:
            yield
        finally:
            self._held -= Counter((user,))
