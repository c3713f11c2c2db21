"""An attestor and its parts: what only some attestors know is asked of these in order."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from nodeattest_providers.node_interface import Attestor


@runtime_checkable
class HasParts(Protocol):
    """An attestor that lets others attest."""

    parts: tuple[Attestor, ...]


def parts_of(attestor: Attestor) -> tuple[Attestor, ...]:
    """Return an attestor, and its parts where it has any."""
    return (attestor, *attestor.parts) if isinstance(attestor, HasParts) else (attestor,)
