"""Spans by OpenTelemetry's SDK, sent by OTLP over HTTP (protobuf) to a collector.

Where to, as whom and how many is said by OpenTelemetry's own environment variables, which its SDK reads:
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
OTEL_TRACES_SAMPLER, OTEL_BSP_*. Promises: a collector that is away costs spans, never a request: they wait in a bounded
queue, are sent by a thread, and are dropped when it is full; the end of the process waits a few seconds at most. An
exception is shown by its type alone: its text can be foreign.
Source: OpenTelemetry specification, "SDK environment variables" and "OTLP exporter".
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, get_current_span
from opentelemetry.trace import Tracer as OtelTracer

from nodeattest_providers import __version__

__all__ = ["OtelTracing"]

_NAME: Final = "node-attestation-controller"
_PREFIX: Final = "nodeattest."
_FLUSH: Final = 5.0
"""Seconds at the end of the process for spans that were not sent; the Pod has 15."""


class OtelTracing:
    """A tracer provider of our own, not OpenTelemetry's global one (``tracing.Tracer``)."""

    def __init__(self) -> None:
        ours = Resource({SERVICE_NAME: _NAME, SERVICE_VERSION: __version__})
        self._provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(_NAME, __version__)

    def span(self, name: str, /, **attributes: str) -> AbstractContextManager[None]:
        """Make a span."""
        return _Span(self._tracer, name, attributes)

    def note(self, **attributes: str) -> None:
        """Add attributes to the current span."""
        get_current_span().set_attributes(_named(attributes))

    async def aclose(self) -> None:
        """Send what is left, and end; gives up after ``_FLUSH``."""
        # A daemon: a collector that hangs must not keep the process from its end.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, _FLUSH)


class _Span:
    def __init__(self, tracer: OtelTracer, name: str, attributes: dict[str, str]) -> None:
        self._entered = tracer.start_as_current_span(
            name, attributes=_named(attributes), record_exception=False, set_status_on_exception=False
        )
        self._span: Span | None = None

    def __enter__(self) -> None:
        self._span = self._entered.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._span is not None:
            self._span.set_attribute("error.type", kind.__name__)
        self._entered.__exit__(None, None, None)


def _named(attributes: dict[str, str]) -> dict[str, str]:
    return {f"{_PREFIX}{name}": value for name, value in attributes.items()}
