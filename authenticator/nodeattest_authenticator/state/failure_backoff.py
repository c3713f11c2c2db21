"""Stores the last failure with a pause before the next attempt.

client-go has no failure cache: without a certificate it runs the plugin for each request. The pause grows with each
failure and has jitter, so that nodes refused together do not retry together. A changed configuration ends the pause.
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
"""Maximum characters of a stored message."""
MAX_BACKOFF: Final = 3600
"""Seconds. A longer pause was written under another clock and is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """A stored failure."""

    until: int
    """Epoch seconds of the next attempt."""
    count: int
    """Failures in a row."""
    reason: str
    text: str


def load(storage: Storage, config_fingerprint: bytes, *, name: str = FAILURE_FILE) -> FailureRecord | None:
    """Return the last failure with this configuration, or None if there is none or the file is invalid."""
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
    """Store a failure with its pause and return it. Raises OSError. The caller holds the lock.

    ``valid_for``: seconds until the current certificate expires; None if there is no certificate.
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
    # The fast path repeats the second line.
    again = f"kubelet-authenticator: still refused: {one_line(f'{failure.reason}: {failure.remedy}', _MAX_TEXT)}"
    text = f"{again}\n{remembered.reason}\n{remembered.text}"
    storage.write(name, head + b"\n" + text.encode(), durable=False)
    return remembered


def _backoff(failure: AgentError, valid_for: float | None) -> Backoff:
    """Return short pauses without a certificate; with one, pauses that leave several attempts before it expires."""
    if valid_for is not None:
        return Backoff(60, min(1800, valid_for / 8))
    return Backoff(30, 600) if failure.kind is FailureKind.DENIED else Backoff(2, 60)


def forget(storage: Storage, *, name: str = FAILURE_FILE) -> None:
    """Remove the stored failure. The caller holds the lock."""
    storage.remove(name)
