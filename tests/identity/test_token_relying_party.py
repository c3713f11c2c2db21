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
from token_kit import EXPECTED, NOW, SUBJECT, claims, elliptic, header, pem, rsa_key, token

from nodeattest_identity.issuer.documents import CONFIGURATION_PATH, JWKS_PATH, documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.tokens import jwks_cache
from nodeattest_identity.tokens.jwks_cache import JWKSCache, key_file_cache, read_trusted_keys
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_providers.errors import Denied, Reason, Unavailable

ES, RS = elliptic(), rsa_key()
OLD, NEW = ES.verifying, RS.verifying
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
        self.cache = JWKSCache(self.fetch, monotonic=lambda: self.now, refresh_wait=0.05)

    async def fetch(self) -> tuple[VerifyingKey, ...]:
        self.fetches += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.keys

    async def ask(self, kid: str = OLD.kid, later: float = 0) -> tuple[VerifyingKey, ...]:
        self.now += later
        return await self.cache.keys_for(kid)


async def test_an_unknown_kid_is_asked_for_once_in_ten_seconds_whatever_tokens_name() -> None:
    issuer = Issuer()
    await issuer.ask()
    for number in range(100):
        assert await issuer.ask(f"made up {number}") == (OLD,)
    assert issuer.fetches == 1
    issuer.keys = (OLD, NEW)
    for later in (jwks_cache.MIN_INTERVAL, 0):
        assert await issuer.ask(NEW.kid, later) == (OLD, NEW)
        assert issuer.fetches == 2


async def test_keys_are_fetched_again_after_five_minutes() -> None:
    issuer = Issuer()
    for later, fetches in ((0, 1), (jwks_cache.FRESH - 1, 1), (1, 2)):
        await issuer.ask(later=later)
        assert issuer.fetches == fetches


@pytest.mark.parametrize("error", [GONE, ODD])
async def test_the_last_good_keys_count_for_a_day_while_the_issuer_is_away_or_talks_nonsense(error: Exception) -> None:
    issuer = Issuer()
    await issuer.ask()
    issuer.error = error
    assert await issuer.ask(later=jwks_cache.MAX_STALE - 1) == (OLD,)
    assert issuer.cache.last_error is error
    issuer.now += 1
    assert not issuer.cache.has_keys
    fetches = issuer.fetches
    for _ in range(9):  # it is not asked for each token
        with pytest.raises(type(error)):
            await issuer.ask()
    assert issuer.fetches <= fetches + 1
    issuer.error = None
    assert await issuer.ask(later=jwks_cache.MIN_INTERVAL) == (OLD,)
    assert issuer.cache.last_error is None


async def test_a_token_whose_key_is_known_does_not_wait_for_an_issuer_that_hangs() -> None:
    issuer = Issuer()
    await issuer.ask()
    issuer.gate.clear()
    assert await asyncio.wait_for(issuer.ask(later=300), 60) == (OLD,)
    issuer.keys = (NEW,)
    issuer.gate.set()
    assert await issuer.ask(NEW.kid) == (NEW,)
    assert issuer.fetches == 2


async def test_many_who_ask_at_once_cause_one_fetch_and_none_of_them_ends_it() -> None:
    issuer = Issuer()
    issuer.gate.clear()
    waiting = [asyncio.create_task(issuer.ask()) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    issuer.gate.set()
    assert all(keys == (OLD,) for keys in await asyncio.gather(*waiting[1:]))
    assert issuer.fetches == 1


async def test_keys_from_files_are_read_in_both_forms_and_again_when_they_change(tmp_path: Path) -> None:
    jwks, other, now = tmp_path / "jwks.json", tmp_path / "keys.pem", [0.0]
    cache = key_file_cache([jwks], monotonic=lambda: now[0])

    async def kids(key: VerifyingKey) -> list[str]:
        now[0] += 60
        return [each.kid for each in await cache.keys_for(key.kid)]

    jwks.write_bytes(documents("https://a", "https://a/k", [OLD]).jwks)
    other.write_bytes(pem(NEW))
    assert {key.kid for key in read_trusted_keys([jwks, other, other])} == {OLD.kid, NEW.kid}
    assert await kids(OLD) == [OLD.kid]
    jwks.write_bytes(documents("https://a", "https://a/k", [NEW]).jwks)
    assert await kids(OLD) == [NEW.kid]
    jwks.unlink()
    assert await kids(NEW) == [NEW.kid]
    assert "jwks.json: expected a readable file with keys" in str(cache.last_error)


@pytest.fixture
def issuer(tmp_path: Path) -> Generator[IssuerServer]:
    """Run an issuer with two keys."""
    with issuer_server(tmp_path) as server:
        server.publish([NEW, OLD])
        yield server


def party(server: IssuerServer, name: str = "", *, ca: Path | None = None, time_limit: float = 10) -> RelyingParty:
    """Make a relying party that trusts the issuer's CA."""
    https = HttpsFetcher(ca_file=ca or server.ca, time_limit=time_limit)
    return RelyingParty.at(replace(EXPECTED, issuer=name or server.url), https, clock=lambda: NOW + 1)


def good(server: IssuerServer, name: str = "") -> bytes:
    return token(ES, given_claims=claims(issuer=name or server.url))


async def refusal(asked: RelyingParty, text: bytes) -> Denied | Unavailable:
    """Return why a token is not believed."""
    with pytest.raises((Denied, Unavailable)) as refused:
        await asked.verify(text)
    error = refused.value
    assert isinstance(error, Denied | Unavailable)
    return error


async def test_tokens_are_verified_by_what_the_issuer_publishes_and_it_is_asked_once(issuer: IssuerServer) -> None:
    asked = party(issuer)
    for key in (RS, ES):
        assert (await asked.verify(token(key, given_claims=claims(issuer=issuer.url)))).subject == SUBJECT
    for malformed in (b"abcdef.0123456789abcdef", token(ES, header(ES, jku=f"{issuer.url}/evil"))):
        assert (await refusal(asked, malformed)).reason == Reason.JWT_MALFORMED
    assert issuer.asked == [CONFIGURATION_PATH, JWKS_PATH]
    assert issuer.accepted[JWKS_PATH].startswith("application/jwk-set+json")


REFUSED, AWAY = "IssuerDocumentRefused", "IssuerUnavailable"
DOCUMENTS: dict[str, tuple[str, Reply, str, str]] = {  # beside D11-50 to D11-56 of the attack catalogue
    "a login page": (CONFIGURATION_PATH, Reply(b"<html>log in"), REFUSED, "JSON"),
    "a slash more": (CONFIGURATION_PATH, Reply(b'{"issuer":"ISSUER/","jwks_uri":"ISSUER/k"}'), REFUSED, "issuer"),
    "broken": (CONFIGURATION_PATH, Reply(b"", 500), AWAY, "500"),
    "a configuration without end": (CONFIGURATION_PATH, Reply(b" " * 70_000), REFUSED, "at most"),
    "packed": (CONFIGURATION_PATH, Reply(b"\x1f", 200, {"Content-Encoding": "gzip"}), REFUSED, "packed"),
    "cut short": (CONFIGURATION_PATH, Reply(b"{", 200, {"Content-Length": "9"}), AWAY, "answer"),
    "a key set without end": (JWKS_PATH, Reply(b"{" * 2_000_000), REFUSED, "at most"),
    "no key": (JWKS_PATH, Reply(b'{"keys":[]}'), REFUSED, "key"),
}


@pytest.mark.parametrize(("path", "reply", "reason", "words"), DOCUMENTS.values(), ids=DOCUMENTS.keys())
async def test_documents_that_are_not_to_be_believed_are_refused(
    issuer: IssuerServer, path: str, reply: Reply, reason: str, words: str
) -> None:
    issuer.answers[path] = replace(reply, body=reply.body.replace(b"ISSUER", issuer.url.encode()))
    error = await refusal(party(issuer), good(issuer))
    assert error.reason == reason
    assert words in str(error)
    assert set(issuer.asked) <= {CONFIGURATION_PATH, JWKS_PATH}


async def test_a_key_that_is_not_for_us_among_an_issuers_hides_no_other(issuer: IssuerServer) -> None:
    foreign = b'{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":"AAAA"},'
    issuer.answers[JWKS_PATH] = Reply(issuer.answers[JWKS_PATH].body.replace(b'{"keys":[', foreign, 1))
    assert (await party(issuer).verify(good(issuer))).subject == SUBJECT


async def test_an_issuer_that_never_ends_its_answer_is_given_up(issuer: IssuerServer) -> None:
    never = threading.Event()
    issuer.answers[JWKS_PATH] = replace(issuer.answers[JWKS_PATH], after=never)
    try:
        error = await refusal(party(issuer, time_limit=0.3), good(issuer))
    finally:
        never.set()
    assert "no whole answer within" in str(error)


async def test_a_path_in_the_issuer_and_a_slash_at_its_end_are_its_own(issuer: IssuerServer) -> None:
    name = f"{issuer.url}/clusters/one/"
    issuer.publish([OLD], issuer=name)
    issuer.answers[f"/clusters/one{CONFIGURATION_PATH}"] = issuer.answers.pop(CONFIGURATION_PATH)
    asked = party(issuer, name)
    assert (await asked.verify(good(issuer, name))).issuer == name
    assert (await refusal(asked, good(issuer, name.rstrip("/")))).reason == Reason.JWT_ISSUER_MISMATCH


async def test_a_server_of_another_ca_is_not_believed(issuer: IssuerServer, tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    for content, words in ((Authority("another").pem, "certificate"), (b"no PEM", "no certificate in it")):
        other.write_bytes(content)
        assert words in str(await refusal(party(issuer, ca=other), good(issuer)))
    assert issuer.asked == []


async def test_a_proxy_of_the_environment_is_not_used(issuer: IssuerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await party(issuer).verify(good(issuer))).subject == SUBJECT
