"""What is planned for a place, by what stands there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from publish_kit import HOUR, ISSUER, START, YEAR, key, kids, wanted

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.issuer.keys import KeysError, read_jwks
from nodeattest_identity.issuer.urls import UrlError
from nodeattest_identity.publish import state as states
from nodeattest_identity.publish.paths import STATE, object_paths
from nodeattest_identity.publish.plan import Current, Plan, plan
from nodeattest_identity.publish.state import Desired
from nodeattest_identity.publish.store import ForeignIssuerError, PublishError, StoredObject

JWKS, CONFIGURATION = "openid/v1/jwks", ".well-known/openid-configuration"


def after(found: Current, planned: Plan) -> Current:
    """What stands there when all was written."""
    objects = {JWKS: found.jwks, CONFIGURATION: found.configuration, STATE: found.state}
    for write in planned.writes:
        objects[write.path] = StoredObject(
            body=write.body,
            version=f"v{hash(write.body)}",
            content_type=write.content_type,
            cache_control=write.cache_control,
        )
    return Current(jwks=objects[JWKS], configuration=objects[CONFIGURATION], state=objects[STATE])


def settled(want: Desired, found: Current | None = None, *, now: int = START) -> Current:
    """Plan and write until nothing is left."""
    standing = found or Current()
    for _ in range(4):
        planned = plan(standing, want, now)
        if not planned.writes:
            return standing
        standing = after(standing, planned)
    raise AssertionError("never done")


def state(found: Current) -> states.IssuerState:
    assert found.state is not None
    return states.parse(found.state.body)


def names(found: Current) -> list[str]:
    assert found.jwks is not None
    return [each.kid for each in read_jwks(found.jwks.body)]


def test_the_mark_comes_first_then_the_key_set_then_the_configuration() -> None:
    planned = plan(Current(), wanted("a"), START)
    assert [write.path for write in planned.writes] == [STATE, JWKS, CONFIGURATION]
    assert all(write.version is None for write in planned.writes)
    assert [write.content_type for write in planned.writes[1:]] == ["application/jwk-set+json", "application/json"]
    assert {write.cache_control for write in planned.writes[1:]} == {"public, max-age=3600"}


def test_a_key_counts_as_published_once_it_is_seen_and_not_when_it_is_written() -> None:
    first = plan(Current(), wanted("a"), START)
    assert first.state.keys[0].published is None
    seen = plan(after(Current(), first), wanted("a"), START + 7)
    assert [write.path for write in seen.writes] == [STATE]
    assert seen.state.keys[0].published == START + 7


def test_the_first_key_may_sign_at_once_and_a_later_one_after_the_longest_anybody_may_hold_the_older_set() -> None:
    standing = settled(wanted("a"))
    assert state(standing).keys[0].settled == START
    later = settled(wanted("a", "b"), standing, now=START + 100)
    assert state(later).keys[1].settled == START + 100 + HOUR
    assert names(later) == kids("a", "b")


def test_a_shorter_max_age_helps_only_once_the_longer_one_has_run_out() -> None:
    standing = settled(replace(wanted("a"), max_age=24 * HOUR))
    shorter = settled(replace(wanted("a"), max_age=60), standing, now=START + 100)
    assert state(shorter).held_until == START + 100 + 24 * HOUR
    with_new = settled(replace(wanted("a", "b"), max_age=60), shorter, now=START + 200)
    assert state(with_new).keys[1].settled == START + 100 + 24 * HOUR


def test_a_key_that_vanishes_from_the_input_stays_until_its_retire_time_and_goes_then() -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")), now=START + 10)
    assert names(standing) == kids("b", "a")
    assert state(standing).keys[1].retire == START + 10 + YEAR
    assert names(settled(wanted("b"), standing, now=START + 9 + YEAR)) == kids("b", "a")
    gone = settled(wanted("b"), standing, now=START + 10 + YEAR)
    assert names(gone) == kids("b")
    assert [record.key.kid for record in state(gone).keys] == kids("b")


def test_a_key_that_goes_is_in_the_state_as_long_as_it_is_in_the_key_set() -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    planned = plan(standing, wanted("b"), START + YEAR)
    assert [record.key.kid for record in planned.state.keys] == kids("b", "a")
    assert planned.documents.keys == (key("b"),)


def test_a_longer_or_shorter_time_to_retire_later_does_not_move_one_that_was_promised() -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    again = settled(replace(wanted("b"), retire_after=0), standing, now=START + 5)
    assert state(again).keys[1].retire == START + YEAR


def test_a_key_that_is_wanted_again_has_no_retire_time() -> None:
    standing = settled(wanted("a", "b"), settled(wanted("b"), settled(wanted("a", "b"))))
    assert [record.retire for record in state(standing).keys] == [None, None]


def test_a_key_that_comes_back_after_it_had_left_the_set_settles_anew() -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    leaving = plan(standing, wanted("b"), START + YEAR)
    assert [write.path for write in leaving.writes] == [STATE, JWKS]
    gone = after(standing, leaving)  # killed before the state says so
    assert names(gone) == kids("b")
    back = settled(wanted("a", "b"), gone, now=START + YEAR + 5)
    assert state(back).keys[0].settled == START + YEAR + 5 + HOUR


def test_a_key_that_leaked_goes_at_once_and_cannot_come_back_by_a_run_that_was_cut_off() -> None:
    want = replace(wanted("b"), revoked=frozenset(kids("a")))
    standing = settled(wanted("a", "b"))
    planned = plan(standing, want, START + 5)
    for cut in range(1, len(planned.writes) + 1):
        partly = after(standing, replace(planned, writes=planned.writes[:cut]))
        assert names(settled(wanted("b"), partly, now=START + 6)) == kids("b")


def test_a_key_that_is_wanted_is_not_dropped() -> None:
    with pytest.raises(PublishError, match="take its file out first"):
        plan(Current(), replace(wanted("a"), revoked=frozenset(kids("a"))), START)


def test_a_key_that_somebody_put_into_the_set_is_removed_and_told() -> None:
    standing = settled(wanted("a"))
    assert standing.jwks is not None
    spoilt = replace(
        standing, jwks=replace(standing.jwks, body=documents(ISSUER, f"{ISSUER}/x", [key("a"), key("evil")]).jwks)
    )
    planned = plan(spoilt, wanted("a"), START)
    assert names(after(spoilt, planned)) == kids("a")
    assert any(key("evil").kid in note for note in planned.notes)


@pytest.mark.parametrize("jwks", [None, b"", b"{}", b'{"keys":[]}', b"\xff"])
def test_a_key_set_that_is_gone_or_spoilt_is_made_anew_with_the_keys_that_nobody_wants_any_more(
    jwks: bytes | None,
) -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    spoilt = replace(standing, jwks=None if jwks is None else StoredObject(body=jwks, version="x"))
    assert names(settled(wanted("b"), spoilt)) == kids("b", "a")


def _with_in_state(standing: Current, *more: states.KeyRecord) -> Current:
    """What stands there after somebody wrote only the state."""
    there = state(standing)
    body = states.encode(replace(there, keys=(*there.keys, *more)))
    return replace(standing, state=StoredObject(body=body, version="theirs"))


_LATEST = 253_402_300_799
"""The last second of the year 9999."""


def _record(name: str) -> states.KeyRecord:
    return states.KeyRecord(key=key(name), published=START, settled=START, retire=_LATEST)


def test_a_key_that_somebody_put_into_the_state_is_not_published_and_told_of() -> None:
    written = _with_in_state(settled(wanted("a")), _record("evil"))
    planned = plan(written, wanted("a"), START + 60)
    assert planned.documents.keys == (key("a"),)
    assert any(kids("evil")[0] in note and "not published" in note for note in planned.notes)
    clean = settled(wanted("a"), written, now=START + 60)
    assert names(clean) == [each.key.kid for each in state(clean).keys] == kids("a")


def test_a_key_whose_bytes_somebody_changed_in_the_state_is_not_published() -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    mine, old = state(standing).keys
    forged = replace(old, key=replace(key("evil"), kid=old.key.kid))
    body = states.encode(replace(state(standing), keys=(mine, forged)))
    clean = settled(wanted("b"), replace(standing, state=StoredObject(body=body, version="theirs")))
    assert clean.jwks is not None
    assert [each.spki for each in read_jwks(clean.jwks.body)] == [key("b").spki]


def test_a_key_that_somebody_put_into_both_stays_for_a_bounded_time_and_is_told_of_each_time() -> None:
    written = _with_in_state(settled(wanted("a")), _record("evil"))
    assert written.jwks is not None
    body = documents(ISSUER, f"{ISSUER}/x", [key("a"), key("evil")]).jwks
    standing = settled(wanted("a"), replace(written, jwks=replace(written.jwks, body=body)), now=START + 60)
    until = START + 60 + YEAR + 24 * HOUR
    assert state(standing).keys[1].retire == until
    for now in (START + 70, until - 1):
        planned = plan(standing, wanted("a"), now)
        assert planned.writes == ()
        assert [note for note in planned.notes if kids("evil")[0] in note and "--drop-key" in note]
    assert names(settled(wanted("a"), standing, now=until)) == kids("a")


@pytest.mark.parametrize("lost", [None, b"{}"])
def test_a_lost_key_set_bounds_what_the_state_says_of_keys_that_nobody_wants(lost: bytes | None) -> None:
    written = _with_in_state(settled(wanted("a")), _record("evil"))
    written = replace(written, jwks=None if lost is None else StoredObject(body=lost, version="1"))
    planned = plan(written, wanted("a"), START)
    assert [each.retire for each in planned.state.keys] == [None, START + YEAR + 24 * HOUR]
    assert any(kids("evil")[0] in note for note in planned.notes)


def test_a_time_to_retire_that_was_promised_is_not_shortened_by_a_clock_that_is_hours_behind() -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    behind = plan(standing, wanted("b"), START - 20 * HOUR)
    assert behind.writes == ()


@pytest.mark.parametrize("want", [wanted("b"), wanted("b", "c")])
def test_by_a_clock_that_is_days_behind_no_key_is_dated_and_none_goes(want: Desired) -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    with pytest.raises(PublishError, match="set this machine's clock"):
        plan(standing, want, START - 25 * HOUR)


def _foreign_configuration() -> Current:
    other = documents("https://other.example", "https://other.example/jwks", [key("o")])
    return Current(
        configuration=StoredObject(body=other.configuration, version="1"),
        jwks=StoredObject(body=other.jwks, version="1"),
    )


@pytest.mark.parametrize("adopt", [False, True])
def test_another_issuers_configuration_is_never_overwritten(adopt: bool) -> None:
    with pytest.raises(ForeignIssuerError, match=r"other\.example"):
        plan(_foreign_configuration(), replace(wanted("a"), adopt=adopt), START)


@pytest.mark.parametrize("adopt", [False, True])
def test_not_even_with_our_own_mark_beside_it(adopt: bool) -> None:
    standing = replace(settled(wanted("a")), configuration=_foreign_configuration().configuration)
    with pytest.raises(ForeignIssuerError, match=r"other\.example"):
        plan(standing, replace(wanted("a"), adopt=adopt), START)


@pytest.mark.parametrize("adopt", [False, True])
def test_another_clusters_place_is_never_shared(adopt: bool) -> None:
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
    lost = replace(standing, state=None if spoilt is None else StoredObject(body=spoilt, version="1"))
    with pytest.raises(ForeignIssuerError, match="--adopt"):
        plan(lost, wanted("c"), START + 5)
    adopted = settled(replace(wanted("c"), adopt=True), lost, now=START + 5)
    assert names(adopted) == kids("c", "a", "b")
    assert [record.retire for record in state(adopted).keys] == [None, START + 5 + YEAR, START + 5 + YEAR]
    assert state(adopted).keys[0].settled == START + 5 + 24 * HOUR


def test_control_characters_in_a_key_id_are_quoted() -> None:
    odd = replace(key("o"), kid="x\x1b[2J\ny")
    jwks = documents(ISSUER, f"{ISSUER}/x", [odd]).jwks
    planned = plan(Current(jwks=StoredObject(body=jwks, version="1")), replace(wanted("a"), adopt=True), START)
    assert any("x1b" in note for note in planned.notes)
    assert all(note.isprintable() for note in planned.notes)


def test_a_key_set_that_cannot_be_read_is_not_adopted() -> None:
    found = Current(jwks=StoredObject(body=b'{"keys":[{"kty":"oct","k":"AA"}]}', version="1"))
    with pytest.raises(ForeignIssuerError, match="cannot be taken over"):
        plan(found, replace(wanted("a"), adopt=True), START)


def test_no_key_is_no_publication() -> None:
    with pytest.raises(KeysError):
        plan(settled(wanted("a")), wanted(), START)


def test_wrong_headers_are_put_right() -> None:
    standing = settled(wanted("a"))
    assert standing.jwks is not None
    planned = plan(
        replace(standing, jwks=replace(standing.jwks, content_type="binary/octet-stream")), wanted("a"), START
    )
    assert JWKS in [write.path for write in planned.writes]


@pytest.mark.parametrize(
    ("uri", "path"),
    [(f"{ISSUER}/keys.json", "keys.json"), (f"{ISSUER}/openid/v1/jwks", JWKS), ("https://else.example/k", JWKS)],
)
def test_the_key_set_stands_where_its_url_leads_to(uri: str, path: str) -> None:
    assert object_paths(ISSUER, uri).jwks == path


@pytest.mark.parametrize(
    "tail", ["", "../x", "a/../b", ".nodeattest/issuer-state.json", ".well-known/openid-configuration", "a//b", "%2e"]
)
def test_a_key_sets_url_leads_nowhere_else(tail: str) -> None:
    with pytest.raises(UrlError):
        object_paths(ISSUER, f"{ISSUER}/{tail}")


def test_a_state_is_read_as_it_was_written() -> None:
    standing = settled(wanted("b"), settled(wanted("a", "b")))
    assert states.parse(states.encode(state(standing))) == state(standing)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("format", "v2"),
        ("max_age", "1"),
        ("max_age", True),
        ("max_age", -1),
        ("changed", 1.5),
        ("issuer", "http://x"),
        ("issuer", 1),
        ("keys", []),
        ("keys", [{"kid": "x", "published": None, "settled": None, "retire": None}]),
        ("jwks", {"keys": [{"kty": "oct", "kid": "a", "k": "AA"}]}),
        ("other", 1),
    ],
)
def test_a_state_that_is_spoilt_in_one_thing_is_refused(member: str, value: object) -> None:
    members = json.loads(states.encode(state(settled(wanted("a")))))
    members[member] = value
    with pytest.raises(states.IssuerStateError):
        states.parse(json.dumps(members).encode())


def test_a_state_with_a_member_twice_is_refused() -> None:
    body = states.encode(state(settled(wanted("a"))))
    with pytest.raises(states.IssuerStateError, match="duplicate"):
        states.parse(body.replace(b'"owner"', b'"owner": "another", "owner"', 1))


def test_no_private_member_comes_through_a_state() -> None:
    members = json.loads(states.encode(state(settled(wanted("a")))))
    members["jwks"]["keys"][0]["d"] = "AA"
    with pytest.raises(states.IssuerStateError, match="private"):
        states.parse(json.dumps(members).encode())
