"""The context of every command: configuration, cache directory, clock, randomness and log.

A cached credential is used only if it passes every check of ``certificate``. A failure is stored with a pause and
repeated until the pause is over. Out of scope: getting a new credential (``enrollment.issue``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from nodeattest_authenticator.config.settings import Settings, load
from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_authenticator.state import credential_cache, failure_backoff
from nodeattest_authenticator.state.cache_files import FAILURE_FILE, UnsafeFileError, fingerprint_of_config
from nodeattest_authenticator.state.credential_cache import CachedCredential, CacheEntry
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery.node.clock import Clock


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
        hostname: str,
        clock: Clock,
        random: Callable[[], float],
        log: Callable[[str], None],
        create: bool = True,
    ) -> Self:
        """Read the configuration and open the cache directory, or create it. Raises ``AgentError``."""
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
            random=random,
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

    def raise_while_backing_off(self, *, name: str = FAILURE_FILE) -> None:
        """Raise the last failure again while its pause lasts."""
        last = failure_backoff.load(self.storage, self.config_fingerprint, name=name)
        left = last.until - self.clock.now() if last is not None else 0
        if last is not None and 0 < left <= failure_backoff.MAX_BACKOFF:
            said = last.text.removeprefix(f"{last.reason}: ")
            raise AgentError(last.reason, f"still refused: {said}", remedy=f"the next attempt is in {left:.0f} s")

    def remember_failure(
        self, error: AgentError, current: CachedCredential | None, *, name: str = FAILURE_FILE
    ) -> None:
        """Store a failure with its pause. ``current``: a valid credential. The caller holds the lock."""
        now = self.clock.now()
        valid_for = None if current is None else current.not_after - now
        with contextlib.suppress(OSError):
            failure_backoff.remember(
                self.storage,
                self.config_fingerprint,
                error,
                valid_for=valid_for,
                now=now,
                random=self.random,
                name=name,
            )
