"""The table of costs: every handler of foreign input, by its name. ``bench``, ``fuzz`` and docs/costs.md read it."""

from __future__ import annotations

from typing import Final

from fuzz.costs import controller, node, services
from fuzz.costs.handler import Handler

__all__ = ["HANDLERS"]

HANDLERS: Final[dict[str, Handler]] = {
    handler.name: handler for handler in (*controller.HANDLERS, *services.HANDLERS, *node.HANDLERS)
}
