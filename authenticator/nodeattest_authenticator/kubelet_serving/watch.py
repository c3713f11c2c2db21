"""``serving --watch``: keeps the certificate good for as long as the machine runs, for a systemd service.

Each attempt is a process of its own (the one-shot command), so that a TPM library that hangs or leaks ends with it, and
a new version of the package is used as soon as it is installed; this one only waits, and holds no library. Promises: it
ends by a signal and never by itself; it looks every minute whether configuration, names or file changed, and
otherwise waits: next is the renewal moment, or the moment until which a failure is remembered. What changes
again and again, an address that comes and goes for one, is followed ever slower.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final, NoReturn

from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.kubelet_serving.serve import FAILURE_FILE, file_of, identity_of, wanted_names
from nodeattest_authenticator.kubelet_serving.serving_file import ServingFile
from nodeattest_authenticator.state import failure_backoff
from nodeattest_discovery.node.clock import Backoff, Clock

_LOOK: Final = 60.0
"""Seconds between checks of what may have changed: as often as kubelet itself reads its file again."""
_RETRY: Final = Backoff(first=2.0, longest=60.0)
"""Before the next attempt where nothing remembers the failure."""
_CALM: Final = 600.0
"""Seconds after an attempt; a change that comes sooner follows upon another one."""
_RESTLESS: Final = Backoff(first=2.0, longest=300.0)
"""Before such changes are followed: each may cost a certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """What an attempt depends on, and what is known of the next one."""

    wanted: tuple[bytes, str]
    """Fingerprint of the configuration, and the names; the reason, where these are not known."""
    renew_at: int
    """The stored certificate's renewal moment; 0: there is none."""
    paused_until: int
    """Until when a failure is remembered; 0: none is."""


def watch(
    attempt: Callable[[], int],
    look: Callable[[], WatchState],
    *,
    clock: Clock,
    random: Callable[[], float],
    log: Callable[[str], None],
) -> NoReturn:
    """Run an attempt whenever there is reason to; ``attempt`` returns an exit code."""
    failed, changes, before = 0, 0, look()
    while True:
        began, is_done = clock.monotonic(), attempt() == 0
        clock.sleep(_RETRY.first)
        seen = look()
        # A success that leaves a certificate which is due already, or none that can be read, would be one forever.
        failed = 0 if is_done and clock.now() < seen.renew_at else failed + 1
        until = _next(seen, failed, clock, random) if seen.wanted == before.wanted else None
        if until is not None:
            if failed:
                log(f"the next attempt is in {max(0.0, until - clock.now()):.0f} s")
            while clock.now() < until and look() == seen:
                clock.sleep(min(_LOOK, max(0.0, until - clock.now())))
        has_changed = until is None or clock.now() < until
        changes = changes + 1 if has_changed and clock.monotonic() - began < _CALM else 0
        if changes > 1:
            clock.sleep(_RESTLESS.bound(changes - 2))
        before = look()


def run(
    open_agent: Callable[[], AgentContext],
    command: Sequence[str],
    *,
    clock: Clock,
    random: Callable[[], float],
    log: Callable[[str], None],
) -> NoReturn:
    """Watch with ``command`` as the attempt, until a signal says otherwise."""

    def attempt() -> int:
        try:
            with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
                try:
                    return process.wait()
                except BaseException:  # a signal ends the wait, and must end the attempt
                    process.kill()
                    raise
        except OSError as error:  # the package is being replaced, or memory is short
            log(f"{command[0]}: {error.strerror}")
            return 1

    def look() -> WatchState:
        # A resolver takes its time, and no Python code runs meanwhile: let the system end the process.
        _on_end(signal.SIG_DFL)
        try:
            return _look(open_agent)
        finally:
            _on_end(_end)

    watch(attempt, look, clock=clock, random=random, log=log)


def _on_end(action: signal.Handlers | Callable[[int, FrameType | None], NoReturn]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, action)


def _look(open_agent: Callable[[], AgentContext]) -> WatchState:
    config_fingerprint, names, renew_at, paused_until = b"", "", 0, 0
    try:
        context = open_agent()
        config_fingerprint = context.config_fingerprint
        with context.storage:
            renew_at = _renewal(file_of(context))  # known without the network, too: while that is away, nothing is due
            wanted = wanted_names(context.settings)
            names = str(wanted)
            last = failure_backoff.load(context.storage, identity_of(context, wanted), name=FAILURE_FILE)
            paused_until = last.until if last is not None else 0
    except AgentError as failure:
        names = failure.reason
    return WatchState(wanted=(config_fingerprint, names), renew_at=renew_at, paused_until=paused_until)


def _renewal(path: str) -> int:
    with contextlib.suppress(ValueError), ServingFile(path) as file:
        cached = file.load()
        return cached.credential.renew_at if cached is not None else 0
    return 0


def _next(state: WatchState, failed: int, clock: Clock, random: Callable[[], float]) -> float:
    """Return when to try again: at the renewal moment, or when the pause after a failure is over."""
    now = clock.now()
    if failed == 0:
        return max(float(state.renew_at), now + _RETRY.first)
    pause = _RETRY.pause(failed - 1, random)
    remembered = state.paused_until if now < state.paused_until <= now + failure_backoff.MAX_BACKOFF else 0
    return max(now + pause, float(remembered))


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
