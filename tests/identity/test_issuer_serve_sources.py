"""Where served keys come from: files that change, API servers that err and lie, and how long what was read lasts."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from issuer_kit import LOOPBACK, Upstream, ask, ask_until, get, new_key, pem, running, upstream
from polling import until

from nodeattest_identity.issuer.documents import JWKS_TYPE, documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.serve.app import KeysSource, ServeSettings
from nodeattest_identity.serve.service import Metrics, RouteTable, issuer_paths
from nodeattest_identity.serve.sources import KeyFileReader, PollConfig, Poller, SourceError, read_api_server
from nodeattest_kube.client import ApiClient
from nodeattest_serving.bounded_server import BindAddress

ISSUER = "https://issuer.example/c"
PLACE = issuer_paths(ISSUER)
ONE, OTHER = new_key(), new_key()


# Files


async def test_files_that_change_are_read_when_they_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "keys.pem"
    file.write_bytes(pem(ONE))
    keys = KeyFileReader([file])
    assert await keys.read() == (ONE,)
    file.write_bytes(pem(ONE, OTHER)[: len(pem(ONE))])  # the writer is not done
    os.utime(file, ns=(1, 1))
    assert await keys.read() is None
    file.write_bytes(pem(ONE, OTHER))
    os.utime(file, ns=(2, 2))
    assert await keys.read() is None
    assert await keys.read() == (ONE, OTHER)


@pytest.mark.parametrize("content", [b"", b"rubbish", pem(ONE)[:-10], pem(ONE) + pem(OTHER)[:-30]])
async def test_files_that_cannot_be_used_are_errors_and_are_tried_again(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "keys.pem"
    file.write_bytes(pem(ONE))
    keys = KeyFileReader([file])
    await keys.read()
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))
    assert await keys.read() is None
    for _ in range(2):
        with pytest.raises(SourceError, match=r"keys\.pem: expected"):
            await keys.read()
    file.write_bytes(pem(OTHER))
    assert await keys.read() is None
    assert await keys.read() == (OTHER,)


# API servers


@asynccontextmanager
async def reading(
    directory: Path,
) -> AsyncGenerator[tuple[Upstream, Callable[[], Awaitable[tuple[VerifyingKey, ...]]]]]:
    async with upstream(ISSUER, [ONE], directory) as there, ApiClient.from_kubeconfig(there.kubeconfig) as client:
        yield there, lambda: read_api_server(client, ISSUER)


async def test_an_api_server_is_asked_for_both_documents_in_the_types_that_it_takes(tmp_path: Path) -> None:
    async with reading(tmp_path) as (there, read):
        assert await read() == (ONE,)
    assert there.asked == [("/.well-known/openid-configuration", "application/json"), ("/openid/v1/jwks", JWKS_TYPE)]


def private_set() -> bytes:
    (member,) = json.loads(documents(ISSUER, ISSUER, [ONE]).jwks)["keys"]
    return json.dumps({"keys": [{**member, "d": "AAAA"}]}).encode()


SPOILT: dict[str, tuple[dict[str, object], str, str]] = {
    "another's issuer": ({"configuration": documents("https://issuer.example/d", ISSUER, [ONE]).configuration},
                         "other-issuer", "as its first"),
    "a slash more": ({"configuration": documents(f"{ISSUER}/", ISSUER, [ONE]).configuration}, "other-issuer", "first"),
    "no configuration": ({"configuration": b"<html>"}, "unusable", "OpenID configuration in JSON"),
    "a configuration without end": ({"configuration": b"{" + b" " * 70_000}, "refused", "larger than"),
    "an empty set": ({"jwks": b'{"keys":[]}'}, "unusable", "1 to"),
    "a private member": ({"jwks": private_set()}, "unusable", "private or symmetric"),
    "a set without end": ({"jwks": b'{"keys":[' + b" " * (1 << 20)}, "refused", "larger than"),
    "no right": ({"status": 403}, "forbidden", "manifests/workload-issuer"),
    "no documents": ({"status": 404}, "absent", "https URL"),
    "no documents because of a key": ({"status": 404}, "absent", "all RSA, P-256, P-384 or P-521"),
    "a login": ({"status": 401}, "refused", "401"),
    "trouble": ({"status": 500}, "refused", "500"),
    "a redirect": ({"status": 302}, "refused", "302"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
async def test_what_else_an_api_server_may_answer_is_an_error_that_says_what_helps(name: str, tmp_path: Path) -> None:
    changes, outcome, said = SPOILT[name]
    async with reading(tmp_path) as (there, read):
        for field, value in changes.items():
            setattr(there, field, value)
        with pytest.raises(SourceError, match=said) as caught:
            await read()
    assert caught.value.outcome == outcome
    assert "secret-token" not in str(caught.value)


# How long it lasts


class Source:
    """Gives what it is told to."""

    def __init__(self) -> None:
        self.gives: tuple[VerifyingKey, ...] | SourceError | None = (ONE,)

    async def read(self) -> tuple[VerifyingKey, ...] | None:
        if isinstance(self.gives, SourceError):
            raise self.gives
        return self.gives


def followed(max_stale: float | None) -> tuple[Source, Poller, RouteTable, list[float]]:
    source, routes, time = Source(), RouteTable(max_age=60, secure=False), [1000.0]
    routes.open(PLACE)
    config = PollConfig(period=60.0, max_stale=max_stale)
    poller = Poller([PLACE], source.read, routes=routes, metrics=Metrics(), config=config, clock=lambda: time[0])
    return source, poller, routes, time


def served(routes: RouteTable) -> bytes:
    return routes.answer(make_mocked_request("GET", PLACE.jwks_path)).body


async def test_what_was_read_last_is_served_while_the_source_is_away_and_not_for_ever() -> None:
    source, poller, routes, time = followed(max_stale=3600.0)
    assert await poller.poll()
    last = served(routes)
    source.gives = SourceError("unreachable", "away")
    time[0] += 3600
    assert not await poller.poll()
    assert (served(routes), poller.last_error) == (last, "away")
    time[0] += 1
    assert not await poller.poll()
    assert b"ServiceUnavailable" in served(routes)
    assert poller.unready_reason() == "away"
    source.gives = (ONE, OTHER)
    assert await poller.poll()
    assert served(routes) == documents(ISSUER, PLACE.jwks_uri, [ONE, OTHER]).jwks
    assert poller.last_error is None


# Put together


async def test_an_api_servers_keys_are_served_under_our_own_key_sets_url_and_readiness_says_so(tmp_path: Path) -> None:
    async with upstream(ISSUER, [ONE], tmp_path) as there:
        there.status = 403
        settings = ServeSettings(
            address=BindAddress(LOOPBACK, 0),
            health=BindAddress(LOOPBACK, 0),
            source=KeysSource(issuers=(PLACE,)),
            period=1.0,
        )
        async with running(settings, lambda: ApiClient.from_kubeconfig(there.kubeconfig)) as ports:
            assert ports.health is not None
            await until(lambda: there.asked)
            assert (await ask(ports.main, get("/c/openid/v1/jwks"))).status == 503
            not_ready = await ask(ports.health, get("/readyz"))
            there.status = 200
            path = "/c/.well-known/openid-configuration"
            answer = await ask_until(lambda answer: answer.status == 200, ports.main, get(path))
            ready = await ask(ports.health, get("/readyz"))
            metrics = (await ask(ports.health, get("/metrics"))).body.decode()
    assert json.loads(answer.body)["jwks_uri"] == f"{ISSUER}/openid/v1/jwks"
    assert (not_ready.status, ready.status) == (500, 200)
    assert f'nodeattest_issuer_keys{{issuer="{ISSUER}"}} 1.0' in metrics
    assert f'nodeattest_issuer_reads_total{{issuer="{ISSUER}",outcome="forbidden"}}' in metrics


async def test_however_many_ask_an_api_server_is_asked_once(tmp_path: Path) -> None:
    async with upstream(ISSUER, [ONE], tmp_path) as there:
        there.hang = asyncio.Event()
        settings = ServeSettings(address=BindAddress(LOOPBACK, 0), source=KeysSource(issuers=(PLACE,)))
        async with running(settings, lambda: ApiClient.from_kubeconfig(there.kubeconfig)) as ports:
            answers = await asyncio.gather(*(ask(ports.main, get("/c/openid/v1/jwks")) for _ in range(50)))
            assert {answer.status for answer in answers} == {503}
            there.hang.set()
            await until(lambda: len(there.asked) == 2)
            answers = await asyncio.gather(*(ask(ports.main, get("/c/openid/v1/jwks")) for _ in range(50)))
    assert len(there.asked) == 2
