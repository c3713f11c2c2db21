"""The controller ``issuer``: what API servers say stands where anybody can read it, and nothing else does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web
from front_kit import Authority
from issuer_kit import LOOPBACK, Upstream, new_key, upstream
from polling import until

from nodeattest_controller.controllers.issuer import (
    NOT_PUBLISHED,
    PUBLISHED,
    PublishTargets,
    issuer_controller,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, documents
from nodeattest_identity.tokens.relying_party import HttpsFetcher
from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import EventRecorder, ObjectRef
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.values import JsonObject

KEY, OTHER = ClusterKey("fleet/blue"), ClusterKey("fleet/green")
JWKS, CONFIGURATION = "openid/v1/jwks", ".well-known/openid-configuration"
QUICK = ResyncConfig(spread=0.0, period=0.05, min_interval=0.01, retry=0.05, max_retry=0.1)


@dataclass
class Fleet:
    """A management cluster with two Clusters, and Events on them."""

    paused: bool = False
    owned: bool = True
    looks: int = 0
    """How often the controller asked whether it may act."""
    events: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def cluster(self, key: ClusterKey) -> JsonObject | None:
        namespace, _, name = key.partition("/")
        found: JsonObject = {"metadata": {"namespace": namespace, "name": name, "uid": key}}
        return {**found, "spec": {"paused": self.paused}} if key in {KEY, OTHER} else None

    def leads(self) -> bool:
        self.looks += 1
        return self.owned

    def record(self, subject: ObjectRef, kind: str, reason: str, message: str) -> None:
        self.events.append((f"{kind} {subject.name}", reason, message))


@dataclass
class Bench:
    """A controller over a folder that a public server serves."""

    base: str
    folder: Path
    ca: Path
    fleet: Fleet
    metrics: Metrics
    place: str = ""
    public: bool = True
    """Whether the public server serves anything."""

    def issuer(self, key: ClusterKey) -> str:
        return f"{self.base}/{key}"

    def file(self, key: ClusterKey, path: str) -> bytes:
        file = self.folder / key / path
        return file.read_bytes() if file.exists() else b""

    def count(self, outcome: str) -> float:
        labels = {"outcome": outcome}
        return self.metrics.registry.get_sample_value("nodeattest_issuer_publications_total", labels) or 0.0

    @asynccontextmanager
    async def following(self, key: ClusterKey, kubeconfig: bytes) -> AsyncGenerator[None]:
        management, events = cast("ManagementCache", self.fleet), cast("EventRecorder", self.fleet)
        controller = issuer_controller(
            management,
            guard=ClusterGuard(management, self.fleet.leads),
            events=events,
            metrics=self.metrics,
            targets=PublishTargets(self.base, self.place or f"dir:{self.folder}", 3600),
            resync=QUICK,
            https=HttpsFetcher(ca_file=self.ca),
            clock=lambda: 0.0,  # looks take no time, and no place is compared again for its age
        )
        async with ApiClient.from_kubeconfig(kubeconfig) as client:
            task = asyncio.create_task(controller.for_cluster(key, client).run())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify(tmp_path / "tls"))
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "public").mkdir()
    made = Bench("", tmp_path / "public", tmp_path / "ca.pem", Fleet(), Metrics())

    async def serve(request: web.BaseRequest) -> web.Response:
        file = made.folder / request.path.removeprefix("/base/")
        if not made.public or not file.is_file():
            return web.Response(status=404)
        kind = JWKS_TYPE if file.name == "jwks" else CONFIGURATION_TYPE
        headers = {"Content-Type": kind, "Cache-Control": "public, max-age=3600"}
        return web.Response(body=file.read_bytes(), headers=headers)

    runner = web.ServerRunner(web.Server(serve, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, 0, ssl_context=context).start()
    made.base = f"https://{LOOPBACK}:{runner.addresses[0][1]}/base"
    yield made
    await runner.cleanup()


async def asked_more(there: Upstream) -> None:
    """Wait for some further looks at a cluster's issuer."""
    before = len(there.asked)
    await until(lambda: len(there.asked) > before + 6)


def wanted(bench: Bench, there: Upstream, key: ClusterKey = KEY) -> bytes:
    issuer = bench.issuer(key)
    return documents(issuer, f"{issuer}/openid/v1/jwks", there.documents.keys).jwks


async def test_a_clusters_documents_stand_where_its_issuer_says_and_follow_its_keys(
    bench: Bench, tmp_path: Path
) -> None:
    async with (
        upstream(bench.issuer(KEY), [new_key()], tmp_path / "a") as there,
        bench.following(KEY, there.kubeconfig),
    ):
        await until(lambda: bench.file(KEY, CONFIGURATION))
        assert bench.file(KEY, JWKS) == wanted(bench, there)
        first, second = there.documents.keys[0], new_key()
        there.rotate([second])
        await until(lambda: second.kid.encode() in bench.file(KEY, JWKS))
        # A key that the cluster does not name any more stays while tokens by it may live.
        assert first.kid.encode() in bench.file(KEY, JWKS)
        await until(lambda: bench.count("written") == 2)
        await asked_more(there)
    assert bench.count("written") == 2
    assert bench.count("equal") == 0  # nothing is compared while nothing changes
    (kind, reason, said), *_ = bench.fleet.events
    assert (kind, reason) == ("Normal blue", PUBLISHED)
    assert first.kid in said


async def test_what_stands_there_and_is_anothers_is_not_overwritten(bench: Bench, tmp_path: Path) -> None:
    place = bench.folder / KEY / CONFIGURATION
    place.parent.mkdir(parents=True)
    place.write_bytes(documents("https://else.example", "https://else.example/k", [new_key()]).configuration)
    before = place.read_bytes()
    async with (
        upstream(bench.issuer(KEY), [new_key()], tmp_path / "a") as there,
        bench.following(KEY, there.kubeconfig),
    ):
        await until(lambda: bench.count("foreign-issuer") > 1)
    assert place.read_bytes() == before
    assert not bench.file(KEY, JWKS)
    (event,) = bench.fleet.events  # once, though it was tried again
    assert event[:2] == ("Warning blue", NOT_PUBLISHED)
    assert "https://else.example" in event[2]


async def test_while_an_api_server_fails_or_lies_what_was_published_stays(bench: Bench, tmp_path: Path) -> None:
    async with (
        upstream(bench.issuer(KEY), [new_key()], tmp_path / "a") as there,
        bench.following(KEY, there.kubeconfig),
    ):
        await until(lambda: bench.file(KEY, CONFIGURATION))
        before = bench.file(KEY, JWKS)
        there.status = 403
        await until(lambda: bench.count("forbidden"))
        there.status, there.jwks = 200, b'{"keys":[]}'
        await until(lambda: bench.count("unusable"))
    assert bench.file(KEY, JWKS) == before
    warnings = [said for kind, _, said in bench.fleet.events if kind.startswith("Warning")]
    assert any("manifests/workload-issuer" in said for said in warnings)


@pytest.mark.parametrize("field_", ["paused", "owned"])
async def test_a_cluster_that_may_not_be_acted_for_is_not_even_asked(field_: str, bench: Bench, tmp_path: Path) -> None:
    setattr(bench.fleet, field_, field_ == "paused")
    async with (
        upstream(bench.issuer(KEY), [new_key()], tmp_path / "a") as there,
        bench.following(KEY, there.kubeconfig),
    ):
        await until(lambda: bench.fleet.looks > 3)
        assert not there.asked
    assert not list(bench.folder.iterdir())


async def test_a_cluster_of_another_issuer_is_left_alone_and_told_of_in_the_log_only(
    bench: Bench, tmp_path: Path
) -> None:
    async with (
        upstream(bench.issuer(OTHER), [new_key()], tmp_path / "a") as there,
        bench.following(KEY, there.kubeconfig),
    ):
        await until(lambda: bench.count("other-issuer") > 2)
    assert not list(bench.folder.iterdir())
    assert not bench.fleet.events
