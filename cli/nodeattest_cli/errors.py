"""How a command ends: exit codes (docs/commands.md), and the exceptions that lead to them. One line, no traceback."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from enum import IntEnum
from http import HTTPStatus

from nodeattest_kube.errors import ApiError
from nodeattest_providers.errors import Denied


class ExitCode(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    REFUSED = 1
    """What was found does not allow it, or is wrong; the same command will end the same way until that changes."""
    USAGE = 2
    """The command, a file or a kubeconfig is wrong, or a package is not installed; nobody was asked to change
    anything."""
    NO_ACCESS = 3
    """Not reachable, not allowed, or not yet: the same command may succeed later or with other rights."""
    INTERRUPTED = 130
    """128 + SIGINT, as shells say it."""


class UserError(Exception):
    """What was asked for cannot be done as it was asked."""

    code = ExitCode.USAGE


class StateError(UserError):
    """What was found does not allow it."""

    code = ExitCode.REFUSED


class AccessError(UserError):
    """A server was not reached, or did not allow it."""

    code = ExitCode.NO_ACCESS


_FOUND = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY})
"""Answers about the objects, not about the way to them."""


def api_error(error: ApiError, hint: str = "") -> UserError:
    """Make the error for an API server's answer; ``hint`` follows the message."""
    kind = StateError if error.status in _FOUND else AccessError
    return kind(f"{error}; {hint}" if hint else str(error))


@contextmanager
def user_errors(what: str) -> Generator[None]:
    """Turn a ``Denied`` within the block into an error about ``what``, without its reason."""
    try:
        yield
    except Denied as denied:
        raise UserError(f"{what}: expected {denied.expected}, got {denied.got}; {denied.remedy}") from None
