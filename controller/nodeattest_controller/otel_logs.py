"""Keeps values out of what OpenTelemetry's libraries log.

They log what they read in the environment, such as a header that is none, and errors that quote a header or an address.
Promises: a record of theirs has its constant text, numbers, and the types of errors; nothing else is filled in, and
there is no traceback. Only their records, and those of urllib3, which sends for them.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["hide_values"]

_LIBRARIES: Final = "opentelemetry", "urllib3"
_HEADER_PARSER: Final = "opentelemetry.util.re"
"""Logs headers that are none; ``otel_tracing`` refuses them itself."""
_HIDDEN: Final = "(not shown)"


class _HideValues(logging.Handler):
    """Passes records on to the root's handlers, without values."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        text = record.msg if error is None else f"{record.msg} ({error.__name__})"
        shown = tuple(map(_shown, record.args)) if isinstance(record.args, tuple) else ()
        made = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, shown, None)
        logging.getLogger().handle(made)


def _shown(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return type(value).__name__ if isinstance(value, BaseException) else _HIDDEN


_HANDLER: Final = _HideValues()


def hide_values() -> None:
    """Hide them for the rest of the process; again is the same."""
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.addHandler(_HANDLER)
        logger.propagate = False
    logging.getLogger(_HEADER_PARSER).disabled = True
