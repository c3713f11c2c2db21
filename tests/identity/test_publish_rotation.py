"""A rotation as docs/issuer.md#publish has it: at every instant every live token verifies, for caches of all ages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import jwt
from publish_kit import HOUR, ISSUER, START, Clock, directory, kids, private, stood, wanted

from nodeattest_identity.publish.publisher import publish

LIFE = 4 * HOUR
STEP = 20 * 60
WAIT = HOUR + 600
"""Seconds between publishing a key and signing with it: max-age and ten minutes."""


@dataclass
class RelyingParty:
    """PyJWT over what is published, with a cache in virtual time that it keeps for as long as it may.

    It does not look again for an unknown kid: that would hide a key that signs too early.
    """

    root: Path
    clock: Clock
    fetched: float | None = None

    def verifies(self, token: str) -> bool:
        if self.fetched is None or self.clock.now >= self.fetched + HOUR:
            self.fetched = self.clock.now
            self.held = jwt.PyJWKSet.from_json((self.root / "openid/v1/jwks").read_text())
        kid = jwt.get_unverified_header(token)["kid"]
        found = [each for each in self.held.keys if each.key_id == kid]
        if not found:
            return False
        claims = jwt.decode(token, found[0], algorithms=["ES256"], issuer=ISSUER, options={"verify_exp": False})
        return claims["exp"] > self.clock.now


@dataclass
class ApiServer:
    """Signs a token every twenty minutes with the key that it was given."""

    clock: Clock
    signer: str
    live: dict[str, float] = field(default_factory=dict[str, float])

    def sign(self) -> None:
        expires = int(self.clock.now) + LIFE
        claims = {"iss": ISSUER, "sub": "system:serviceaccount:a:b", "exp": expires}
        token = jwt.encode(claims, private(self.signer), algorithm="ES256", headers={"kid": kids(self.signer)[0]})
        self.live = {each: until for each, until in self.live.items() if until > self.clock.now} | {token: expires}


async def _rotate(root: Path, *, wait: int) -> list[float]:
    """Rotate from key a to key b in twelve hours; returns when a live token was refused.

    After an hour b is published beside a; b signs after ``wait`` seconds; then a is no longer given.
    """
    clock = Clock()
    server = ApiServer(clock, "a")
    parties = [RelyingParty(root, clock) for _ in range(3)]
    refused: list[float] = []
    for seconds in range(0, 12 * HOUR, STEP):
        clock.now = START + seconds
        given = ("a",) if seconds < HOUR else ("a", "b")
        if seconds >= HOUR + wait:
            server.signer, given = "b", ("b",)
        await publish(directory(root), replace(wanted(*given), retire_after=LIFE), clock=clock)
        server.sign()
        for number, party in enumerate(parties):
            if seconds % HOUR == number * STEP or party.fetched is not None:  # caches of all ages
                refused += [clock.now for token in server.live if not party.verifies(token)]
    assert stood(root) == kids("b")
    return refused


async def test_at_every_instant_of_a_rotation_every_live_token_verifies(tmp_path: Path) -> None:
    for name in ("waits", "hurries"):
        (tmp_path / name).mkdir()
    assert await _rotate(tmp_path / "waits", wait=WAIT) == []
    assert await _rotate(tmp_path / "hurries", wait=0), "without its wait the same rotation breaks tokens"
