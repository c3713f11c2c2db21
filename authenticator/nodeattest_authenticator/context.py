"""The context of every command: configuration, cache directory, clock, randomness and log.

A cached credential is used only if it passes every check of ``certificate``. A failure is stored with a pause and
repeated until the pause is over, because client-go has no failure cache: without a certificate it runs the plugin for
each request. The pause grows with each failure and has jitter. A changed configuration ends it.
Out of scope: getting a new credential (``enrollment.issue``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from nodeattest_authenticator import console
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.settings import Settings, load
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.cache_files import (
    FAILURE_FILE,
    FAILURE_MAGIC,
    UnsafeFileError,
    fingerprint_of_config,
)
from nodeattest_authenticator.state.credential_cache import CachedCredential, CacheEntry
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery.node.clock import Backoff, Clock, random_unit
from nodeattest_parsing.values import one_line

_MAX_TEXT: Final = 1000
"""Maximum characters of a stored message."""
_MAX_BACKOFF: Final = 3600
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


def ignore_message(_message: str) -> None:
    """Log nothing, because the message was logged before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Configuration, storage, clock and log of one command."""

    settings: Settings
    config: str
    """Path of the configuration file."""
    config_fingerprint: bytes
    """Identifies the file's content (``fingerprint_of_config``); a cached credential is bound to it."""
    storage: Storage
    clock: Clock
    random: Callable[[], float]
    log: Callable[[str], None]

    @classmethod
    def open(
        cls,
        config: str,
        cache_dir: str,
        *,
        hostname: str = "",
        clock: Clock,
        log: Callable[[str], None] = console.log,
        create: bool = True,
    ) -> Self:
        """Read the configuration and open the cache directory, or create it. Raises ``AgentError``.

        ``hostname`` is needed if the configuration has no node name.
        """
        try:
            fingerprint = fingerprint_of_config(config)  # before reading, so that a race makes it older, never newer
        except OSError:
            fingerprint = b"none"  # load reports the error
        return cls(
            settings=load(config, hostname=hostname),
            config=config,
            config_fingerprint=fingerprint,
            storage=Storage(cache_dir, create=create),
            clock=clock,
            random=random_unit,
            log=log,
        )

    def reload_config(self) -> Self:
        """Read the configuration again if it was replaced. Raises ``AgentError``, and OSError if it was removed."""
        fingerprint = fingerprint_of_config(self.config)
        if fingerprint == self.config_fingerprint:
            return self
        settings = load(self.config, hostname=self.settings.node_name)
        return replace(self, settings=settings, config_fingerprint=fingerprint)

    def load_valid_credential(self) -> CacheEntry | None:
        """Return the cached credential if it is valid, else log the reason and return None.

        Raises ``AgentError`` if only the clock is wrong.
        """
        try:
            found = credential_cache.load(self.storage)
        except (UnsafeFileError, ValueError) as error:
            self.log(f"the cached credential is not used: {error}")
            return None
        now = self.clock.now()
        if found is None or now >= found.credential.not_after:
            return None
        from nodeattest_authenticator.certificate import ExpectedCertificate, check_credential

        expected = ExpectedCertificate(node_name=self.settings.node_name, ca_pem=self.settings.all_ca_pem)
        try:
            check_credential(found.credential, expected, now=now)
        except AgentError as error:
            if error.reason == AgentReason.CLOCK_OFF:
                raise
            self.log(f"the cached credential is not used: {error.message}")
            return None
        return found

    def cache_response(self, entry: CacheEntry, info: bytes) -> None:
        """Store the answer to this exec info for the fast path. The caller holds the lock."""
        if entry.has_response(info) and entry.config_fingerprint == self.config_fingerprint:
            return
        responses = entry.responses if entry.config_fingerprint == self.config_fingerprint else ()
        with contextlib.suppress(OSError):  # the next call takes the slow path
            bound = replace(entry, config_fingerprint=self.config_fingerprint, responses=responses)
            credential_cache.save(self.storage, bound.with_response(info))

    def last_failure(self, *, name: str = FAILURE_FILE) -> FailureRecord | None:
        """Return the last failure with this configuration, or None if there is none or the file is invalid."""
        try:
            head, _, rest = (self.storage.read(name) or b"").partition(b"\n")
            magic, until, made_for, count = head.split(b" ")
            if magic != FAILURE_MAGIC or made_for != self.config_fingerprint:
                return None
            _, reason, text = rest.decode().split("\n", 2)
            return FailureRecord(until=int(until), count=max(int(count), 0), reason=reason, text=text)
        except (ValueError, UnsafeFileError):
            return None

    def backing_off(self, *, name: str = FAILURE_FILE) -> FailureRecord | None:
        """Return the last failure while its pause lasts."""
        last, now = self.last_failure(name=name), self.clock.now()
        return last if last is not None and now < last.until <= now + _MAX_BACKOFF else None

    def raise_while_backing_off(self, *, name: str = FAILURE_FILE) -> None:
        """Raise the last failure again while its pause lasts."""
        last = self.backing_off(name=name)
        if last is not None:
            said = last.text.removeprefix(f"{last.reason}: ")
            left = last.until - self.clock.now()
            raise AgentError(last.reason, f"still refused: {said}", remedy=f"the next attempt is in {left:.0f} s")

    def remember_failure(
        self, failure: AgentError, current: CachedCredential | None, *, name: str = FAILURE_FILE
    ) -> None:
        """Store a failure with its pause. ``current``: a valid credential. The caller holds the lock."""
        now, before = self.clock.now(), self.last_failure(name=name)
        count = before.count if before else 0
        valid_for = None if current is None else current.not_after - now
        until = int(now) + max(1, round(_backoff(failure, valid_for).pause(count, self.random)))
        head = b"%b %d %b %d" % (FAILURE_MAGIC, until, self.config_fingerprint, count + 1)
        # The fast path repeats the second line.
        again = f"kubelet-authenticator: still refused: {one_line(f'{failure.reason}: {failure.remedy}', _MAX_TEXT)}"
        text = f"{again}\n{one_line(failure.reason, _MAX_TEXT)}\n{one_line(str(failure), _MAX_TEXT)}"
        with contextlib.suppress(OSError):
            self.storage.write(name, head + b"\n" + text.encode(), durable=False)


def _backoff(failure: AgentError, valid_for: float | None) -> Backoff:
    """Return short pauses without a certificate; with one, pauses that leave several attempts before it expires."""
    if valid_for is not None:
        return Backoff(60, min(1800, valid_for / 8))
    return Backoff(30, 600) if failure.kind is FailureKind.DENIED else Backoff(2, 60)
