"""A verdict of the parsers, as a user's mistake.

Promises: one line with expected, got and remedy, without the verdict's reason, which is for controllers.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from nodeattest_cli.errors import UserError
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["user_errors"]


@contextmanager
def user_errors(what: str) -> Generator[None]:
    """Turn ``Denied`` and ``Unavailable`` within the block into ``UserError`` about ``what``."""
    try:
        yield
    except Denied as denied:
        raise UserError(f"{what}: expected {denied.expected}, got {denied.got}; {denied.remedy}") from None
    except Unavailable as unavailable:
        raise UserError(f"{what}: {unavailable.detail}; {unavailable.remedy}") from None
