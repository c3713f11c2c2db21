"""A user's mistake: one line with what was expected, what was found and what to do. Exit code 2."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["UserError", "user_errors"]


class UserError(Exception):
    """What was asked for cannot be done as it was asked."""


@contextmanager
def user_errors(what: str) -> Generator[None]:
    """Turn ``Denied`` and ``Unavailable`` within the block into ``UserError`` about ``what``, without their reasons."""
    try:
        yield
    except Denied as denied:
        raise UserError(f"{what}: expected {denied.expected}, got {denied.got}; {denied.remedy}") from None
    except Unavailable as unavailable:
        raise UserError(f"{what}: {unavailable.detail}; {unavailable.remedy}") from None
