"""Whom a sidecar believes: TokenReview's answers, and which Services are ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from polling import until
from proxy_kit import users_token

from nodeattest_identity.addon.sidecar.audiences import ServiceAudiences, selects
from nodeattest_identity.addon.sidecar.fair_semaphore import FairSemaphore
from nodeattest_identity.addon.sidecar.verifiers import CachedVerifier, TokenReviewVerifier, parse_review
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace

OURS = frozenset({"apps/dashboard", "apps/other"})


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


@pytest.mark.parametrize(
    ("audience", "asked"),
    [
        (["apps/dashboard"], True),
        ("apps/dashboard", True),
        (["https://kubernetes.default.svc", "apps/dashboard"], False),
        (["apps/dashboard", "apps/other"], False),
    ],
)
async def test_a_token_for_others_besides_is_refused_whatever_a_review_would_say(audience: object, asked: bool) -> None:
    token = users_token(aud=audience)
    async with _nobody() as client:
        verifier = TokenReviewVerifier(client)
        with pytest.raises(Unavailable if asked else Denied, match="did not review" if asked else "one audience"):
            await verifier.verify(token, "", OURS)


@pytest.mark.parametrize(
    "changed",
    [
        {"authenticated": False}, {"authenticated": "true"}, {"authenticated": 1}, {"audiences": []},
        {"audiences": ["elsewhere"]}, {"audiences": ["apps/dashboard", "elsewhere"]}, {"audiences": "apps/dashboard"},
        {"user": None}, {"user": {"username": ""}}, {"user": {"username": 7}},
    ],
)  # fmt: skip
def test_an_answer_that_is_not_a_plain_yes_is_no(changed: JsonObject) -> None:
    yes: JsonObject = {"authenticated": True, "user": {"username": "alice"}, "audiences": ["apps/dashboard"]}
    assert parse_review({"status": yes}, OURS, expires=None).user == "alice"
    with pytest.raises(Denied) as denied:
        parse_review({"status": {**yes, **changed}}, OURS, expires=None)
    assert denied.value.reason is Reason.TOKEN_REVIEW_REFUSED


@pytest.mark.parametrize(
    "token", [b"opaque", b"a.b.c", b"a.e30.c", b"a.W10.c", b"a.%.c", b"a." + b"W1tb" * 2000 + b".c"]
)
async def test_a_token_that_is_no_jwt_is_reviewed_by_the_api_server(token: bytes) -> None:
    async with _nobody() as client:
        with pytest.raises(Unavailable, match="did not review"):
            await TokenReviewVerifier(client).verify(token, "", OURS)


async def test_a_review_waits_in_the_line_of_the_peer_who_asks_for_it() -> None:
    class Line(FairSemaphore):
        @asynccontextmanager
        async def acquire(self, peer: str) -> AsyncGenerator[None, None]:
            peers.append(peer)
            async with super().acquire(peer):
                yield

    peers: list[str] = []
    async with _nobody() as client:
        verifier = TokenReviewVerifier(client, semaphore=Line())
        cached = CachedVerifier(verifier, lambda: OURS, keep=10, now=lambda: 0.0, clock=lambda: 0.0)
        for peer in ("10.0.0.1", "10.0.0.2"):
            with pytest.raises(Unavailable):
                await cached.caller(b"opaque", peer)
    assert peers == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.conformance
async def test_a_real_api_server_says_whose_token_it_is_for_the_services_that_select_us(
    real_control_plane: ControlPlane, tmp_path: Path
) -> None:
    admin = real_control_plane.client()
    create_namespace(admin, "sidecar")
    root, labels = "/api/v1/namespaces/sidecar", tmp_path / "labels"
    admin.create(f"{root}/serviceaccounts", {"metadata": {"name": "robot"}})
    labels.write_text('app="dashboard"\n')

    def token(*audiences: str) -> str:
        spec: JsonMap = {"audiences": [*audiences], "expirationSeconds": 600}
        return text_at(admin.create(f"{root}/serviceaccounts/robot/token", {"spec": spec}), "status", "token")

    def serve(name: str) -> None:
        spec: JsonMap = {"selector": {"app": name}, "ports": [{"port": 80}]}
        admin.create(f"{root}/services", {"metadata": {"name": name}, "spec": spec})

    async with ApiClient.from_kubeconfig_file(real_control_plane.admin_kubeconfig) as client:
        services = ServiceAudiences(client, namespace="sidecar", labels=labels)
        following = asyncio.create_task(services.run())
        try:
            await until(lambda: services.unready_reason() is None)
            assert services.audiences() == frozenset()
            serve("dashboard")
            serve("other")
            await until(lambda: services.audiences() == frozenset({"sidecar/dashboard"}))
            verifier, ours = TokenReviewVerifier(client), services.audiences()
            caller = await verifier.verify(token("sidecar/dashboard").encode(), "", ours)
            assert (caller.user, caller.expires is None) == ("system:serviceaccount:sidecar:robot", False)
            for audiences in (["sidecar/other"], ["sidecar/dashboard", "sidecar/other"]):
                with pytest.raises(Denied):
                    await verifier.verify(token(*audiences).encode(), "", ours)
            admin.delete(f"{root}/services/dashboard")
            await until(lambda: services.audiences() == frozenset())
        finally:
            following.cancel()


def _nobody() -> ApiClient:
    """Speak to an API server that is not there."""
    return ApiClient.from_kubeconfig(
        b"{kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}], "
        b"clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]}"
    )
