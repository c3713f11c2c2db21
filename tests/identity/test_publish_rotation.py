"""A rotation by the plan: at every instant every live token verifies, for relying parties that cache all they may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import jwt
import pytest
from publish_kit import HOUR, ISSUER, START, YEAR, Clock, directory, key, kids, private, state_of, wanted

from nodeattest_identity.publish.publisher import publish
from nodeattest_identity.publish.rotation import Status, StepName, Timeline, timeline
from nodeattest_identity.publish.state import IssuerState

LIFE = 4 * HOUR
SLACK = 600


def due(plan: Timeline) -> list[StepName]:
    return [step.name for step in plan.steps if step.status is Status.DUE]


def statuses(plan: Timeline) -> list[str]:
    return [str(step.status) for step in plan.steps]


async def published(root: Path, *names: str, now: int) -> IssuerState:
    done = await publish(directory(root), replace(wanted(*names), retire_after=LIFE), clock=Clock(now))
    return done.state


def plan(state: IssuerState | None, signer: str, new: str | None = None, *, now: int) -> Timeline:
    next_key = None if new is None else kids(new)[0]
    return timeline(state, kids(signer)[0], next_key, now=now, slack=SLACK, token_life=LIFE)


async def test_each_step_is_due_after_the_one_before_and_not_earlier(tmp_path: Path) -> None:
    state = await published(tmp_path, "a", now=START)
    assert due(plan(state, "a", now=START + 1)) == [StepName.MAKE]
    assert due(plan(state, "a", "b", now=START + 1)) == [StepName.PUBLISH]
    state = await published(tmp_path, "a", "b", now=START + 10)
    ready = START + 10 + HOUR + SLACK
    waiting = plan(state, "a", now=ready - 1)
    assert statuses(waiting) == ["done", "done", "waiting", "later", "later", "later"]
    assert [step.at for step in waiting.steps][2:] == [ready, ready, ready, ready + LIFE]
    assert due(plan(state, "a", now=ready)) == [StepName.SIGN]
    assert due(plan(state, "b", now=ready + 5)) == [StepName.KEEP]
    state = await published(tmp_path, "b", now=ready + 10)
    assert statuses(plan(state, "b", now=ready + 9 + LIFE)) == [*["done"] * 4, "waiting", "later"]
    assert due(plan(state, "b", now=ready + 10 + LIFE)) == [StepName.RETIRE]
    state = await published(tmp_path, "b", now=ready + 10 + LIFE)
    assert due(plan(state, "b", now=ready + 11 + LIFE)) == [StepName.MAKE]


async def test_the_old_key_leaves_the_publishers_input_as_soon_as_the_new_one_signs(tmp_path: Path) -> None:
    state = await published(tmp_path, "a", now=START)
    early = plan(state, "a", "b", now=START + 1)
    assert early.step(StepName.KEEP).at == early.step(StepName.SIGN).at
    state = await published(tmp_path, "a", "b", now=START + 10)
    late = plan(state, "a", now=START + 20 * HOUR)  # hours after the key could have signed
    assert late.step(StepName.KEEP).at == late.step(StepName.SIGN).at == START + 20 * HOUR
    switched = plan(state, "b", now=START + 21 * HOUR)
    assert [(each.name, each.at) for each in switched.steps if each.status is Status.DUE] == [
        (StepName.KEEP, START + 21 * HOUR)
    ]
    state = await published(tmp_path, "b", now=START + 22 * HOUR)
    keep = plan(state, "b", now=START + 23 * HOUR).step(StepName.KEEP)
    assert (keep.status, keep.at) == (Status.WAITING, START + 22 * HOUR + LIFE)


async def test_a_signer_that_breaks_live_tokens_is_told(tmp_path: Path) -> None:
    assert "is not published" in plan(None, "a", now=START).problems[0]
    state = await published(tmp_path, "a", now=START)
    assert plan(state, "a", now=START).problems == ()
    assert "is not published" in plan(state, "b", now=START).problems[0]
    state = await published(tmp_path, "a", "b", now=START + 10)
    assert "younger than caches" in plan(state, "b", now=START + 20).problems[0]
    state = await published(tmp_path, "b", now=START + 30)
    assert "retire time" in plan(state, "a", now=START + 40).problems[0]


async def test_an_old_key_that_goes_before_its_last_token_is_told(tmp_path: Path) -> None:
    await published(tmp_path, "a", now=START)
    state = await published(tmp_path, "a", "b", now=START + 10)
    early = await publish(
        directory(tmp_path), replace(wanted("b"), retire_after=HOUR), clock=Clock(START + 20 + 2 * HOUR)
    )
    assert state.keys[1].settled == START + 10 + HOUR
    told = plan(early.state, "b", now=START + 30 + 2 * HOUR).problems
    assert len(told) == 1
    assert kids("a")[0] in told[0]


@dataclass
class RelyingParty:
    """PyJWT's client, over what is published, with a cache in virtual time that it keeps for as long as it may.

    It does not look again for an unknown kid: that would hide a key that signs too early.
    """

    root: Path
    clock: Clock
    client: jwt.PyJWKClient
    fetched: float | None = None

    def verifies(self, token: str) -> bool:
        if self.fetched is None or self.clock.now >= self.fetched + HOUR:
            self.fetched = self.clock.now
            self.held = self.client.get_jwk_set(refresh=True)
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


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[list[jwt.PyJWKClient]]:
    """Three clients over a loopback HTTP server that shows what is published."""
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/openid/v1/jwks"
    try:
        yield [jwt.PyJWKClient(url, cache_jwk_set=False) for _ in range(3)]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def _rotate(root: Path, clients: list[jwt.PyJWKClient], *, patient: bool) -> list[float]:
    """Follow the plan for twelve hours, a step in twenty minutes; gives when a live token was refused."""
    clock = Clock()
    server = ApiServer(clock, "a")
    state = await published(root, "a", now=START)
    parties = [RelyingParty(root, clock, client) for client in clients]
    refused: list[float] = []
    given = ("a",)
    for minutes in range(0, 12 * 60, 20):
        clock.now = START + minutes * 60
        now = int(clock.now)
        steps = due(plan(state, server.signer, "b" if minutes >= 60 and server.signer == "a" else None, now=now))
        if StepName.PUBLISH in steps:
            given = ("a", "b")
        if StepName.SIGN in steps or (not patient and given == ("a", "b")):
            server.signer = "b"
        if StepName.KEEP in steps:
            given = ("b",)
        state = await published(root, *given, now=now)
        server.sign()
        for number, party in enumerate(parties):
            if minutes % 60 == number * 20 or party.fetched is not None:  # caches of all ages
                refused += [clock.now for token in server.live if not party.verifies(token)]
    assert server.signer == "b"
    assert [record.key.kid for record in state.keys] == kids("b")
    return refused


async def test_at_every_instant_of_a_rotation_every_live_token_verifies(
    tmp_path: Path, clients: list[jwt.PyJWKClient]
) -> None:
    assert await _rotate(tmp_path, clients, patient=True) == []


async def test_the_same_rotation_without_its_wait_breaks_tokens(tmp_path: Path, clients: list[jwt.PyJWKClient]) -> None:
    assert await _rotate(tmp_path, clients, patient=False)


async def test_the_longest_life_of_a_token_is_waited_for_without_being_told(tmp_path: Path) -> None:
    await publish(directory(tmp_path), wanted("a", "b"), clock=Clock())
    await publish(directory(tmp_path), wanted("b"), clock=Clock(START + 5))
    assert state_of(tmp_path).keys[1].retire == START + 5 + YEAR
    assert key("a").kid == state_of(tmp_path).keys[1].key.kid
