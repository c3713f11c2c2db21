"""What is to be written next, from what stands in a place and what is wanted there. Pure.

Promises, of the writes of one plan done in their order and cut off anywhere:
1. Every key that stood in the key set before and has not reached its retire time stands in it after; so tokens verify
   at every instant. The key set comes before the configuration, whose algorithms it must already satisfy.
2. The state says that a change is under way before it begins, so that of two publishers one loses its race before
   either has written a document, and a run that was killed is finished by the next.
3. A time in the state is never before the event: keys count as published when they are seen in the key set that is
   wanted, in a plan after the one that writes it.
4. What is not ours is left alone (``ForeignIssuer``). Nothing is planned where everything is as it should be.
Leaves to others: reading and writing (``publisher``); whether the public sees it (``readback``).
Source: companion proposal 002; Kubernetes pkg/serviceaccount/jwt.go (legacy tokens live for up to a year and an hour).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from nodeattest_identity.issuer.documents import (
    CONFIGURATION_TYPE,
    JWKS_TYPE,
    MAX_AGE,
    DocumentError,
    Documents,
    documents,
    parse_configuration,
)
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, read_jwks
from nodeattest_identity.publish.errors import ForeignIssuer, PublishError
from nodeattest_identity.publish.layout import layout
from nodeattest_identity.publish.state import KeyRecord, State, StateError, encode, parse
from nodeattest_identity.publish.store import Stored
from nodeattest_identity.tokens.jwt import shown

__all__ = ["DAY", "RETIRE_AFTER", "Found", "Plan", "Wanted", "Write", "cache_control", "plan"]

RETIRE_AFTER: Final = 8761 * 3600
"""Seconds that a key stays after nobody wants it: the longest life of a service account's token, a year and an hour."""
DAY: Final = 24 * 3600
"""Seconds; how long caches are taken to hold an adopted key set of which nothing is known."""
_STATE_TYPE: Final = "application/json"
_UNCACHED: Final = "no-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be public."""

    issuer: str
    jwks_uri: str
    keys: tuple[VerifyingKey, ...]
    owner: str = "nodeattest"
    """Whose documents they are: two clusters by mistake at one place must not trust each other's tokens."""
    max_age: int = MAX_AGE
    """Seconds that others may keep the documents."""
    retire_after: int = RETIRE_AFTER
    adopt: bool = False
    """Take over documents of this very issuer that bear no mark of ours; all their keys stay."""
    revoked: frozenset[str] = frozenset()
    """Names of keys that go at once, whatever lives: they leaked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What stands in the place."""

    state: Stored | None = None
    jwks: Stored | None = None
    configuration: Stored | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One object to write, if it still is that version."""

    path: str
    body: bytes = field(repr=False)
    content_type: str
    cache_control: str
    version: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write, in this order, and what will then be public."""

    writes: tuple[Write, ...]
    documents: Documents
    state: State
    """As it is once the writes are done."""
    notes: tuple[str, ...]
    """What happens to which key, for people."""


def cache_control(max_age: int) -> str:
    """Write the header as kube-apiserver does."""
    return f"public, max-age={max_age}"


def plan(found: Found, wanted: Wanted, now: int) -> Plan:
    """Plan the next writes; raises ``ForeignIssuer``, ``PublishError``, ``KeysError`` and ``UrlError``.

    1. What stands there is ours, or adopted. 2. Which keys stay, come and go. 3. What differs.
    4. The state first where anything differs, then the key set, then the configuration.
    """
    place = layout(wanted.issuer, wanted.jwks_uri)
    # 1
    before = _seen(_ours(found, wanted, now), found.jwks)
    # 2
    staying, going, notes = _sorted(before, wanted, now)
    made = documents(wanted.issuer, wanted.jwks_uri, [record.key for record in staying])
    # 3
    public = cache_control(wanted.max_age)
    late = [
        *_differing(found.jwks, place.jwks, made.jwks, JWKS_TYPE, public),
        *_differing(found.configuration, place.configuration, made.configuration, CONFIGURATION_TYPE, public),
    ]
    # 4
    if late:
        lasting = tuple(record for record in going if _stands(record, found.jwks))
        state = _under_way(before, wanted, (*staying, *lasting), stood=found.jwks is not None)
    else:
        state = _arrived(before, wanted, staying, now)
    early = _differing(found.state, place.state, encode(state), _STATE_TYPE, _UNCACHED)
    return Plan(
        writes=(*early, *late),
        documents=made,
        state=state,
        notes=(*notes, *_strangers(before, found.jwks, made)),
    )


def _ours(found: Found, wanted: Wanted, now: int) -> State:
    """Tell what was published before; raises ``ForeignIssuer``.

    1. A configuration of another issuer is never overwritten. 2. A state of another issuer or owner neither.
    3. Documents without a state are ours only if that is said, and if they can be read.
    """
    # 1
    said = None
    if found.configuration is not None:
        try:
            said = parse_configuration(found.configuration.body).issuer
        except DocumentError:
            said = ""
        if said not in {"", wanted.issuer}:
            raise ForeignIssuer(f"the configuration there is of the issuer {said!a}, not of {wanted.issuer}")
    # 2
    state = _state(found, wanted)
    if state is not None:
        if state.issuer != wanted.issuer:
            raise ForeignIssuer(f"the state there is of the issuer {state.issuer!a}, not of {wanted.issuer}")
        if state.owner != wanted.owner:
            raise ForeignIssuer(
                f"the documents there belong to {state.owner!a}, not to {wanted.owner!a}: one place is one "
                "cluster's, or each would accept the other's tokens"
            )
        return state
    # 3
    fresh = State(issuer=wanted.issuer, jwks_uri=wanted.jwks_uri, owner=wanted.owner, max_age=wanted.max_age)
    if found.jwks is None and found.configuration is None:
        return fresh
    if not wanted.adopt:
        raise ForeignIssuer(
            "documents stand there without our mark (.nodeattest/issuer-state.json); if they are this issuer's, say "
            "--adopt: all keys in them stay for --retire-after"
        )
    if said == "":
        raise ForeignIssuer("the configuration there cannot be read, so nobody can tell whose it is: remove it first")
    return replace(fresh, keys=_adopted(found.jwks), replaced=True, held_until=now + max(wanted.max_age, DAY))


def _state(found: Found, wanted: Wanted) -> State | None:
    """Read our mark; a spoilt one is none, where documents are adopted."""
    if found.state is None:
        return None
    try:
        return parse(found.state.body)
    except StateError as error:
        if wanted.adopt:
            return None
        raise ForeignIssuer(
            f"our state there cannot be read ({error}); say --adopt to make it anew: all published keys then stay for "
            "--retire-after"
        ) from None


def _adopted(jwks: Stored | None) -> tuple[KeyRecord, ...]:
    """Take over every key of a set that bears no mark."""
    if jwks is None:
        return ()
    try:
        return tuple(KeyRecord(key=key) for key in read_jwks(jwks.body))
    except KeysError as error:
        raise ForeignIssuer(f"the key set there cannot be taken over: {error}") from None


def _seen(before: State, jwks: Stored | None) -> State:
    """Take back what the state says of keys that the key set lacks: caches may hold that set, so they settle anew."""
    lacking = [record for record in before.keys if jwks is not None and not _stands(record, jwks)]
    if not lacking:
        return before
    keys = tuple(replace(each, published=None, settled=None) if each in lacking else each for each in before.keys)
    return replace(before, keys=keys)


def _sorted(before: State, wanted: Wanted, now: int) -> tuple[list[KeyRecord], list[KeyRecord], list[str]]:
    """Tell which keys stay, in the order of the key set, and which go; raises ``KeysError`` and ``PublishError``."""
    known = {record.key.kid: record for record in before.keys}
    keys = documents(wanted.issuer, wanted.jwks_uri, wanted.keys).keys
    if any(key.kid in wanted.revoked for key in keys):
        raise PublishError(
            "a key that is to be dropped is among those that are to be published: take its file out first"
        )
    if any(key.kid in known and known[key.kid].key.spki != key.spki for key in keys):
        raise KeysError("expected every key under a name of its own, got two of one kid")
    staying = [replace(known.get(key.kid) or KeyRecord(key=key), retire=None) for key in keys]
    going: list[KeyRecord] = []
    notes = [f"+ {shown(key.kid)}: new" for key in keys if key.kid not in known]
    notes += [
        f"+ {shown(key.kid)}: wanted again" for key in keys if key.kid in known and known[key.kid].retire is not None
    ]
    for record in before.keys:
        if record.key.kid in {key.kid for key in keys}:
            continue
        retire = now + wanted.retire_after if record.retire is None else record.retire
        if record.key.kid in wanted.revoked:
            retire = min(retire, now)  # in the state before it leaves the key set, so that it cannot come back
        if retire <= now:
            notes.append(f"- {shown(record.key.kid)}: goes")
        elif record.retire is None:
            notes.append(f"~ {shown(record.key.kid)}: not wanted any more, stays until its tokens have expired")
        (going if retire <= now else staying).append(replace(record, retire=retire))
    return staying, going, notes


def _strangers(before: State, jwks: Stored | None, made: Documents) -> list[str]:
    """Tell of keys that somebody else put into the key set: they go, for our state knows every key of ours."""
    known = {key.kid for key in made.keys} | {record.key.kid for record in before.keys}
    try:
        there = read_jwks(jwks.body) if jwks is not None else ()
    except KeysError:
        return ["! the key set there is none: it is made anew"]
    return [
        f"! {shown(key.kid)}: stood there, and none of ours put it there: goes" for key in there if key.kid not in known
    ]


def _differing(found: Stored | None, path: str, body: bytes, content_type: str, cached: str) -> Iterable[Write]:
    """Write an object unless it stands there already, with its headers where the store keeps them."""
    if found is None:
        yield Write(path=path, body=body, content_type=content_type, cache_control=cached, version=None, why="missing")
        return
    why = "differs" if found.body != body else ""
    if not why and found.content_type not in {None, content_type}:
        why = "has another content type"
    if not why and found.cache_control not in {None, cached}:
        why = "has another Cache-Control"
    if why:
        yield Write(
            path=path, body=body, content_type=content_type, cache_control=cached, version=found.version, why=why
        )


def _stands(record: KeyRecord, jwks: Stored | None) -> bool:
    """Whether a key may still stand in the key set; in one that cannot be read it may."""
    try:
        return jwks is not None and record.key.kid in {key.kid for key in read_jwks(jwks.body)}
    except KeysError:
        return True


def _under_way(before: State, wanted: Wanted, records: tuple[KeyRecord, ...], *, stood: bool) -> State:
    """Say that the documents are being changed; whoever loses the race for this write has written nothing."""
    return State(
        issuer=wanted.issuer,
        jwks_uri=wanted.jwks_uri,
        owner=wanted.owner,
        max_age=max(before.max_age, wanted.max_age),
        held_until=before.held_until,
        replaced=before.replaced or stood,
        changed=None,
        keys=records,
    )


def _arrived(before: State, wanted: Wanted, records: Iterable[KeyRecord], now: int) -> State:
    """Say since when the documents are what they should be, and from when on new keys may sign.

    A key that came with the first key set may sign at once: nobody can hold an older one. For any other, whoever asked
    a moment before holds the older set for as long as it was told to.
    """
    held_until = before.held_until if before.max_age <= wanted.max_age else max(before.held_until, now + before.max_age)
    settled = max(now + before.max_age if before.replaced else now, before.held_until)
    return State(
        issuer=wanted.issuer,
        jwks_uri=wanted.jwks_uri,
        owner=wanted.owner,
        max_age=wanted.max_age,
        held_until=held_until,
        replaced=True,
        changed=now if before.changed is None else before.changed,
        keys=tuple(
            replace(each, published=now, settled=settled) if each.published is None else each for each in records
        ),
    )
