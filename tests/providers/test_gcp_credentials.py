"""Access tokens: from a key or a metadata server; never in a message, never from an endpoint that means ill."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gcp_world import ACCOUNT, PROJECT, instance_of
from tpm_world import SoftTpm
from worlds import Calls

from clouds.gcp import GoogleCloud, TokenServer
from clouds.serving import Reply, Request, Serving, as_json
from nodeattest_providers.errors import Unavailable
from nodeattest_providers.gcp.api.compute import Compute
from nodeattest_providers.gcp.api.tokens import Tokens
from nodeattest_providers.gcp.config import GcpPlatform, parse_platform
from nodeattest_providers.platform import CallOutcome
from nodeattest_sandbox.pki import server_tls


def with_key(google: GoogleCloud) -> GcpPlatform:
    key = google.account(ACCOUNT, project=PROJECT, reads=(PROJECT,))
    return parse_platform({"caBundle": str(google.ca_file), "credentialsFile": str(key)})


async def token_of(tokens: Tokens) -> str:
    try:
        return await tokens.token()
    finally:
        await tokens.aclose()


async def test_a_key_gets_a_token_that_is_kept(google: GoogleCloud) -> None:
    calls = Calls()
    tokens = Tokens(with_key(google), calls)
    first = await asyncio.gather(*(tokens.token() for _ in range(10)))
    assert {*first, await tokens.token()} == {first[0]}
    assert google.tokens.holder(f"Bearer {first[0]}") == ACCOUNT
    assert calls.seen == [("oauth", CallOutcome.OK)]
    await tokens.aclose()


def test_on_google_cloud_the_instances_own_account_is_found(google: GoogleCloud, tmp_path: Path) -> None:
    instance = instance_of(SoftTpm(), service_account=ACCOUNT, number="99")
    host = google.metadata_endpoint(instance).removeprefix("http://")
    environment = {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "HOME": str(tmp_path)}
    script = (  # google-auth reads these when it is imported
        "import asyncio\n"
        "from nodeattest_providers.gcp.api.tokens import Tokens\n"
        "from nodeattest_providers.gcp.config import parse_platform\n"
        "print(asyncio.run(Tokens(parse_platform({}), print).token()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert google.tokens.holder(f"Bearer {done.stdout.split()[-1]}") == ACCOUNT


async def test_without_any_credentials_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    calls = Calls()
    with pytest.raises(Unavailable) as caught:
        await token_of(Tokens(parse_platform({}), calls))
    assert "platforms.gcp.credentialsFile" in caught.value.remedy
    assert calls.seen == [("oauth", CallOutcome.REFUSED)]


async def test_a_key_that_the_server_does_not_know_gets_none_and_no_message_shows_it(google: GoogleCloud) -> None:
    calls, settings = Calls(), with_key(google)
    assert settings.credentials is not None
    google.tokens.account_key(ACCOUNT, PROJECT)  # another one than the file has
    with pytest.raises(Unavailable) as caught:
        await token_of(Tokens(settings, calls))
    assert calls.seen == [("oauth", CallOutcome.REFUSED)]
    assert settings.credentials not in str(caught.value)
    assert "invalid_grant" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ({"file": "token"}, "subject_token=of-a-file"),
        (
            {
                "environment_id": "aws1",
                "region_url": "http://127.0.0.1:1",
                "regional_cred_verification_url": "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity",
            },
            "GetCallerIdentity",
        ),
    ],
)
async def test_a_federation_shows_the_token_of_its_source(
    source: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    (tmp_path / "token").write_text("of-a-file")
    asked: list[bytes] = []

    def answer(request: Request) -> Reply:
        asked.append(request.body)
        return as_json({**TOKEN, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})

    with answering(answer, tmp_path) as port:
        content = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/p",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"https://127.0.0.1:{port}/token",
            "credential_source": source,
        }
        (tmp_path / "federation.json").write_text(json.dumps(content))
        files = {"caBundle": str(tmp_path / "ca.crt"), "credentialsFile": str(tmp_path / "federation.json")}
        assert await token_of(Tokens(parse_platform({**files}), Calls())) == TOKEN["access_token"]
    assert shown in asked[0].decode()


TOKEN = {"access_token": "theirs", "expires_in": 3600, "token_type": "Bearer"}


def tokens_at(directory: Path, port: int) -> Tokens:
    """Make a controller's tokens, by a key that names this token endpoint."""
    key = directory / "key.json"
    key.write_text(TokenServer(url=f"https://127.0.0.1:{port}/token").account_key(ACCOUNT, PROJECT))
    settings = parse_platform({"caBundle": str(directory / "ca.crt"), "credentialsFile": str(key)})
    return Tokens(settings, Calls())


@contextmanager
def answering(answer: Callable[[Request], Reply], directory: Path) -> Generator[int]:
    _, context = server_tls(directory, "gcp")
    serving = Serving(answer, context)
    try:
        yield serving.port
    finally:
        serving.stop()


@pytest.mark.parametrize(
    "body",
    [b"[" * 60_000, b'{"access_token":"x","expires_in":1e300}', b'{"access_token":5,"expires_in":5}'],
    ids=["nested", "for ever", "a number"],
)
async def test_a_token_endpoints_nonsense_is_unavailable(tmp_path: Path, body: bytes) -> None:
    answer = Reply(200, body, {"Content-Type": "application/json"})
    with answering(lambda _: answer, tmp_path) as port, pytest.raises(Unavailable):
        await token_of(tokens_at(tmp_path, port))


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
                "caBundle": str(tmp_path / "ca.crt"),
                "credentialsFile": str(key),
                "endpoints": {"compute": f"https://127.0.0.1:{port}"},
            }
        )
        api = Compute(settings, calls)
        with pytest.raises(Unavailable) as caught:
            await api.get("/compute/v1/projects/p/zones/z/instances", {})
        await api.aclose()
    assert calls.seen[-1] == ("compute", CallOutcome.THROTTLED)
    assert caught.value.retry_after == 9
