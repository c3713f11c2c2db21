"""Spans of what is done with a request, where ``--tracing`` asks for them; nothing at all where it does not.

Promises: without tracing no package of OpenTelemetry is imported, and a span is one shared object that does nothing.
Leaves to others: OpenTelemetry (``otel_tracing``), what is worth a span, and that no foreign text is in one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Final, Protocol

from nodeattest_serving.settings import SettingsError

__all__ = ["NO_TRACING", "Tracer", "tracing"]


class Tracer(Protocol):
    """Makes spans; the one that is entered last in a task is the parent of the next."""

    def span(self, name: str, /, **attributes: str) -> AbstractContextManager[None]:
        """Make a span; ``attributes`` are those of ``note``."""
        ...

    def note(self, **attributes: str) -> None:
        """Add attributes to the span that was entered last; each is shown as ``nodeattest.NAME``."""
        ...


class _NoSpan:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _NoTracing:
    _span: Final = _NoSpan()

    def span(self, _name: str, /, **_attributes: str) -> AbstractContextManager[None]:
        return self._span

    def note(self, **_attributes: str) -> None:
        pass


NO_TRACING: Final[Tracer] = _NoTracing()


@asynccontextmanager
async def tracing(*, enabled: bool) -> AsyncGenerator[Tracer]:
    """Trace for the length of the block; raises ``SettingsError``.

    Where OpenTelemetry is not installed, or its variables for headers or endpoints cannot be used.
    """
    if not enabled:
        yield NO_TRACING
        return
    try:
        from nodeattest_controller.otel_tracing import OtelTracing
    except ImportError:
        raise SettingsError(
            "tracing: expected the packages of extra otel (requirements-controller-otel.txt of the release), got none"
        ) from None
    made = OtelTracing()
    try:
        yield made
    finally:
        await made.aclose()
