"""Access tokens: from a key or a metadata server; never in a message, never by a proxy that nobody configured."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from gcp_world import ACCOUNT, PROJECT, Calls, cloud_in, instance_of
from tpm_world import SoftTpm

from nodeattest_providers.errors import Unavailable
from nodeattest_providers.gcp.api.tokens import Tokens
from nodeattest_providers.gcp.config import GcpPlatform, parse_platform
from nodeattest_providers.platform import CallOutcome
from nodeattest_sandbox.clouds.gcp.cloud import GoogleCloud


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Generator[GoogleCloud]:
    with cloud_in(tmp_path_factory.mktemp("cloud")) as running:
        yield running


def with_key(cloud: GoogleCloud) -> GcpPlatform:
    key = cloud.account(ACCOUNT, project=PROJECT, reads=(PROJECT,))
    return parse_platform({"caBundle": str(cloud.ca_file), "credentialsFile": str(key)})


async def test_a_key_gets_a_token_that_is_kept(cloud: GoogleCloud) -> None:
    calls = Calls()
    tokens = Tokens(with_key(cloud), calls)
    first = await asyncio.gather(*(tokens.token() for _ in range(10)))
    assert {*first, await tokens.token()} == {first[0]}
    assert cloud.tokens.holder(f"Bearer {first[0]}") == ACCOUNT
    assert calls.seen == [("oauth", CallOutcome.OK)]


async def test_a_token_that_was_forgotten_is_fetched_anew(cloud: GoogleCloud) -> None:
    tokens = Tokens(with_key(cloud), Calls())
    first = await tokens.token()
    tokens.forget("another")
    assert await tokens.token() == first
    tokens.forget(first)
    assert await tokens.token() != first


async def test_a_key_that_the_server_does_not_know_gets_none(cloud: GoogleCloud) -> None:
    calls = Calls()
    settings = with_key(cloud)
    assert settings.credentials is not None
    cloud.tokens.account_key(ACCOUNT, PROJECT)  # another one than the file has
    with pytest.raises(Unavailable) as caught:
        await Tokens(settings, calls).token()
    assert calls.seen == [("oauth", CallOutcome.REFUSED)]
    assert settings.credentials not in str(caught.value)
    assert "invalid_grant" not in str(caught.value)


async def test_a_token_endpoint_of_another_authority_is_not_believed(cloud: GoogleCloud, tmp_path: Path) -> None:
    with cloud_in(tmp_path) as other:
        settings = replace(with_key(cloud), authorities=other.ca_file.read_text())
        calls = Calls()
        with pytest.raises(Unavailable):
            await Tokens(settings, calls).token()
    assert calls.seen == [("oauth", CallOutcome.UNREACHABLE)]


async def test_a_proxy_of_the_environment_is_not_asked(cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert await Tokens(with_key(cloud), Calls()).token()


async def test_a_configured_proxy_is_asked(cloud: GoogleCloud) -> None:
    calls = Calls()
    with pytest.raises(Unavailable):
        await Tokens(replace(with_key(cloud), proxy="http://127.0.0.1:1"), calls).token()
    assert calls.seen == [("oauth", CallOutcome.UNREACHABLE)]


def test_on_google_cloud_the_instances_own_account_is_found(cloud: GoogleCloud, tmp_path: Path) -> None:
    instance = instance_of(SoftTpm(), service_account=ACCOUNT, number="99")
    host = cloud.metadata_endpoint(instance).removeprefix("http://")
    environment = {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "HOME": str(tmp_path)}
    script = (  # google-auth reads these when it is imported
        "import asyncio\n"
        "from nodeattest_providers.gcp.api.tokens import Tokens\n"
        "from nodeattest_providers.gcp.config import parse_platform\n"
        "print(asyncio.run(Tokens(parse_platform({}), print).token()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert cloud.tokens.holder(f"Bearer {done.stdout.split()[-1]}") == ACCOUNT


async def test_without_any_credentials_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    calls = Calls()
    with pytest.raises(Unavailable) as caught:
        await Tokens(parse_platform({}), calls).token()
    assert "platforms.gcp.credentialsFile" in caught.value.remedy
    assert calls.seen == [("oauth", CallOutcome.REFUSED)]


@pytest.mark.parametrize("claims", [{"type": "service_account"}, {"type": "external_account"}])
async def test_credentials_that_lack_what_they_need_are_refused(tmp_path: Path, claims: dict[str, str]) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(claims))
    with pytest.raises(Unavailable):
        await Tokens(parse_platform({"credentialsFile": str(path)}), Calls()).token()


def test_no_repr_shows_a_key_or_a_token(cloud: GoogleCloud) -> None:
    settings = with_key(cloud)
    assert "BEGIN" not in repr(settings)
    assert "ya29" not in repr(Tokens(settings, Calls()))
