"""What the controllers of a cluster's tokens stand on: clock and chance, whom they tell, what they watch.

Promises: of a token only what decides about it is kept in memory. Leaves to ``watched`` what is asked for.
"""

from __future__ import annotations

import random as random_module
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Protocol

from nodeattest_discovery import informers
from nodeattest_discovery.informers import ChangeFunction
from nodeattest_kube.backoff import BackoffPolicy
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.workqueue import Timer, WorkQueue, loop_timer

__all__ = [
    "RECHECK",
    "ControllerDeps",
    "Observer",
    "TokenController",
    "cluster_info_informer",
    "seconds_until",
    "slim_token",
    "token_informer",
]

RECHECK: Final = 60.0
"""Seconds at most from the moment when the clock says that a token has expired, however the clock got there."""
_RETRY: Final = BackoffPolicy(initial=0.25, cap=30.0, jitter=0.25)
"""A join may wait for the signature, so a server that is well again is asked soon."""
_MAX_TOKENS: Final = 16 << 20
"""Bytes of tokens kept of one cluster: some ten thousand."""
_MAX_INFO: Final = 256 << 20
"""Bytes; a ConfigMap of a megabyte must be within a 64th of it (``Reflector``)."""
_MAX_INFO_OBJECTS: Final = 4
"""The selector names one object; a server that sends more is not believed."""
_KEPT_DATA: Final = ("token-id", "token-secret", "expiration", "usage-bootstrap-signing")


class TokenController(StrEnum):
    """The controllers of a cluster's tokens, named as in ``--controllers``."""

    SIGNER = "bootstrap-signer"
    CLEANER = "token-cleaner"


class Observer(Protocol):
    """Hears what the controllers did; every method returns at once."""

    def signed(self, tokens: int, seconds: float) -> None:
        """Cluster-info now has the signatures of so many tokens, so many seconds after the change that asked for it."""
        ...

    def cleaned(self, name: str) -> None:
        """Note that the Secret of an expired token was deleted."""
        ...

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        """Note that a write failed; it is tried again after so many seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDeps:
    """Clocks, timers and chance."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """What time it is: it decides who has expired, and may jump."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that never jump."""
    timer: Timer = loop_timer
    random: Callable[[], float] = random_module.random

    def queue(self) -> WorkQueue[str]:
        """Make a queue of keys that are retried."""
        return WorkQueue(backoff=_RETRY, clock=self.clock, random=self.random, timer=self.timer)


def token_informer(client: ApiClient, on_change: ChangeFunction) -> Reflector:
    """Watch the bootstrap tokens."""
    return informers.tokens(client, on_change, transform=slim_token, max_bytes=_MAX_TOKENS)


def cluster_info_informer(client: ApiClient, on_change: ChangeFunction) -> Reflector:
    """Watch cluster-info; it is kept whole, to be written back whole."""
    return informers.cluster_info(client, on_change, max_bytes=_MAX_INFO, max_objects=_MAX_INFO_OBJECTS)


def seconds_until(moment: datetime, now: datetime) -> float:
    """Say when to look at a moment in the future again: no later than ``RECHECK``, for clocks jump."""
    return min(max((moment - now).total_seconds(), 0.0), RECHECK)


def slim_token(item: JsonObject) -> JsonObject:
    """Return of a token what decides about it."""
    return informers.slim(item, _KEPT_DATA)
