"""Traces: what a collector gets of a request by OTLP over HTTP, and that nothing of it is there by default."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from csr_world import CSRS, OneRound, World, request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from nodeattest_controller.controllers.csr.reconciler import DONE
from nodeattest_controller.model.objects import mapping
from nodeattest_controller.tracing import NO_TRACING, tracing
from nodeattest_kube.client import ApiError
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_sandbox.pki import ClusterPki
from nodeattest_serving.settings import SettingsError

UID: Final = "9b2f0c1e-0000-4000-8000-000000000001"
FOREIGN: Final = "text-of-the-node"


class Collector:
    """What was sent to an OTLP/HTTP receiver on loopback."""

    def __init__(self) -> None:
        self.received: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()
        self.release: asyncio.Event | None = None
        self.port = 0
        self.authorization = ""
        self.answers: web.Response | None = None
        """Instead of success."""

    async def take(self, sent: web.BaseRequest) -> web.StreamResponse:
        """Answer as a collector does."""
        body = await sent.read()
        self.paths.add(sent.path)
        if self.release is not None:
            await self.release.wait()
        self.received.append(ExportTraceServiceRequest.FromString(body))
        self.authorization = sent.headers.get("Authorization", "")
        if self.answers is not None:
            return self.answers
        return web.Response(content_type="application/x-protobuf")

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order in which they ended."""
        return [
            span
            for each in self.received
            for resource in each.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> Span:
        """The one span of a name."""
        [found] = [span for span in self.spans if span.name == name]
        return found


def attributes(span: Span) -> dict[str, str]:
    return values(list(span.attributes))


def values(pairs: list[KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in pairs}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Collector]:
    made = Collector()
    runner = web.ServerRunner(web.Server(made.take))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{made.port}")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=tests")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    await runner.cleanup()


@asynccontextmanager
async def traced(pki: ClusterPki) -> AsyncGenerator[World]:
    async with tracing(enabled=True) as tracer, World(pki, OneRound(), tracer=tracer).running() as world:
        yield world


def file(world: World, uid: str = UID) -> None:
    made = request("r-1")
    world.workload_api.put(f"{CSRS}/r-1", {**made, "metadata": {**mapping(made, "metadata"), "uid": uid}})


async def test_an_approved_request_is_one_trace_with_its_steps_and_its_uid(
    pki: ClusterPki, collector: Collector
) -> None:
    async with traced(pki) as world:
        file(world)
        assert await world.reconcile() == DONE
    root = collector.named("csr.reconcile")
    assert attributes(root) == {
        "nodeattest.cluster": "fleet/blue",
        "nodeattest.csr_uid": UID,
        "nodeattest.provider": "tpm",
        "nodeattest.decision": "approve",
    }
    steps = [span for span in collector.spans if span.span_id != root.span_id]
    names = [span.name for span in steps]
    assert names == ["csr.verify", "csr.sign", "csr.record", "csr.confirm", "csr.approve", "csr.publish"]
    assert {span.parent_span_id for span in steps} == {root.span_id}
    assert {span.trace_id for span in steps} == {root.trace_id}
    assert collector.paths == {"/v1/traces"}
    resource = values(list(collector.received[0].resource_spans[0].resource.attributes))
    assert resource["service.name"] == "node-attestation-controller"
    assert resource["deployment.environment.name"] == "tests"


@pytest.mark.parametrize(
    ("answer", "decision", "reason"),
    [
        (Denied(Reason.PROOF_INVALID, expected=FOREIGN, got=FOREIGN, remedy="r"), "deny", "ProofInvalid"),
        (Unavailable(Reason.PLATFORM_UNAVAILABLE, FOREIGN, remedy="r"), "wait", "PlatformUnavailable"),
    ],
)
async def test_a_refusal_has_its_reason_and_no_text_of_the_node(
    pki: ClusterPki, collector: Collector, answer: Exception, decision: str, reason: str
) -> None:
    async with traced(pki) as world:
        world.verifier.answer = answer  # pyright: ignore[reportAttributeAccessIssue] - raised where it is no answer
        file(world)
        await world.reconcile()
    noted = attributes(collector.named("csr.reconcile"))
    assert (noted["nodeattest.decision"], noted["nodeattest.reason"]) == (decision, reason)
    assert attributes(collector.named("csr.verify")) == {"error.type": type(answer).__name__}
    assert FOREIGN not in str(collector.received)


async def test_an_error_of_the_api_server_is_shown_by_its_type(pki: ClusterPki, collector: Collector) -> None:
    async with traced(pki) as world:
        world.workload_api.fail("PUT", "/status", ApiError(500, "InternalError", FOREIGN))
        file(world)
        with pytest.raises(ApiError):
            await world.reconcile()
    assert attributes(collector.named("csr.publish")) == {"error.type": "ApiError"}
    assert attributes(collector.named("csr.reconcile"))["error.type"] == "ApiError"
    assert FOREIGN not in str(collector.received)


async def test_a_uid_that_is_none_is_not_shown(pki: ClusterPki, collector: Collector) -> None:
    async with traced(pki) as world:
        file(world, uid="<script>")
        await world.reconcile()
    assert attributes(collector.named("csr.reconcile"))["nodeattest.csr_uid"] == ""


async def test_a_collector_that_hangs_delays_no_request_and_the_end_by_seconds_only(
    pki: ClusterPki, collector: Collector
) -> None:
    collector.release = asyncio.Event()
    async with asyncio.timeout(30):
        async with traced(pki) as world:
            file(world)
            assert await world.reconcile() == DONE
        assert collector.received == []
        collector.release.set()


async def test_without_the_flag_there_is_one_shared_span_that_does_nothing() -> None:
    async with tracing(enabled=False) as tracer:
        assert tracer is NO_TRACING
        assert tracer.span("a", cluster="x") is tracer.span("b")
        with tracer.span("a"):
            tracer.note(decision="approve")


def test_without_the_flag_nothing_of_opentelemetry_is_imported() -> None:
    code = "import sys, nodeattest_controller.app; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"


def test_a_missing_extra_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    pki = ClusterPki.make(tmp_path, "none")
    kubeconfig = pki.client_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", "a", ())
    code = "import sys; sys.modules['opentelemetry'] = None; from nodeattest_controller.main import main; main()"
    command = [sys.executable, "-c", code, "run", "--kubeconfig", str(kubeconfig), "--tracing", "true"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 2
    assert found.stderr == (
        "node-attestation-controller: tracing: expected the packages of extra otel "
        "(requirements-controller-otel.txt of the release), got none\n"
    )


# The collector's credential


SECRET: Final = "SECRET-OF-THE-COLLECTOR"


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
@pytest.mark.parametrize(
    ("value", "number"),
    [
        (f"Authorization: Bearer {SECRET}", 1),
        (f"x-api-key={SECRET};2", 1),
        (f'x-api-key="{SECRET}"', 1),
        (f"x-api-key={SECRET}\\", 1),
        (f"x=1, {SECRET}", 2),
        (f"={SECRET}", 1),
        (f"x-api-key={SECRET}%0A{SECRET}", 1),
        (f"x-api-key={SECRET}%E2%82%AC", 1),
        (f"x%20{SECRET}=1", 1),
    ],
)
async def test_a_header_that_cannot_be_used_ends_the_start_and_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str, number: int
) -> None:
    monkeypatch.setenv(variable, value)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(
        SettingsError, match=rf"{variable}: expected NAME=VALUE.* number {number}: not shown"
    ) as refused:
        async with tracing(enabled=True):
            pytest.fail("it must not start")
    assert SECRET not in str(refused.value)
    assert caplog.text == ""


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
@pytest.mark.parametrize(
    "value",
    [
        f"http://user:{SECRET}@127.0.0.1:9",
        f"http://127.0.0.1:9/?key={SECRET}",
        f"http://127.0.0.1:{SECRET}",
        f"user:{SECRET}@127.0.0.1",
        f"https:///{SECRET}",
        f"http://127.0.0.1:/{SECRET}",
    ],
)
async def test_an_endpoint_with_a_credential_ends_the_start_and_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SettingsError, match=f"{variable}: expected http://") as refused:
        async with tracing(enabled=True):
            pytest.fail("it must not start")
    assert SECRET not in str(refused.value)
    assert caplog.text == ""


class RootRecords(logging.Handler):
    """What the root's handlers get, as the controller's own is one; pytest's are also at loggers below."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "aiohttp.access":  # the collector's own
            self.lines.append(f"{record.name} {record.getMessage()}")


@pytest.fixture
def root_records(caplog: pytest.LogCaptureFixture) -> Iterator[RootRecords]:
    caplog.set_level(logging.DEBUG)
    made = RootRecords()
    logging.getLogger().addHandler(made)
    yield made
    logging.getLogger().removeHandler(made)


async def test_what_the_libraries_log_has_no_values(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, root_records: RootRecords
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", SECRET)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"Authorization=Bearer%20{SECRET}, x-tenant = {SECRET}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}/{SECRET}")
    collector.answers = web.Response(status=401, reason=SECRET)
    async with tracing(enabled=True) as tracer:
        with tracer.span("csr.reconcile"):
            pass
    assert collector.authorization == f"Bearer {SECRET}"
    logged = "\n".join(root_records.lines)
    assert "Invalid key value resource attribute pair (not shown): ValueError" in logged
    assert "Failed to export (not shown) batch code: 401, reason: (not shown)" in logged
    assert "urllib3" in logged
    assert SECRET not in logged


def test_a_wrong_header_of_the_collector_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    pki = ClusterPki.make(tmp_path, "none")
    kubeconfig = pki.client_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", "a", ())
    code = "from nodeattest_controller.main import main; main()"
    command = [sys.executable, "-c", code, "run", "--kubeconfig", str(kubeconfig), "--tracing", "true"]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization: Bearer {SECRET}"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert found.returncode == 2
    [line] = found.stderr.splitlines()
    assert line.startswith("node-attestation-controller: tracing: OTEL_EXPORTER_OTLP_HEADERS: expected NAME=VALUE")
    assert SECRET not in found.stderr
