"""The controller ``issuer``: what API servers say stands where anybody can read it, and nothing else does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from issuer_server import IssuerServer, Reply, issuer_server, jwks_of
from polling import until
from token_kit import new_key

from nodeattest_controller.controllers.issuer import (
    NOT_PUBLISHED,
    PUBLISHED,
    IssuerReconciler,
    OtherIssuerError,
    Publishing,
    read_api_server,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import ReconcilerDeps
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_identity.issuer.documents import CONFIGURATION_PATH, JWKS_PATH, JWKS_TYPE, documents
from nodeattest_identity.tokens.relying_party import HttpsFetcher
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder, ObjectRef
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.values import JsonObject

KEY = ClusterKey("fleet/blue")
JWKS, CONFIGURATION = "openid/v1/jwks", ".well-known/openid-configuration"
QUICK = ResyncConfig(spread=0.0, period=0.05, min_interval=0.01, retry=0.05, max_retry=0.1)


@dataclass
class Bench:
    """A controller over a folder that a public server serves; it is its own management cluster and event recorder."""

    public: IssuerServer
    folder: Path
    directory: Path
    metrics: Metrics = field(default_factory=Metrics)
    paused: bool = False
    owned: bool = True
    looks: int = 0
    """How often the controller asked whether it may act."""
    events: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def cluster(self, key: ClusterKey) -> JsonObject | None:
        namespace, _, name = key.partition("/")
        return {"metadata": {"namespace": namespace, "name": name, "uid": key}, "spec": {"paused": self.paused}}

    def leads(self) -> bool:
        self.looks += 1
        return self.owned

    def record(self, subject: ObjectRef, kind: str, reason: str, message: str) -> None:
        self.events.append((f"{kind} {subject.name}", reason, message))

    @property
    def issuer(self) -> str:
        return f"{self.public.url}/c1/{KEY}"

    def file(self, path: str) -> bytes:
        file = self.folder / KEY / path
        return file.read_bytes() if file.exists() else b""

    def count(self, outcome: str) -> float:
        labels = {"outcome": outcome}
        return self.metrics.registry.get_sample_value("nodeattest_issuer_publications_total", labels) or 0.0

    @asynccontextmanager
    async def following(self, issuer: str | None = None) -> AsyncGenerator[IssuerServer]:
        """Run the controller of one cluster, whose API server says to be this issuer."""
        management = cast("ManagementCache", self)
        https = HttpsFetcher(ca_file=self.public.ca)
        publishing = Publishing(f"{self.public.url}/c1", f"dir:{self.folder}", 3600, https)
        deps = ReconcilerDeps(
            management=management,
            guard=ClusterGuard(management, self.leads),
            events=cast("EventRecorder", self),
            metrics=self.metrics,
            now=lambda: datetime.now(UTC),
            clock=lambda: 0.0,  # looks take no time, and no place is compared again for its age
        )
        with issuer_server(self.directory / "api") as there:
            there.publish([new_key()], issuer=issuer or self.issuer)
            async with ApiClient.from_kubeconfig(there.kubeconfig) as client:
                task = asyncio.create_task(IssuerReconciler(deps, publishing, KEY, client, QUICK).run())
                try:
                    yield there
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "public"
    folder.mkdir()
    with issuer_server(tmp_path / "tls", root=folder) as public:
        yield Bench(public, folder, tmp_path)


async def test_a_clusters_documents_stand_where_its_issuer_says_and_follow_its_keys(bench: Bench) -> None:
    first, second = new_key(), new_key()
    async with bench.following() as there:
        there.publish([first], issuer=bench.issuer)
        await until(lambda: bench.file(CONFIGURATION) and first.kid.encode() in bench.file(JWKS))
        there.publish([second], issuer=bench.issuer)
        await until(lambda: second.kid.encode() in bench.file(JWKS) and bench.count("written") == 2)
        # A key that the cluster does not name any more stays while tokens by it may live.
        assert bench.file(JWKS).startswith(jwks_of(bench.issuer, [second, first])[:-2])
        written, before = bench.count("written"), len(there.asked)
        await until(lambda: len(there.asked) > before + 6)
    assert (bench.count("written"), bench.count("equal")) == (written, 0)  # nothing is compared while nothing changes
    (kind, reason, said), *_ = bench.events
    assert (kind, reason) == ("Normal blue", PUBLISHED)
    assert "new" in said


async def test_what_stands_there_and_is_anothers_is_not_overwritten(bench: Bench) -> None:
    place = bench.folder / KEY / CONFIGURATION
    place.parent.mkdir(parents=True)
    place.write_bytes(documents("https://else.example", "https://else.example/k", [new_key()]).configuration)
    before = place.read_bytes()
    async with bench.following():
        await until(lambda: bench.count("foreign-issuer") > 1)
    assert place.read_bytes() == before
    assert not bench.file(JWKS)
    (event,) = bench.events  # once, though it was tried again
    assert event[:2] == ("Warning blue", NOT_PUBLISHED)
    assert "https://else.example" in event[2]


async def test_while_an_api_server_fails_or_lies_what_was_published_stays(bench: Bench) -> None:
    async with bench.following() as there:
        await until(lambda: bench.file(CONFIGURATION))
        before = bench.file(JWKS)
        there.spoil = lambda _path, _reply: Reply(status=403)
        await until(lambda: bench.count("forbidden"))
        there.spoil = lambda path, reply: Reply(b'{"keys":[]}') if path == JWKS_PATH else reply
        await until(lambda: bench.count("unusable"))
    assert bench.file(JWKS) == before
    assert any("manifests/workload-issuer" in said for kind, _, said in bench.events if kind.startswith("Warning"))


@pytest.mark.parametrize("name", ["paused", "owned"])
async def test_a_cluster_that_may_not_be_acted_for_is_not_even_asked(name: str, bench: Bench) -> None:
    setattr(bench, name, name == "paused")
    async with bench.following() as there:
        await until(lambda: bench.looks > 3)
        assert not there.asked
    assert not list(bench.folder.iterdir())


async def test_a_cluster_of_another_issuer_is_left_alone_and_told_of_in_the_log_only(bench: Bench) -> None:
    async with bench.following(f"{bench.issuer}-other"):
        await until(lambda: bench.count("other-issuer") > 2)
    assert not list(bench.folder.iterdir())
    assert not bench.events


ISSUER, ONE = "https://issuer.example/c", new_key()
LEAK = json.dumps({"keys": [{**json.loads(jwks_of(ISSUER, [ONE]))["keys"][0], "d": "AAAA"}]}).encode()
FOREIGN, SLASH = (documents(each, ISSUER, [ONE]).configuration for each in ("https://issuer.example/d", f"{ISSUER}/"))
SPOILT: dict[str, tuple[str, Reply, str, str]] = {  # more of documents is in test_issuer_core
    "another's issuer": (CONFIGURATION_PATH, Reply(FOREIGN), "", "as its first"),
    "a slash more": (CONFIGURATION_PATH, Reply(SLASH), "", "first"),
    "no configuration": (CONFIGURATION_PATH, Reply(b"<html>"), "unusable", "OpenID configuration in JSON"),
    "a private member": (JWKS_PATH, Reply(LEAK), "unusable", "private or symmetric"),
    "a set without end": (JWKS_PATH, Reply(b'{"keys":[' + b" " * (1 << 20)), "refused", "larger than"),
    "no documents": (CONFIGURATION_PATH, Reply(status=404), "absent", "all RSA, P-256, P-384 or P-521"),
    "a redirect": (CONFIGURATION_PATH, Reply(status=302), "refused", "302"),
}


@pytest.mark.parametrize("name", SPOILT)
async def test_what_else_an_api_server_may_answer_is_an_error_that_says_what_helps(name: str, tmp_path: Path) -> None:
    path, reply, outcome, said = SPOILT[name]
    with issuer_server(tmp_path) as there:
        there.publish([ONE], issuer=ISSUER)
        async with ApiClient.from_kubeconfig(there.kubeconfig) as client:
            assert await read_api_server(client, ISSUER) == (ONE,)
            assert there.accepted == {CONFIGURATION_PATH: "application/json", JWKS_PATH: JWKS_TYPE}
            there.answers[path] = reply
            with pytest.raises((ApiError, OtherIssuerError), match=said) as caught:
                await read_api_server(client, ISSUER)
    assert (caught.value.reason if isinstance(caught.value, ApiError) else "") == outcome
    assert "secret-token" not in str(caught.value)
