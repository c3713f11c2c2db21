"""A user's mistake: one line that says what was expected, what was found and what to do. Exit code 2."""

from __future__ import annotations

__all__ = ["UserError"]


class UserError(Exception):
    """What was asked for cannot be done as it was asked."""
