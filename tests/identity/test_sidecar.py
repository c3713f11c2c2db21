"""A sidecar: whom it believes, who is let through, what the add-on is told, what is refused."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest
from polling import until
from proxy_kit import (
    AUDIENCE,
    LOOPBACK,
    Time,
    authorization,
    exchange,
    read_answer,
    request,
    sidecar,
    upstream,
    users_token,
)
from token_kit import elliptic

from nodeattest_identity.addon.sidecar.audiences import ServiceAudiences, selects
from nodeattest_identity.addon.sidecar.service import SidecarSettings
from nodeattest_identity.proxy.server import ProxyLimits
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_serving.bounded_server import BindAddress
from nodeattest_serving.connection_slots import share_of_owner

USUAL: Final = SidecarSettings(address=BindAddress(LOOPBACK, 0), upstream=BindAddress(LOOPBACK, 1))


async def test_the_add_on_is_told_who_calls_and_gets_no_token() -> None:
    given = users_token()
    async with upstream() as seen, sidecar(seen) as running:
        answer = await exchange(running.port, request("/a?b=c", authorization(given), "X-Request-Id: mine"))
        assert (answer.status, answer.body) == (200, b"hello")
        assert seen.values("x-authenticated-user") == ["alice"]
        assert seen.values("x-request-id") != ["mine"]
        assert seen.values("authorization") == []
        assert given not in seen.bytes


async def test_403_is_answered_in_the_place_of_401_where_it_is_asked_for() -> None:
    settings = replace(USUAL, deny_status=HTTPStatus.FORBIDDEN)
    async with upstream() as seen, sidecar(seen, settings) as running:
        answer = await exchange(running.port, request())
        assert (answer.status, answer.all("WWW-Authenticate")) == (403, [])


async def test_only_named_users_and_groups_are_let_through() -> None:
    settings = replace(USUAL, users=frozenset({"root"}), groups=frozenset({"ops"}))
    async with upstream() as seen, sidecar(seen, settings) as running:
        for given, status in (
            (users_token("root"), 200),
            (users_token("alice", groups=["dev", "ops"]), 200),
            (users_token("mallory", groups=["dev"]), 403),
            (users_token("mallory"), 403),
        ):
            assert (await exchange(running.port, request("/", authorization(given)))).status == status
        assert seen.requests == 2


async def test_groups_are_told_one_a_field_and_only_where_asked_for() -> None:
    given = users_token(groups=["dev", "system:authenticated"])
    async with upstream() as seen, sidecar(seen) as running:
        await exchange(running.port, request("/", authorization(given)))
        assert seen.values("x-authenticated-groups") == []
    async with upstream() as seen, sidecar(seen, replace(USUAL, send_groups=True)) as running:
        await exchange(running.port, request("/", authorization(given), "X-Authenticated-Groups: system:masters"))
        assert seen.values("x-authenticated-groups") == ["dev", "system:authenticated"]
        answer = await exchange(running.port, request("/", authorization(users_token(groups=["a,system:masters"]))))
        assert answer.status == 403


async def test_the_log_names_user_audience_key_and_decision_and_no_token_nor_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    given, bad = users_token(), users_token("mallory", lasts=-60)
    async with upstream() as seen, sidecar(seen) as running:
        await exchange(running.port, request("/?secret=hunter2", authorization(given), "Cookie: c00kie"))
        await exchange(running.port, request("/?secret=hunter2", authorization(bad)))
        await exchange(running.port, request("/?access_token=hunter2", authorization(given)))
    text = "\n".join(record.getMessage() for record in caplog.records)
    kid = elliptic().verifying.kid
    assert f": forwarded, 200; user 'alice', aud {AUDIENCE}, kid '{kid}'" in text
    assert "refused, CredentialsRefused: JWTExpired" in text
    for secret in ("hunter2", "c00kie", given.decode(), bad.decode(), given.decode().split(".")[1]):
        assert secret not in text


async def test_unauthenticated_clients_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with upstream() as seen, sidecar(seen) as running:
        for _ in range(50):
            assert (await exchange(running.port, request())).status == 401
            assert (await exchange(running.port, request("/", authorization(users_token())))).status == 200
        assert caplog.text.count("CredentialsMissing") == 20
        assert caplog.text.count("user 'alice'") == 50
        assert running.count('nodeattest_sidecar_refused_total{reason="CredentialsMissing"}') == 50


async def test_the_body_cap_is_413_also_where_the_length_was_not_told() -> None:
    async def script(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    settings = replace(USUAL, limits=ProxyLimits(max_body=10))
    async with upstream(script) as seen, sidecar(seen, settings) as running:
        told = request("/", authorization(users_token()), "Content-Length: 11", method="POST")
        assert (await exchange(running.port, told)).status == 413
        assert seen.connections == []
        chunked = request("/", authorization(users_token()), "Transfer-Encoding: chunked", method="POST")
        answer = await exchange(running.port, chunked + b"b\r\nhello world\r\n0\r\n\r\n")
        assert answer.status == 413
        assert b"hello world" not in seen.bytes


async def test_a_connection_serves_users_one_after_another_each_as_himself() -> None:
    async with upstream() as seen, sidecar(seen) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
        for user in ("alice", "bob"):
            writer.write(request("/", authorization(users_token(user))))
            assert (await read_answer(reader)).status == 200
        writer.write(request("/"))
        assert (await read_answer(reader)).status == 401
        writer.close()
        assert seen.values("x-authenticated-user") == ["alice", "bob"]


async def test_a_token_counts_while_its_audience_is_ours_and_until_exp_whatever_the_leeway() -> None:
    ours, time = {AUDIENCE}, Time()
    given = request("/", authorization(users_token(lasts=60)))
    async with upstream() as seen, sidecar(seen, audiences=lambda: frozenset(ours), time=time) as running:
        assert (await exchange(running.port, given)).status == 200
        ours.clear()
        assert (await exchange(running.port, given)).status == 503, "no Service is ours"
        ours.add("kube-system/other")
        assert (await exchange(running.port, given)).status == 401
        ours.add(AUDIENCE)
        time.now += 60
        assert (await exchange(running.port, given)).status == 401
        assert seen.requests == 1


async def test_an_upstream_connection_with_a_broken_body_is_used_for_no_other_request() -> None:
    async with upstream() as seen, sidecar(seen) as running:
        _, writer = await asyncio.open_connection(LOOPBACK, running.port)
        writer.write(request("/", authorization(users_token()), "Content-Length: 100", method="POST") + b"half")
        await until(lambda: b"half" in seen.bytes)
        writer.transport.abort()
        await until(lambda: seen.closed == 1)
        await exchange(running.port, request("/next", authorization(users_token("bob"))))
        assert len(seen.connections) == 2


@pytest.mark.parametrize("address", [LOOPBACK, "127.0.0.2"], ids=["the same client", "another client"])
async def test_unauthenticated_connections_end_no_authenticated_one(address: str) -> None:
    async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
        await reader.read()

    settings = replace(USUAL, limits=ProxyLimits(connections=16))
    async with upstream(streams) as seen, sidecar(seen, settings) as running, AsyncExitStack() as stack:
        live: list[asyncio.StreamReader] = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
            stack.callback(writer.close)
            writer.write(request("/", authorization(users_token())))
            await reader.readuntil(b"2\r\nhi\r\n")
            live.append(reader)
        for _ in range(40):
            _, writer = await asyncio.open_connection(LOOPBACK, running.port, local_addr=(address, 0))
            stack.callback(writer.close)
            with suppress(ConnectionError):
                writer.write(b"GET / HT")
                await writer.drain()
        if address != LOOPBACK:
            assert (await exchange(running.port, request("/"))).status == 401
        assert [reader.at_eof() for reader in live] == [False] * 4
        assert running.service.in_flight == 4


async def test_one_user_has_a_share_of_the_connections_whatever_he_may_have_at_once() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    limits = ProxyLimits(connections=16)
    async with (
        upstream(silent) as seen,
        sidecar(seen, replace(USUAL, limits=limits)) as running,
        AsyncExitStack() as stack,
    ):
        for number in range(share_of_owner(limits.connections)):
            _, writer = await asyncio.open_connection(LOOPBACK, running.port)
            stack.callback(writer.close)
            writer.write(request("/", authorization(users_token())))
            await until(lambda number=number: running.service.in_flight == number + 1)
        assert (await exchange(running.port, request("/", authorization(users_token())))).status == 429


@pytest.mark.parametrize(
    ("selector", "ours"),
    [
        ({"app": "dashboard"}, True), ({"app": "dashboard", "tier": "web"}, True), ({"app": "other"}, False),
        ({"app": "dashboard", "zone": "a"}, False), ({}, False), (None, False), ({"app": 7}, False), ("app", False),
    ],
)  # fmt: skip
def test_a_service_selects_by_equality_and_an_empty_selector_selects_nothing(selector: object, ours: bool) -> None:
    service: JsonObject = {"spec": {"selector": selector}}  # type: ignore[dict-item]
    assert selects(service, {"app": "dashboard", "tier": "web"}) is ours


@pytest.mark.conformance
async def test_the_audiences_are_the_services_that_select_the_pod_by_its_current_labels(
    real_control_plane: ControlPlane, tmp_path: Path
) -> None:
    admin = real_control_plane.client()
    create_namespace(admin, "sidecar")
    root, labels, later = "/api/v1/namespaces/sidecar", tmp_path / "labels", 0.0
    labels.write_text('app="dashboard"\n')

    def serve(name: str) -> None:
        spec: JsonMap = {"selector": {"app": name}, "ports": [{"port": 80}]}
        admin.create(f"{root}/services", {"metadata": {"name": name}, "spec": spec})

    async with ApiClient.from_kubeconfig_file(real_control_plane.admin_kubeconfig) as client:
        services = ServiceAudiences(client, namespace="sidecar", labels=labels, clock=lambda: time.monotonic() + later)
        following = asyncio.create_task(services.run())
        try:
            await until(lambda: services.unready_reason() is None)
            assert services.audiences() == frozenset()
            serve("dashboard")
            serve("other")
            await until(lambda: services.audiences() == frozenset({"sidecar/dashboard"}))
            labels.write_text('app="other"\n')
            await until(lambda: services.audiences() == frozenset({"sidecar/other"}))
            admin.delete(f"{root}/services/other")
            await until(lambda: services.audiences() == frozenset())
            later = 301.0
            assert "no contact to the API server" in (services.unready_reason() or "")
        finally:
            following.cancel()
