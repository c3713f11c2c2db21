"""Keys that are fetched: one fetch at a time, none too often, kept as long as they may be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from issuer_kit import pem
from token_kit import elliptic, rsa_key

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
from nodeattest_providers.errors import Denied, Reason, Unavailable

OLD, NEW = elliptic().verifying, rsa_key().verifying
AWAY = Unavailable(Reason.ISSUER_UNAVAILABLE, "away", remedy="wait")
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


@pytest.mark.parametrize("error", [AWAY, ODD])
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
