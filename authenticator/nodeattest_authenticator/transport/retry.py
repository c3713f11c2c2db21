"""Trying again at a machine's first boot, when network, load balancer or the Machine's status may be minutes away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_discovery.node.clock import Deadline

__all__ = ["FIRST_BOOT", "retry_until"]

FIRST_BOOT: Final = 1200
"""Seconds: longer than clouds take, and near the end of a token that is not renewed (15 minutes)."""
_PAUSE: Final = 10.0
"""Seconds between two attempts, at least; as many again by random, so that a pool's machines do not ask together."""
T = TypeVar("T")


def retry_until(attempt: Callable[[], T], deadline: Deadline, *, random: Callable[[], float]) -> T:
    """Try until it works, is refused for good, or there is no time for another attempt; raises ``AgentError``."""
    while True:
        try:
            return attempt()
        except AgentError as failure:
            pause = _PAUSE * (1 + random())
            if failure.kind is not FailureKind.TEMPORARY or deadline.left < pause:
                raise
            deadline.waits_for("another attempt", f"another attempt: {failure}")
            deadline.sleep(pause)
