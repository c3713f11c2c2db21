"""A token endpoint that means ill: it sends on, pours, drips; and an instance that sits between two rules."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gcp_world import ACCOUNT, PROJECT, Calls

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.gcp.api.client import Api
from nodeattest_providers.gcp.api.instance import parse_instance
from nodeattest_providers.gcp.api.tokens import Tokens
from nodeattest_providers.gcp.checks import check_instance
from nodeattest_providers.gcp.config import parse_platform, parse_policy
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.platform import CallOutcome
from nodeattest_providers.verifier_interface import LedgerFacts
from nodeattest_sandbox.clouds.gcp.authority import make_authority
from nodeattest_sandbox.clouds.gcp.oauth import TokenServer
from nodeattest_sandbox.clouds.gcp.serving import Reply, Request, Serving, as_json

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
TOKEN = {"access_token": "theirs", "expires_in": 3600, "token_type": "Bearer"}


def tokens_at(directory: Path, port: int, **changes: float) -> Tokens:
    """Make a controller's tokens, by a key that names this token endpoint."""
    key = directory / "key.json"
    key.write_text(TokenServer(url=f"https://127.0.0.1:{port}/token").account_key(ACCOUNT, PROJECT))
    settings = parse_platform({"caBundle": str(directory / "cloud-ca.pem"), "credentialsFile": str(key)})
    return Tokens(settings, Calls(), **changes)


@contextmanager
def answering(answer: Callable[[Request], Reply], directory: Path) -> Generator[int]:
    _, context = make_authority(directory)
    serving = Serving(answer, context)
    try:
        yield serving.port
    finally:
        serving.stop()


async def test_a_token_endpoint_that_sends_on_is_not_followed(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.path)
        return Reply(302, b"", {"Location": "/elsewhere"}) if request.path == "/token" else as_json(TOKEN)

    with answering(answer, tmp_path) as port, pytest.raises(Unavailable):
        await tokens_at(tmp_path, port).token()
    assert set(asked) == {"/token"}


async def test_a_token_endpoint_that_pours_is_not_drunk_up(tmp_path: Path) -> None:
    large = as_json({**TOKEN, "filler": "x" * 65536})
    with answering(lambda _: large, tmp_path) as port, pytest.raises(Unavailable):
        await tokens_at(tmp_path, port).token()


@pytest.mark.parametrize("start", [HEAD + b"Content-Length: 60000\r\n\r\n", HEAD + b"X-Long: "], ids=["body", "header"])
async def test_a_token_endpoint_that_drips_is_cut_off(tmp_path: Path, start: bytes) -> None:
    _, context = make_authority(tmp_path)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=drip, args=(listening, context, start, over))
        dripping.start()
        tokens = tokens_at(tmp_path, listening.getsockname()[1], time_limit=0.5)
        try:
            with pytest.raises(Unavailable):
                await asyncio.wait_for(tokens.token(), 60)
        finally:
            over.set()
            dripping.join()


def drip(listening: socket.socket, context: ssl.SSLContext, start: bytes, over: threading.Event) -> None:
    """Answer every request so slowly that it never ends and no read times out."""
    listening.settimeout(0.1)
    while not over.is_set():
        try:
            accepted, _ = listening.accept()
            with accepted, context.wrap_socket(accepted, server_side=True) as client:
                client.sendall(start)
                while not over.wait(0.05):
                    client.sendall(b" ")
        except OSError:  # nobody there yet, or gone
            continue


async def test_a_quota_that_is_told_as_a_refusal_is_waited_for_as_a_quota(tmp_path: Path) -> None:
    errors = [{"reason": "rateLimitExceeded", "domain": "usageLimits"}]
    quota = as_json({"error": {"code": 403, "errors": errors}}, 403, {"Retry-After": "9"})

    def answer(request: Request) -> Reply:
        return as_json(TOKEN) if request.path == "/token" else quota

    with answering(answer, tmp_path) as port:
        calls, key = Calls(), tmp_path / "key.json"
        key.write_text(TokenServer(url=f"https://127.0.0.1:{port}/token").account_key(ACCOUNT, PROJECT))
        settings = parse_platform(
            {
                "caBundle": str(tmp_path / "cloud-ca.pem"),
                "credentialsFile": str(key),
                "endpoints": {"compute": f"https://127.0.0.1:{port}"},
            }
        )
        api = Api(settings, calls)
        with pytest.raises(Unavailable) as caught:
            await api.get("/compute/v1/projects/p/zones/z/instances", {})
        await api.aclose()
    assert calls.seen[-1] == ("compute", CallOutcome.THROTTLED)
    assert caught.value.retry_after == 9


def test_an_instance_that_is_another_account_besides_is_none_of_the_listed_one() -> None:
    place = InstanceRef(PROJECT, "europe-west4-a", "node-7")
    listed = f"nodes@{PROJECT}.iam.gserviceaccount.com"
    instance = parse_instance(
        {
            "id": "7",
            "name": place.name,
            "zone": place.zone,
            "status": "RUNNING",
            "shieldedInstanceConfig": {"enableVtpm": True},
            "serviceAccounts": [{"email": listed}, {"email": "admin@elsewhere.iam.gserviceaccount.com"}],
        },
        place,
    )
    policy = parse_policy({"projects": [PROJECT], "serviceAccounts": [listed]})
    with pytest.raises(Denied) as denied:
        check_instance(Checks(), instance, policy, LedgerFacts())
    assert denied.value.reason is Reason.PLATFORM_ROLE_NOT_ALLOWED
