"""Calls a handler whose bugs must not stop its caller, nor what is called after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, ParamSpec

__all__ = ["notify"]

_LOG: Final = logging.getLogger(__name__)
P = ParamSpec("P")


def notify(subscriber: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a subscriber; a bug in it is logged and stays its own."""
    try:
        subscriber(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the edge between controllers: one's bug must not stop the informer or another
        _LOG.exception("a bug in a controller's handler: please report it")
