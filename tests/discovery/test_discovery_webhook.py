"""The TokenReview webhook: a JWT's holder may read cluster-info and is nobody of Kubernetes' own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest
from front_kit import Authority, KnownCluster, ask, listening, secret_object
from jwt_kit import CLAIMS, NOW, TOKEN, jwt

from nodeattest_discovery.front import tokenreview
from nodeattest_discovery.front.service import FrontSettings, Metrics, WebhookSettings
from nodeattest_discovery.front.tokenreview import PATH, TokenReviewService
from nodeattest_discovery.jwt import mint
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.bounded_server import BindAddress, SettingsError
from nodeattest_serving.listener import Listener

V1 = "authentication.k8s.io/v1"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def known(authority: Authority) -> KnownCluster:
    return KnownCluster.of(authority)


@pytest.fixture
async def webhook(known: KnownCluster, authority: Authority, tmp_path: Path) -> AsyncGenerator[Listener]:
    service = TokenReviewService(known, audience="cluster-1", metrics=Metrics(), now=lambda: NOW)
    async with listening(service.handle, tmp_path, authority) as listener:
        yield listener


def review(token: str | None = None, *, version: str = V1, audiences: object = None) -> bytes:
    spec: dict[str, object] = {"token": mint(TOKEN, NOW) if token is None else token}
    if audiences is not None:
        spec["audiences"] = audiences
    return json.dumps(
        {"kind": "TokenReview", "apiVersion": version, "metadata": {"creationTimestamp": None}, "spec": spec}
    ).encode()


def post(body: bytes, path: str = PATH + "?timeout=30s", method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: webhook\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def status(webhook: Listener, authority: Authority, body: bytes) -> JsonObject:
    answer = await ask(webhook.port, post(body), authority)
    assert answer.status == 200
    document = json.loads(answer.body)
    assert (document["kind"], document["apiVersion"]) == ("TokenReview", json.loads(body)["apiVersion"])
    return cast("JsonObject", document["status"])


@pytest.mark.parametrize("version", [V1, "authentication.k8s.io/v1beta1"])
async def test_whoever_proves_a_token_is_a_reader_of_cluster_info_and_nothing_of_system(
    version: str, webhook: Listener, authority: Authority
) -> None:
    said = await status(webhook, authority, review(version=version))
    user = {"username": "nodeattest:discovery:abcdef", "groups": ["nodeattest:discovery"]}
    assert said == {"authenticated": True, "user": user}
    assert "system:" not in json.dumps(said)


@pytest.mark.parametrize(
    ("token", "secret"),
    [
        pytest.param(jwt(secret="0123456789abcdee").decode(), secret_object(), id="another secret"),
        pytest.param(jwt(claims=CLAIMS | {"exp": NOW}).decode(), secret_object(), id="expired"),
        pytest.param(jwt(claims=CLAIMS | {"aud": "cluster-2"}).decode(), secret_object(), id="another cluster's"),
        pytest.param(TOKEN.reveal(), secret_object(), id="the token itself"),
        pytest.param(None, secret_object(usage_bootstrap_authentication=None), id="a token that may only sign"),
    ],
)
async def test_any_other_bearers_token_is_nobodys(
    token: str | None, secret: JsonObject, known: KnownCluster, webhook: Listener, authority: Authority
) -> None:
    known.secrets[TOKEN.id] = secret
    assert await status(webhook, authority, review(token)) == {"authenticated": False}


async def test_an_audience_is_answered_for_when_it_is_asked_for_and_the_tokens_own(
    webhook: Listener, authority: Authority
) -> None:
    minted = mint(TOKEN, NOW, audience="cluster-1")
    assert await status(webhook, authority, review(minted, audiences=["other"])) == {"authenticated": False}
    said = await status(webhook, authority, review(minted, audiences=["other", "cluster-1"]))
    assert (said["authenticated"], said["audiences"]) == (True, ["cluster-1"])


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (post(b"{}"), 400),
        (post(b""), 400),
        (post(b"[" * 10_000), 400),
        (post(review(version="authentication.k8s.io/v2")), 400),
        (post(review().replace(b"TokenReview", b"Token")), 400),
        (post(review("")), 400),
        (post(review(audiences="x")), 400),
        (post(review(audiences=[1])), 400),
        (post(review(audiences=["x"] * 65)), 400),
        (post(review().replace(b'"token"', b'"token": "another", "token"', 1)), 400),
        (post(b" " * (tokenreview.MAX_BODY + 1)), 413),
        (post(review(), path="/"), 404),
        (post(b"", method="GET"), 405),
    ],
)
async def test_what_is_no_token_review_is_refused(
    request_: bytes, code: int, webhook: Listener, authority: Authority
) -> None:
    assert (await ask(webhook.port, request_, authority)).status == code


@pytest.mark.parametrize("host", ["0.0.0.0", "", "192.0.2.1", "::", "localhost"])
def test_without_a_client_ca_only_this_machine_may_ask(host: str) -> None:
    address = BindAddress("127.0.0.1", 0)
    with pytest.raises(SettingsError, match="client CA"):
        FrontSettings(
            address=address, certificate=Path(), key=Path(), webhook=WebhookSettings(address=BindAddress(host, 9444))
        )
    FrontSettings(address=address, certificate=Path(), key=Path(), webhook=WebhookSettings(address=address))
