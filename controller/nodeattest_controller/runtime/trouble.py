"""Logs what keeps a part of the controller from its work: at once, and once a minute while it lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.periodic import call_every

__all__ = ["TroubleLog"]

PERIOD: Final = 60.0
"""Seconds between two lines about the same error."""
_CHECK_PERIOD: Final = 1.0
"""Seconds between two looks at the error; no request is sent for it."""


class TroubleLog:
    """Logs the present error of one part."""

    def __init__(
        self,
        log: logging.Logger,
        message: str,
        trouble: Callable[[], ApiError | None],
        remedy: Callable[[ApiError], str],
        *,
        clock: Callable[[], float] = time.monotonic,
        **more: object,
    ) -> None:
        """``trouble`` gives the error, None while there is none; ``more`` are further fields of the line."""
        self._log = log
        self._message = message
        self._trouble = trouble
        self._remedy = remedy
        self._more = more
        self._limiter = EventLimiter(clock)
        self._last = ""

    async def run(self) -> None:
        """Run until cancelled."""
        await call_every(_CHECK_PERIOD, self.check)

    def check(self) -> None:
        """Log the error if there is one that is due."""
        error = self._trouble()
        text = str(error) if error is not None else ""
        if error is not None and (self._limiter.allow(text, PERIOD) or text != self._last):
            self._log.warning(self._message, extra=fields(**self._more, error=text, remedy=self._remedy(error)))
        self._last = text
