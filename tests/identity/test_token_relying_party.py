"""An issuer's keys: fetched over real HTTPS from documents that are believed, kept, and none too often."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from front_kit import Authority
from issuer_server import IssuerServer, Reply, issuer_server
from token_kit import EXPECTED, NOW, SUBJECT, bad_tokens, claims, elliptic, good_tokens, header, pem, rsa_key, token

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.tokens.jwks_cache import (
    FRESH,
    MAX_STALE,
    MIN_INTERVAL,
    JWKSCache,
    key_file_cache,
    read_trusted_keys,
)
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_providers.errors import Denied, Reason, Unavailable

OLD, NEW = elliptic().verifying, rsa_key().verifying
GONE = Unavailable(Reason.ISSUER_UNAVAILABLE, "away", remedy="wait")
ODD = Denied(Reason.ISSUER_DOCUMENT_REFUSED, expected="a key set", got="none", remedy="publish")


@dataclass
class Issuer:
    """An issuer whose clock stands still until it is moved."""

    keys: tuple[VerifyingKey, ...] = (OLD,)
    error: Exception | None = None
    now: float = 1000.0
    fetches: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def fetch(self) -> tuple[VerifyingKey, ...]:
        self.fetches += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.keys

    def ring(self) -> JWKSCache:
        return JWKSCache(self.fetch, monotonic=lambda: self.now, refresh_wait=0.05)


async def test_an_unknown_kid_is_asked_for_once_in_ten_seconds_whatever_tokens_name() -> None:
    issuer = Issuer()
    ring = issuer.ring()
    await ring.keys_for(OLD.kid)
    for number in range(100):
        assert await ring.keys_for(f"made up {number}") == (OLD,)
    assert issuer.fetches == 1
    issuer.now += MIN_INTERVAL
    issuer.keys = (OLD, NEW)
    assert await ring.keys_for(NEW.kid) == (OLD, NEW)
    assert issuer.fetches == 2
    await ring.keys_for(NEW.kid)
    assert issuer.fetches == 2


async def test_keys_are_fetched_again_after_five_minutes() -> None:
    issuer = Issuer()
    ring = issuer.ring()
    for later, fetches in ((0, 1), (FRESH - 1, 1), (1, 2)):
        issuer.now += later
        await ring.keys_for(OLD.kid)
        assert issuer.fetches == fetches


@pytest.mark.parametrize("error", [GONE, ODD])
async def test_the_last_good_keys_count_for_a_day_while_the_issuer_is_away_or_talks_nonsense(error: Exception) -> None:
    issuer = Issuer()
    ring = issuer.ring()
    await ring.keys_for(OLD.kid)
    issuer.error = error
    issuer.now += MAX_STALE - 1
    assert await ring.keys_for(OLD.kid) == (OLD,)
    assert ring.last_error is error
    issuer.now += 1
    assert not ring.has_keys
    fetches = issuer.fetches
    for _ in range(9):  # it is not asked for each token
        with pytest.raises(type(error)):
            await ring.keys_for(OLD.kid)
    assert issuer.fetches <= fetches + 1
    issuer.error = None
    issuer.now += MIN_INTERVAL
    assert await ring.keys_for(OLD.kid) == (OLD,)
    assert ring.last_error is None


async def test_a_token_whose_key_is_known_does_not_wait_for_an_issuer_that_hangs() -> None:
    issuer = Issuer()
    ring = issuer.ring()
    await ring.keys_for(OLD.kid)
    issuer.gate.clear()
    issuer.now += 300
    assert await asyncio.wait_for(ring.keys_for(OLD.kid), 60) == (OLD,)
    issuer.keys = (NEW,)
    issuer.gate.set()
    assert await ring.keys_for(NEW.kid) == (NEW,)
    assert issuer.fetches == 2


async def test_many_who_ask_at_once_cause_one_fetch_and_none_of_them_ends_it() -> None:
    issuer = Issuer()
    issuer.gate.clear()
    ring = issuer.ring()
    waiting = [asyncio.create_task(ring.keys_for(OLD.kid)) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    issuer.gate.set()
    assert all(keys == (OLD,) for keys in await asyncio.gather(*waiting[1:]))
    assert issuer.fetches == 1


async def test_keys_from_files_are_read_in_both_forms_and_again_when_they_change(tmp_path: Path) -> None:
    jwks, other = tmp_path / "jwks.json", tmp_path / "keys.pem"
    jwks.write_bytes(documents("https://a", "https://a/k", [OLD]).jwks)
    other.write_bytes(pem(NEW))
    assert {key.kid for key in read_trusted_keys([jwks, other, other])} == {OLD.kid, NEW.kid}
    now = [0.0]
    ring = key_file_cache([jwks], monotonic=lambda: now[0])
    assert [key.kid for key in await ring.keys_for(OLD.kid)] == [OLD.kid]
    jwks.write_bytes(documents("https://a", "https://a/k", [NEW]).jwks)
    now[0] += 60
    assert [key.kid for key in await ring.keys_for(OLD.kid)] == [NEW.kid]
    jwks.unlink()
    now[0] += 60
    assert [key.kid for key in await ring.keys_for(NEW.kid)] == [NEW.kid]
    assert "jwks.json: expected a readable file with keys" in str(ring.last_error)


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


REFUSED = "IssuerDocumentRefused"
AWAY = "IssuerUnavailable"


DOCUMENTS: dict[str, tuple[str, Reply, str, str]] = {
    "a login page": (CONFIGURATION, Reply(b"<html>log in"), REFUSED, "JSON"),
    "a slash more": (CONFIGURATION, Reply(b'{"issuer":"ISSUER/","jwks_uri":"ISSUER/k"}'), REFUSED, "issuer"),
    "broken": (CONFIGURATION, Reply(b"", 500), AWAY, "500"),
    "a configuration without end": (CONFIGURATION, Reply(b" " * 70_000), REFUSED, "at most"),
    "packed": (CONFIGURATION, Reply(b"\x1f", 200, {"Content-Encoding": "gzip"}), REFUSED, "packed"),
    "cut short": (CONFIGURATION, Reply(b"{", 200, {"Content-Length": "9"}), AWAY, "answer"),
    "a key set without end": (JWKS, Reply(b"{" * 2_000_000), REFUSED, "at most"),
    "no key": (JWKS, Reply(b'{"keys":[]}'), REFUSED, "key"),
    "no key set": (JWKS, Reply(b"", 404), AWAY, "404"),
}


@pytest.mark.parametrize(("path", "reply", "reason", "words"), DOCUMENTS.values(), ids=DOCUMENTS.keys())
async def test_documents_that_are_not_to_be_believed_are_refused(
    issuer: IssuerServer, path: str, reply: Reply, reason: str, words: str
) -> None:
    issuer.answers[path] = replace(reply, body=reply.body.replace(b"ISSUER", issuer.url.encode()))
    error = await refusal(party(issuer), good_tokens([ES], NOW, issuer.url)["ES256"])
    assert error.reason == reason
    assert words in str(error)
    assert set(issuer.asked) <= {CONFIGURATION, JWKS}


async def test_a_key_that_is_not_for_us_among_an_issuers_hides_no_other(issuer: IssuerServer) -> None:
    foreign = b'{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":"AAAA"},'
    issuer.answers[JWKS] = Reply(issuer.answers[JWKS].body.replace(b'{"keys":[', foreign, 1))
    assert (await party(issuer).verify(good_tokens([ES], NOW, issuer.url)["ES256"])).subject == SUBJECT


async def test_an_issuer_that_never_ends_its_answer_is_given_up(issuer: IssuerServer) -> None:
    never = threading.Event()
    issuer.answers[JWKS] = replace(issuer.answers[JWKS], after=never)
    try:
        error = await refusal(party(issuer, time_limit=0.3), good_tokens([ES], NOW, issuer.url)["ES256"])
    finally:
        never.set()
    assert "no whole answer within" in str(error)


async def test_a_token_that_is_none_asks_nobody(issuer: IssuerServer) -> None:
    for text in (b"abcdef.0123456789abcdef", token(ES, header(ES, jku=f"{issuer.url}/evil"))):
        assert (await refusal(party(issuer), text)).reason == Reason.JWT_MALFORMED
    assert issuer.asked == []


async def test_a_path_in_the_issuer_and_a_slash_at_its_end_are_its_own(issuer: IssuerServer) -> None:
    name = f"{issuer.url}/clusters/one/"
    issuer.publish([ES.verifying], issuer=name)
    issuer.answers[f"/clusters/one{CONFIGURATION}"] = issuer.answers.pop(CONFIGURATION)
    asked = RelyingParty.at(replace(EXPECTED, issuer=name), HttpsFetcher(ca_file=issuer.ca), clock=lambda: NOW + 1)
    assert (await asked.verify(token(ES, given_claims=claims(issuer=name)))).issuer == name
    denied = await refusal(asked, token(ES, given_claims=claims(issuer=name.rstrip("/"))))
    assert denied.reason == Reason.JWT_ISSUER_MISMATCH


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
