"""Pins: what a machine proved itself by, as the ledger names it: ``<provider>.<kind>``, such as ``tpm.ek``.

A pin is compared by its kind, whichever provider asks, alone or as a part of ``composite``: what a machine was pinned
by under one policy holds under the next. A provider's own pin comes first. Records of earlier versions have pins
without a provider (``ek``): they hold for each provider that knows the kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMPOSITE: Final = "composite"
"""The provider that is made of others: its parts pin, each under its own name."""


def name_pin(provider: str, kind: str) -> str:
    """Name a pin."""
    return f"{provider}.{kind}"


def split_pin(pin: str) -> tuple[str, str]:
    """Split a pin's name into provider and kind; the provider is empty in a record of an earlier version."""
    provider, dot, kind = pin.partition(".")
    return (provider, kind) if dot else ("", pin)


def pins_for(recorded: Mapping[str, str], provider: str) -> dict[str, str]:
    """Return by kind what binds a provider: its own pins, and those of others where it has none of the kind."""
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for pin in sorted(recorded, reverse=True):  # the same one each time, were others to differ
        by, kind = split_pin(pin)
        (own if by == provider else others)[kind] = recorded[pin]
    return {**others, **own}
