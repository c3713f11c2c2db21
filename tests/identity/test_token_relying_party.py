"""The relying party as a program uses it: real HTTPS on loopback, an issuer that behaves and many that do not."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from front_kit import Authority
from issuer_server import IssuerServer, issuer_server
from token_kit import EXPECTED, NOW, SUBJECT, bad_tokens, elliptic, good_tokens, rsa_key

from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_providers.errors import Denied, Unavailable

ES, RS = elliptic(), rsa_key()
CONFIGURATION, JWKS = "/.well-known/openid-configuration", "/openid/v1/jwks"


@pytest.fixture
def issuer(tmp_path: Path) -> Generator[IssuerServer]:
    """Run an issuer with two keys."""
    with issuer_server(tmp_path) as server:
        server.publish([RS.verifying, ES.verifying])
        yield server


def party(issuer: IssuerServer, *, ca: Path | None = None, time_limit: float = 10) -> RelyingParty:
    """Make a relying party that trusts the issuer's CA."""
    https = HttpsFetcher(ca_file=ca or issuer.ca, time_limit=time_limit)
    return RelyingParty.at(replace(EXPECTED, issuer=issuer.url), https, clock=lambda: NOW + 1)


async def refusal(asked: RelyingParty, text: bytes) -> Denied | Unavailable:
    """Return why a token is not believed."""
    with pytest.raises((Denied, Unavailable)) as refused:
        await asked.verify(text)
    error = refused.value
    assert isinstance(error, Denied | Unavailable)
    return error


async def test_tokens_are_verified_by_what_the_issuer_publishes_and_it_is_asked_once(issuer: IssuerServer) -> None:
    asked = party(issuer)
    for text in good_tokens([RS, ES], NOW, issuer.url).values():
        assert (await asked.verify(text)).subject == SUBJECT
    for text in bad_tokens(ES, elliptic(1), NOW, issuer.url).values():
        assert isinstance(await refusal(asked, text), Denied)
    assert issuer.asked == [CONFIGURATION, JWKS]
    assert issuer.accepted[JWKS].startswith("application/jwk-set+json")


async def test_a_server_of_another_ca_is_not_believed(issuer: IssuerServer, tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    other.write_bytes(Authority("another").pem)
    error = await refusal(party(issuer, ca=other), good_tokens([ES], NOW, issuer.url)["ES256"])
    assert "certificate" in str(error)
    assert issuer.asked == []
    other.write_bytes(b"no PEM")
    assert "no certificate in it" in str(
        await refusal(party(issuer, ca=other), good_tokens([ES], NOW, issuer.url)["ES256"])
    )


async def test_a_proxy_of_the_environment_is_not_used(issuer: IssuerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await party(issuer).verify(good_tokens([ES], NOW, issuer.url)["ES256"])).subject == SUBJECT
