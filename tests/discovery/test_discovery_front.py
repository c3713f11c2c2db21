"""The front over real TLS: one signed answer for whoever proves a token, and the webhook that knows its holder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import ssl
import time
from pathlib import Path

import pytest
from core_kit import JWT_NOW as NOW
from core_kit import TOKEN, jwt
from front_kit import LOOPBACK, Authority, KnownCluster, ask, front, get, secret_object
from polling import until

from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.front import ClusterCache, FrontLimits, FrontSettings, authenticate, run_front
from nodeattest_discovery.jwt import hs256, mint, parse
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, encode, secret_name, stored_token
from nodeattest_discovery.token import BootstrapToken, generate
from nodeattest_kube.client import ApiClient
from nodeattest_kube.kubeconfig import ApiEndpoint, read_kubeconfig
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_serving.bounded_server import BindAddress

OTHER = BootstrapToken("fedcba", "fedcba9876543210")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def known(authority: Authority) -> KnownCluster:
    return KnownCluster.of(authority)


def bearer(token: BootstrapToken = TOKEN) -> bytes:
    return b"Bearer " + mint(token, NOW).encode()


async def test_whoever_proves_a_token_gets_cluster_info_signed_with_it(
    known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    async with front(known, tmp_path, authority) as port:
        answer = await ask(port, get(bearer()), authority)
    assert answer.status == 200
    assert answer.all("X-Kubernetes-JWS") == [jws.sign(answer.body, TOKEN)]
    assert answer.all("Content-Type") == ["application/json"]
    assert answer.all("Connection") == ["close"]
    assert not answer.all("Content-Encoding")
    shown = json.loads(answer.body)
    assert (shown["kind"], shown["metadata"]["name"], shown["metadata"]["namespace"]) == (
        "ConfigMap",
        "cluster-info",
        "kube-public",
    )
    assert known.config_map is not None
    assert shown["data"] == known.config_map["data"]


@pytest.mark.parametrize(
    ("token", "secret"),
    [
        (TOKEN, secret_object()),
        (TOKEN, None),
        (OTHER, secret_object(OTHER)),
        (TOKEN, secret_object(expiration="2020-01-01T00:00:00Z")),
        (TOKEN, secret_object(usage_bootstrap_signing=None)),
        (TOKEN, secret_object(usage_bootstrap_authentication=None)),
        (TOKEN, secret_object(token_secret="0123456789abcdee")),
    ],
)
def test_as_much_is_computed_whatever_is_wrong(token: BootstrapToken, secret: JsonObject | None) -> None:
    macs: list[bytes] = []
    looked_up: list[str] = []

    def mac(key: bytes, message: bytes) -> bytes:
        macs.append(message)
        return hs256(key, message)

    def look_up(token_id: str) -> JsonObject | None:
        looked_up.append(token_id)
        return secret

    text = mint(token, NOW).encode()
    with contextlib.suppress(Denied):
        authenticate(parse(text), look_up, now=NOW, mac=mac)
    assert (macs, looked_up) == ([text.rpartition(b".")[0]], [token.id])


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(get(bearer(), more=b"Content-Length: 1\r\n") + b"x", 400, id="a body"),
        pytest.param(get(bearer(), more=b"Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n", 400, id="chunks"),
        pytest.param(get(bearer()).replace(b"GET", b"HEAD"), 405, id="HEAD"),
        pytest.param(get(bearer()).replace(b"GET", b"OPTIONS"), 405, id="OPTIONS"),
        pytest.param(get(bearer(), path="/api/v1/namespaces/kube-system/secrets"), 404, id="Secrets"),
        pytest.param(get(bearer(), path=clusterinfo.PATH + "?timeout=10s"), 200, id="a time limit in the query"),
    ],
)
async def test_anything_but_the_one_question_is_refused(
    request_: bytes, status: int, known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    async with front(known, tmp_path, authority) as port:
        answer = await ask(port, request_, authority)
    assert answer.status == status
    if status == 405:
        assert answer.all("Allow") == ["GET"]


async def test_while_the_cluster_is_not_known_well_enough_nothing_is_answered(
    known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    known.away = "the API server is away"
    async with front(known, tmp_path, authority) as port:
        answer = await ask(port, get(bearer()), authority)
    assert (answer.status, answer.all("Retry-After")) == (503, ["5"])
    assert known.asked == []


async def test_a_tokens_limit_is_used_up_only_by_whoever_proves_it(
    known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    forged = get(b"Bearer " + jwt(secret="0123456789abcdee"))
    async with front(known, tmp_path, authority, limits=FrontLimits(token_burst=1, token_rate=0.001)) as port:
        answers = [await ask(port, request, authority) for request in (forged, forged, get(bearer()), get(bearer()))]
    assert [answer.status for answer in answers] == [401, 401, 200, 429]
    assert answers[-1].all("Retry-After") == ["1"]


async def test_the_log_names_token_client_and_decision_and_never_the_proof(
    known: KnownCluster, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    async with front(known, tmp_path, authority) as port:
        await ask(port, get(bearer()), authority)
        await ask(port, get(b"Bearer " + jwt(secret="0123456789abcdee")), authority)
        await ask(port, get(b"Bearer \x00" + bearer()), authority)
        await ask(port, get(), authority)
    assert f"answered {LOOPBACK}, token abcdef: 200" in caplog.text
    assert "expected Authorization: Bearer <JWT>, got none" in caplog.text
    assert f"refused {LOOPBACK}, token abcdef: expected a MAC by the token's secret" in caplog.text
    for part in (*mint(TOKEN, NOW).split("."), TOKEN.secret, jwt(secret="0123456789abcdee").decode()):
        assert part not in caplog.text


async def test_a_flood_of_refusals_does_not_flood_the_log(
    known: KnownCluster, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with front(known, tmp_path, authority) as port:
        for _ in range(60):
            assert (await ask(port, get(), authority)).status == 401
    assert caplog.text.count(f"refused {LOOPBACK}") == 50


async def test_answers_and_connections_over_a_limit_are_counted(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.certify(tmp_path)
    anywhere, limits = BindAddress(LOOPBACK, 0), FrontLimits(connections=1, connections_of_client=1)
    settings = FrontSettings(address=anywhere, certificate=certificate, key=key, health=anywhere, limits=limits)
    client = ApiClient(ApiEndpoint(server="https://127.0.0.1:1"))
    caplog.set_level(logging.INFO, "nodeattest_serving.program")
    running = asyncio.create_task(run_front(settings, client))
    try:
        await until(lambda: "serving on port" in caplog.text)
        port, health = map(int, re.findall(r"serving on port (\d+), health on (\d+)", caplog.text)[0])
        context = ssl.create_default_context(cadata=authority.pem.decode())
        _, held = await asyncio.open_connection(LOOPBACK, port, ssl=context)
        assert (await ask(port, get(bearer()), authority)).status == 503
        reader, writer = await asyncio.open_connection(LOOPBACK, health)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: front\r\nConnection: close\r\n\r\n")
        metrics = await reader.read()
        for each in (held, writer):
            each.close()
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert b'nodeattest_discovery_requests_total{code="503"} 1.0\n' in metrics
    assert b"nodeattest_discovery_connections_turned_away_total 1.0\n" in metrics


# What it knows of its cluster


SECRETS = "/api/v1/namespaces/kube-system/secrets"


async def test_tokens_are_known_and_what_was_read_last_is_good_for_a_bounded_time(control_plane: ControlPlane) -> None:
    admin, made, passed = control_plane.client(), generate(), [0.0]
    metadata: JsonMap = {"name": secret_name(made.id), "annotations": {"a": "b"}}
    secret: JsonMap = {"metadata": metadata, "type": SECRET_TYPE, "data": {**encode(TokenSecret(token=made))}}
    await asyncio.to_thread(admin.create, SECRETS, secret)
    opaque: JsonMap = {"metadata": {"name": "bootstrap-token-opaque"}, "data": {"a": "Yg=="}}
    await asyncio.to_thread(admin.create, SECRETS, opaque)
    async with ApiClient(read_kubeconfig(control_plane.admin_kubeconfig)) as client:
        view = ClusterCache(client, max_stale=300, clock=lambda: time.monotonic() + passed[0])
        assert view.unready_reason() == "the tokens of the cluster were not read yet"
        assert view.token(made.id) is None
        task = asyncio.create_task(view.run())
        try:
            await until(lambda: view.unready_reason() is None, "a cluster that was read")
            known = view.token(made.id)
            assert known is not None
            assert stored_token(known) == made
            assert set(known) == {"metadata", "type", "data"}
            assert known["metadata"].keys() <= {"name", "namespace", "uid", "resourceVersion"}  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue, reportUnknownMemberType] - an object of the API
            assert view.token("opaque") is None
            passed[0] = 301.0
            assert view.unready_reason() == "no contact to the API server about tokens for more than 300 s"
        finally:
            task.cancel()
            await asyncio.wait([task])
    for name in (secret_name(made.id), "bootstrap-token-opaque"):
        await asyncio.to_thread(admin.send, "DELETE", f"{SECRETS}/{name}")
