"""What is planned for a store, by the objects in it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from publish_kit import HOUR, ISSUER, START, YEAR, key, kids, wanted

from nodeattest_identity.issuer.documents import UrlError, documents
from nodeattest_identity.issuer.keys import KeysError, read_jwks
from nodeattest_identity.publish import plan as states
from nodeattest_identity.publish.plan import STATE, Current, Desired, jwks_path, plan
from nodeattest_identity.publish.store import ForeignIssuerError, PublishError, StoredObject, Write

JWKS, CONFIGURATION = "openid/v1/jwks", ".well-known/openid-configuration"


def after(found: Current, writes: Iterable[Write]) -> Current:
    """What stands there when these were written."""
    objects = {JWKS: found.jwks, CONFIGURATION: found.configuration, STATE: found.state}
    for write in writes:
        assert write.replaces == objects[write.path]
        headers = {"content_type": write.content_type, "cache_control": write.cache_control}
        objects[write.path] = StoredObject(body=write.body, e_tag="1", **headers)
    return Current(jwks=objects[JWKS], configuration=objects[CONFIGURATION], state=objects[STATE])


def settled(want: Desired, found: Current | None = None, *, now: int = START) -> Current:
    """Plan and write until nothing is left."""
    standing = found or Current()
    for _ in range(4):
        writes = plan(standing, want, now).writes
        if not writes:
            return standing
        standing = after(standing, writes)
    raise AssertionError("never done")


def state(found: Current) -> states.IssuerState:
    assert found.state is not None
    return states.parse_state(found.state.body)


def names(found: Current) -> list[str]:
    return [] if found.jwks is None else [each.kid for each in read_jwks(found.jwks.body)]


def test_the_state_is_written_first_then_the_key_set_then_the_configuration() -> None:
    planned = plan(Current(), wanted("a"), START)
    assert [write.path for write in planned.writes] == [STATE, JWKS, CONFIGURATION]
    assert all(write.replaces is None for write in planned.writes)
    assert [write.content_type for write in planned.writes[1:]] == ["application/jwk-set+json", "application/json"]
    assert {write.cache_control for write in planned.writes[1:]} == {"public, max-age=3600"}


def test_an_absent_key_stays_until_its_last_token_has_expired_and_goes_then() -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")), now=START + 10)
    assert names(standing) == kids("b", "a")
    assert state(standing).absent_since == {kids("a")[0]: START + 10}
    assert names(settled(wanted("b"), standing, now=START + 9 + YEAR)) == kids("b", "a")
    gone = settled(wanted("b"), standing, now=START + 10 + YEAR)
    assert names(gone) == kids("b")
    assert [key.kid for key in state(gone).keys] == kids("b")


def test_a_key_that_leaked_goes_at_once_and_cannot_come_back_by_a_run_that_was_cut_off() -> None:
    want = replace(wanted("b"), revoked=frozenset(kids("a")))
    standing = settled(wanted("a", "b"))
    planned = plan(standing, want, START + 5)
    for cut in range(1, len(planned.writes) + 1):
        partly = after(standing, planned.writes[:cut])
        assert names(settled(wanted("b"), partly, now=START + 6)) == kids("b")


def test_a_published_key_that_the_state_does_not_know_is_removed_at_once() -> None:
    standing = settled(wanted("a"))
    assert standing.jwks is not None
    spoilt = replace(
        standing, jwks=replace(standing.jwks, body=documents(ISSUER, f"{ISSUER}/x", [key("a"), key("evil")]).jwks)
    )
    planned = plan(spoilt, wanted("a"), START)
    assert names(after(spoilt, planned.writes)) == kids("a")
    assert any(key("evil").kid in note for note in planned.notes)


@pytest.mark.parametrize("jwks", [None, b"", b"{}", b'{"keys":[]}', b"\xff"])
def test_a_key_set_that_is_gone_or_spoilt_is_made_anew_with_the_keys_that_nobody_wants_any_more(
    jwks: bytes | None,
) -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    spoilt = replace(standing, jwks=None if jwks is None else StoredObject(body=jwks, e_tag="x"))
    assert names(settled(wanted("b"), spoilt)) == kids("b", "a")


@pytest.mark.parametrize("want", [wanted("b"), wanted("b", "c")])
def test_a_clock_that_is_days_behind_marks_no_key_as_absent(want: Desired) -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    with pytest.raises(PublishError, match="set this machine's clock"):
        plan(standing, want, START - 25 * HOUR)


@pytest.mark.parametrize("adopt", [False, True])
def test_another_issuers_configuration_and_another_clusters_place_are_never_overwritten(adopt: bool) -> None:
    other = documents("https://other.example", "https://other.example/jwks", [key("o")])
    there = Current(configuration=StoredObject(body=other.configuration, e_tag="1"))
    with pytest.raises(ForeignIssuerError, match=r"other\.example"):
        plan(there, replace(wanted("a"), adopt=adopt), START)
    with pytest.raises(ForeignIssuerError, match="belong to"):
        plan(settled(wanted("a")), replace(wanted("a"), owner="cluster-2", adopt=adopt), START)


@pytest.mark.parametrize("part", ["jwks", "configuration"])
def test_documents_without_our_mark_are_not_overwritten(part: str) -> None:
    standing = replace(settled(wanted("a")), state=None, **{part: None})
    with pytest.raises(ForeignIssuerError, match="--adopt"):
        plan(standing, wanted("a"), START)


@pytest.mark.parametrize("spoilt", [None, b"", b"{}", b"\x00"])
def test_a_lost_state_drops_no_key_when_the_documents_are_adopted(spoilt: bytes | None) -> None:
    standing = settled(wanted("a", "b"))
    lost = replace(standing, state=None if spoilt is None else StoredObject(body=spoilt, e_tag="1"))
    with pytest.raises(ForeignIssuerError, match="--adopt"):
        plan(lost, wanted("c"), START + 5)
    adopted = settled(replace(wanted("c"), adopt=True), lost, now=START + 5)
    assert names(adopted) == kids("c", "a", "b")
    assert state(adopted).absent_since == dict.fromkeys(kids("a", "b"), START + 5)


def test_documents_of_an_unknown_issuer_are_not_adopted_and_no_key_is_no_publication() -> None:
    standing = replace(settled(wanted("a")), state=None, configuration=StoredObject(body=b"<html>", e_tag="1"))
    with pytest.raises(ForeignIssuerError, match="its issuer is unknown"):
        plan(standing, replace(wanted("a"), adopt=True), START)
    with pytest.raises(KeysError):
        plan(settled(wanted("a")), wanted(), START)


@pytest.mark.parametrize(
    ("uri", "path"),
    [(f"{ISSUER}/keys.json", "keys.json"), (f"{ISSUER}/openid/v1/jwks", JWKS), ("https://else.example/k", JWKS)],
)
def test_the_key_set_stands_where_its_url_leads_to(uri: str, path: str) -> None:
    assert jwks_path(ISSUER, uri) == path


@pytest.mark.parametrize(
    "tail", ["", "../x", "a/../b", ".nodeattest/issuer-state.json", ".well-known/openid-configuration", "a//b", "%2e"]
)
def test_a_key_sets_url_leads_nowhere_else(tail: str) -> None:
    with pytest.raises(UrlError):
        jwks_path(ISSUER, f"{ISSUER}/{tail}")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("format", "v2"), ("updated", "1"), ("updated", True), ("updated", -1), ("updated", 1.5), ("absent_since", []),
        ("absent_since", {"another": 1}), ("issuer", "http://x"), ("issuer", 1), ("other", 1),
        ("jwks", {"keys": [{"kty": "oct", "kid": "a", "k": "AA"}]}),
    ],
)  # fmt: skip
def test_a_state_that_is_spoilt_in_one_thing_is_refused(member: str, value: object) -> None:
    members = json.loads(states.encode_state(state(settled(wanted("a")))))
    members[member] = value
    with pytest.raises(ValueError):
        states.parse_state(json.dumps(members).encode())


def test_no_key_is_absent_since_a_time_after_the_states_own_and_none_is_private() -> None:
    """A time to come would keep a key for ever that somebody put into the state."""
    body = states.encode_state(state(settled(wanted("b"), settled(wanted("a", "b")))))
    with pytest.raises(ValueError, match="no later than updated"):
        states.parse_state(body.replace(f": {START}\n".encode(), f": {START + 1}\n".encode(), 1))
    members = json.loads(body)
    members["jwks"]["keys"][0]["d"] = "AA"
    with pytest.raises(ValueError, match="private"):
        states.parse_state(json.dumps(members).encode())


@pytest.mark.parametrize("since", [None, START + 24 * HOUR])
def test_a_key_that_somebody_put_into_the_state_is_named_by_each_run_and_goes(since: int | None) -> None:
    standing = settled(wanted("a"))
    known = state(standing)
    absent = {} if since is None else {kids("evil")[0]: since}
    evil = replace(known, updated=START + 24 * HOUR, keys=(*known.keys, key("evil")), absent_since=absent)
    body = states.encode_state(evil)
    written = settled(wanted("a"), replace(standing, state=StoredObject(body=body, e_tag="theirs")))
    until = (since or START) + YEAR
    for now in (START, until - 1):
        notes = plan(written, wanted("a"), now).notes
        assert [note for note in notes if kids("evil")[0] in note and "--drop-key" in note]
    assert names(settled(wanted("a"), written, now=until)) == kids("a")


def test_a_key_that_is_wanted_again_is_not_absent_and_is_not_dropped() -> None:
    standing = settled(wanted("a", "b"), settled(wanted("b"), settled(wanted("a", "b"))))
    assert state(standing).absent_since == {}
    with pytest.raises(PublishError, match="--drop-key names a key that is to be published"):
        plan(standing, replace(wanted("a"), revoked=frozenset(kids("a"))), START)


def test_another_key_of_a_published_name_is_refused() -> None:
    """It would end the tokens of the first."""
    want = replace(wanted(), keys=(replace(key("b"), kid=kids("a")[0]),))
    with pytest.raises(KeysError, match="two of one kid"):
        plan(settled(wanted("a")), want, START)


def test_control_characters_in_a_key_id_are_quoted() -> None:
    jwks = documents(ISSUER, f"{ISSUER}/x", [replace(key("o"), kid="x\x1b[2J\ny")]).jwks
    planned = plan(Current(jwks=StoredObject(body=jwks, e_tag="1")), replace(wanted("a"), adopt=True), START)
    assert any("x1b" in note for note in planned.notes)
    assert all(note.isprintable() for note in planned.notes)


def test_what_is_written_can_be_read_again_however_many_keys_and_however_long_their_names() -> None:
    standing = settled(wanted(*map(str, range(100))))
    with pytest.raises(KeysError, match="at most 128 keys to publish, absent ones included, got 129"):
        plan(standing, wanted(*map(str, range(100, 129))), START + 1)
    long = tuple(replace(key(str(number)), kid=f"{number:03}".ljust(1024, "\x01")) for number in range(120))
    standing = settled(replace(wanted("a"), keys=long))
    with pytest.raises(KeysError, match="shorter kids"):
        plan(standing, wanted("a"), START + 1)


_NAMES = ("a", "b", "c")
_LIFE = 3 * HOUR


RUNS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3, unique=True),
        st.integers(0, 6 * HOUR),
        st.sampled_from([1, 2, 3, 9, 9]),
    ),
    min_size=1,
    max_size=8,
)
"""Keys of each run, seconds since the run before, and after how many writes it is cut off."""


@settings(max_examples=80, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking takes minutes
@given(RUNS)
def test_no_key_whose_tokens_may_be_valid_is_ever_missing(runs: list[tuple[list[str], int, int]]) -> None:
    standing, now = Current(), START
    last_desired, seen = dict[str, int](), set[str]()
    for given_names, after_seconds, cut in [*runs, (runs[-1][0], 1, 9)]:
        now += after_seconds
        seen &= set(names(standing))  # what has gone by now had to: each write was checked
        last_desired |= dict.fromkeys(kids(*given_names), now)
        want = replace(wanted(*given_names), retire_after=_LIFE)
        for write in plan(standing, want, now).writes[:cut]:
            standing = after(standing, [write])
            seen |= set(names(standing))
            assert {kid for kid in seen if now < last_desired[kid] + _LIFE} <= set(names(standing))
    assert set(kids(*runs[-1][0])) <= set(names(standing))
    assert not plan(standing, replace(wanted(*runs[-1][0]), retire_after=_LIFE), now).writes
