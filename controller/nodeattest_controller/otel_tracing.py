"""Spans by OpenTelemetry's SDK, sent by OTLP over HTTP (protobuf) to a collector.

Where to, as whom and how many is said by OpenTelemetry's own environment variables, which its SDK reads:
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
OTEL_TRACES_SAMPLER, OTEL_BSP_*. Promises: a collector that is away costs spans, never a request: they wait in a bounded
queue, are sent by a thread, and are dropped when it is full; the end of the process waits a few seconds at most. An
exception is shown by its type alone: its text can be foreign. Credentials in these variables are in no log and no
message (``otel_logs``); a header or an address that cannot be used ends the start.
Source: OpenTelemetry specification, "SDK environment variables" and "OTLP exporter".
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from contextlib import AbstractContextManager
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, get_current_span
from opentelemetry.trace import Tracer as OtelTracer
from opentelemetry.util.re import parse_env_headers

from nodeattest_controller.otel_logs import hide_values
from nodeattest_parsing.endpoint import port_of
from nodeattest_providers import __version__
from nodeattest_serving.settings import SettingsError

__all__ = ["OtelTracing"]

_NAME: Final = "node-attestation-controller"
_PREFIX: Final = "nodeattest."
_FLUSH: Final = 5.0
"""Seconds at the end of the process for spans that were not sent; the Pod has 15."""
_HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
_ENDPOINTS: Final = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
"""RFC 9110 §5.5 and §5.6.2, in ASCII: what else there is, an HTTP library refuses at each request."""


class OtelTracing:
    """A tracer provider of our own, not OpenTelemetry's global one (``tracing.Tracer``)."""

    def __init__(self) -> None:
        """Read the environment; raises ``SettingsError`` for headers and addresses, and quotes none."""
        hide_values()
        _check_headers()
        _check_endpoints()
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


def _check_headers() -> None:
    """Refuse what OpenTelemetry would leave out and log, and what cannot be sent."""
    for variable in _HEADERS:
        for number, entry in enumerate(os.environ.get(variable, "").split(","), 1):
            if entry.strip() and not _is_header(entry.strip()):
                raise SettingsError(
                    f"tracing: {variable}: expected NAME=VALUE, several separated by commas, each value URL-encoded "
                    f"(%3B for a semicolon), got something else as number {number}: not shown, it can be a credential"
                )


def _is_header(entry: str) -> bool:
    read = parse_env_headers(entry, liberal=True)
    return len(read) == 1 and all(
        _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value) for name, value in read.items()
    )


def _check_endpoints() -> None:
    """Refuse an address with a credential, and what is none."""
    for variable in _ENDPOINTS:
        if (given := os.environ.get(variable)) and not _is_endpoint(given):
            raise SettingsError(
                f"tracing: {variable}: expected http:// or https://, HOST, :PORT and a path, and a credential in "
                f"{_HEADERS[0]} only, got something else: not shown, it can be a credential"
            )


def _is_endpoint(given: str) -> bool:
    try:
        url = urlsplit(given)
        port_of(url)
    except ValueError:
        return False
    return url.scheme in {"http", "https"} and bool(url.hostname) and not {"@", "?", "#"} & {*given}


def _named(attributes: dict[str, str]) -> dict[str, str]:
    return {f"{_PREFIX}{name}": value for name, value in attributes.items()}
