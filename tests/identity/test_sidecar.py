"""A sidecar: whom it believes, who is let through, what the add-on is told, what is refused."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import proxy_kit
import pytest
from polling import until
from proxy_kit import SIDECAR, asked_by, connected, exchange, fixed, read_answer, request, sidecar, upstream
from token_kit import NOW, elliptic

from nodeattest_identity.addon.sidecar.audiences import ServiceAudiences, selects
from nodeattest_identity.addon.sidecar.service import Metrics
from nodeattest_identity.proxy.refusals import ProxyLimits
from nodeattest_kube.client import ApiClient
from nodeattest_kube.kubeconfig import read_kubeconfig
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_serving.connection_slots import share_of_owner

FEW = replace(SIDECAR, limits=ProxyLimits(connections=16))


async def test_each_user_of_a_connection_is_told_as_himself_and_the_add_on_gets_no_token() -> None:
    async with upstream() as seen, sidecar(seen) as server:
        async with connected(server.port) as (reader, writer):
            for user in ("alice", "bob"):
                writer.write(asked_by(user, "X-Request-Id: mine", target="/a?b=c"))
                assert (await read_answer(reader)).body == b"hello"
            writer.write(request())
            assert (await read_answer(reader)).status == 401
        assert seen.values("x-authenticated-user") == ["alice", "bob"]
        assert "mine" not in seen.values("x-request-id")
        assert seen.values("authorization") == []
        assert b"eyJ" not in seen.bytes


async def test_403_is_answered_in_the_place_of_401_where_it_is_asked_for() -> None:
    async with upstream() as seen, sidecar(seen, replace(SIDECAR, deny_status=HTTPStatus.FORBIDDEN)) as server:
        answer = await exchange(server.port, request())
        assert (answer.status, answer.all("WWW-Authenticate")) == (403, [])


@pytest.mark.parametrize(
    ("user", "groups", "status"),
    [("root", [], 200), ("alice", ["dev", "ops"], 200), ("mallory", ["dev"], 403), ("mallory", None, 403)],
)
async def test_only_named_users_and_groups_are_let_through(user: str, groups: list[str] | None, status: int) -> None:
    settings = replace(SIDECAR, users=frozenset({"root"}), groups=frozenset({"ops"}))
    async with upstream() as seen, sidecar(seen, settings) as server:
        assert (await exchange(server.port, asked_by(user, groups=groups))).status == status
        assert seen.requests == (status == 200)


async def test_groups_are_told_one_a_field_and_only_where_asked_for() -> None:
    asked = asked_by("alice", "X-Authenticated-Groups: system:masters", groups=["dev", "system:authenticated"])
    for send_groups, told in ((False, []), (True, ["dev", "system:authenticated"])):
        async with upstream() as seen, sidecar(seen, replace(SIDECAR, send_groups=send_groups)) as server:
            await exchange(server.port, asked)
            assert seen.values("x-authenticated-groups") == told


async def test_the_log_names_user_audience_key_and_decision_and_no_token_nor_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with upstream() as seen, sidecar(seen) as server:
        await exchange(server.port, asked_by("alice", "Cookie: c00kie", target="/?secret=hunter2"))
        await exchange(server.port, asked_by("mallory", target="/?secret=hunter2", lasts=-60))
        await exchange(server.port, asked_by(target="/?access_token=hunter2"))
    text = "\n".join(record.getMessage() for record in caplog.records)
    kid = elliptic().verifying.kid
    assert f": forwarded, 200; user 'alice', aud {proxy_kit.AUDIENCE}, kid '{kid}'" in text
    assert "refused, CredentialsRefused: JWTExpired" in text
    for secret in ("hunter2", "c00kie", "eyJ", proxy_kit.users_token().decode().split(".")[1]):
        assert secret not in text


async def test_unauthenticated_clients_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    async with upstream() as seen, sidecar(seen, metrics=metrics) as server:
        for _ in range(50):
            assert (await exchange(server.port, request())).status == 401
            assert (await exchange(server.port, asked_by())).status == 200
        await exchange(server.port, b"no HTTP\r\n\r\n")
    assert caplog.text.count("CredentialsMissing") == 20
    assert caplog.text.count("user 'alice'") == 50
    for reason, count in (("CredentialsMissing", 50), ("RequestMalformed", 1)):
        assert f'nodeattest_sidecar_refused_total{{reason="{reason}"}} {count}.0' in metrics.render().decode()


async def test_the_body_cap_is_413_also_where_the_length_was_not_told() -> None:
    async with (
        upstream(proxy_kit.silent) as seen,
        sidecar(seen, replace(SIDECAR, limits=ProxyLimits(max_body=10))) as server,
    ):
        told = asked_by("alice", "Content-Length: 11", method="POST")
        assert (await exchange(server.port, told)).status == 413
        assert seen.connections == []
        chunked = asked_by("alice", "Transfer-Encoding: chunked", method="POST")
        assert (await exchange(server.port, chunked + b"b\r\nhello world\r\n0\r\n\r\n")).status == 413
        assert b"hello world" not in seen.bytes


async def test_a_token_counts_while_its_audience_is_ours_and_until_exp_whatever_the_leeway() -> None:
    known = proxy_kit.AUDIENCE
    ours, now = {known}, [NOW]
    async with upstream() as seen, sidecar(seen, audiences=lambda: frozenset(ours), now=lambda: now[0]) as server:
        for audience, later, status in (
            (proxy_kit.AUDIENCE, 0, 200),
            ("", 0, 503),
            ("a/b", 0, 401),
            (proxy_kit.AUDIENCE, 60, 401),
        ):
            ours.clear()
            ours.update({audience} - {""})
            now[0] = NOW + later
            assert (await exchange(server.port, asked_by(lasts=60))).status == status
        assert seen.requests == 1


async def test_an_upstream_connection_with_a_broken_body_is_used_for_no_other_request() -> None:
    async with upstream() as seen, sidecar(seen) as server:
        async with connected(server.port, asked_by("alice", "Content-Length: 100", method="POST") + b"half"):
            await until(lambda: b"half" in seen.bytes)
        await until(lambda: seen.closed == 1)
        await exchange(server.port, asked_by("bob"))
        assert len(seen.connections) == 2


@pytest.mark.parametrize("address", [proxy_kit.LOOPBACK, "127.0.0.2"], ids=["the same client", "another client"])
async def test_unauthenticated_connections_end_no_authenticated_one_and_are_counted(address: str) -> None:
    metrics = Metrics()
    async with (
        upstream(fixed(proxy_kit.STREAM)) as seen,
        sidecar(seen, FEW, metrics=metrics) as server,
        AsyncExitStack() as stack,
    ):
        live: list[asyncio.StreamReader] = []
        for _ in range(4):
            reader, _ = await stack.enter_async_context(connected(server.port, asked_by()))
            await reader.readuntil(b"2\r\nhi\r\n")
            live.append(reader)
        for _ in range(40):
            _, writer = await asyncio.open_connection(proxy_kit.LOOPBACK, server.port, local_addr=(address, 0))
            stack.callback(writer.close)
            with suppress(ConnectionError):
                writer.write(b"GET / HT")
                await writer.drain()
        if address != proxy_kit.LOOPBACK:
            assert (await exchange(server.port, request())).status == 401
        assert [reader.at_eof() for reader in live] == [False] * 4
        assert server.in_flight == 4
        assert "nodeattest_sidecar_requests_open 4.0" in metrics.render().decode()
    assert "nodeattest_sidecar_connections_turned_away_total 0.0" not in metrics.render().decode()


async def test_one_user_has_a_share_of_the_connections_whatever_he_may_have_at_once() -> None:
    async with upstream(proxy_kit.silent) as seen, sidecar(seen, FEW) as server, AsyncExitStack() as stack:
        for number in range(share_of_owner(FEW.limits.connections)):
            await stack.enter_async_context(connected(server.port, asked_by()))
            await until(lambda number=number: server.in_flight == number + 1)
        assert (await exchange(server.port, asked_by())).status == 429


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

    async with ApiClient(read_kubeconfig(real_control_plane.admin_kubeconfig)) as client:
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
