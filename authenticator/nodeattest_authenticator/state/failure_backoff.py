"""The last failure, remembered on disk, so that neither kubelet nor the API server sees a storm of attempts.

client-go has no failure cache: without a certificate it runs the plugin for each request. Promises: until the moment
written here no attempt is made and the same reason is repeated; the pause grows with each failure and carries jitter,
so that a thousand nodes refused together do not come back together. A changed configuration file ends the pause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.state.cache_files import FAILURE_FILE, FAILURE_MAGIC, UnsafeFileError
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery.node.clock import Backoff
from nodeattest_parsing.values import one_line

_MAX_TEXT: Final = 1000
"""Characters of a message that are kept."""


MAX_BACKOFF: Final = 3600
"""Seconds; a pause that seems longer was written under another clock and does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """The last failure."""

    until: int
    """Seconds since the epoch; no attempt before."""
    count: int
    """Failures in a row."""
    reason: str
    text: str


def load(storage: Storage, config_fingerprint: bytes, *, name: str = FAILURE_FILE) -> FailureRecord | None:
    """Read the last failure under this configuration; None when there is none, or what is there makes no sense."""
    try:
        head, _, rest = (storage.read(name) or b"").partition(b"\n")
        magic, until, made_for, count = head.split(b" ")
        if magic != FAILURE_MAGIC or made_for != config_fingerprint:
            return None
        _, reason, text = rest.decode().split("\n", 2)
        return FailureRecord(until=int(until), count=max(int(count), 0), reason=reason, text=text)
    except (ValueError, UnsafeFileError):
        return None


def remember(
    storage: Storage,
    config_fingerprint: bytes,
    failure: AgentError,
    *,
    valid_for: float | None,
    now: float,
    random: Callable[[], float],
    name: str = FAILURE_FILE,
) -> FailureRecord:
    """Write a failure down and return the pause it causes; raises OSError. Hold the lock.

    ``valid_for``: seconds until the present certificate expires; None: there is none.
    """
    before = load(storage, config_fingerprint, name=name)
    count = before.count if before else 0
    pause = _backoff(failure, valid_for).pause(count, random)
    remembered = FailureRecord(
        until=int(now) + max(1, round(pause)),
        count=count + 1,
        reason=one_line(failure.reason, _MAX_TEXT),
        text=one_line(str(failure), _MAX_TEXT),
    )
    head = b"%b %d %b %d" % (FAILURE_MAGIC, remembered.until, config_fingerprint, remembered.count)
    # The second line is what the fast path repeats.
    again = f"kubelet-authenticator: still refused: {one_line(f'{failure.reason}: {failure.remedy}', _MAX_TEXT)}"
    text = f"{again}\n{remembered.reason}\n{remembered.text}"
    storage.write(name, head + b"\n" + text.encode(), durable=False)
    return remembered


def _backoff(failure: AgentError, valid_for: float | None) -> Backoff:
    """Choose the pauses: without a certificate the node cannot work; with one, several attempts must fit into its life.

    In the default policy a certificate is valid for days: 30 to 90 s after the first failure.
    """
    if valid_for is not None:
        return Backoff(60, min(1800, valid_for / 8))
    return Backoff(30, 600) if failure.kind is FailureKind.DENIED else Backoff(2, 60)


def forget(storage: Storage, *, name: str = FAILURE_FILE) -> None:
    """Remove what was remembered: the next attempt starts afresh. Hold the lock."""
    storage.remove(name)
