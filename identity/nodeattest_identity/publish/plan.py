"""What is to be written next, from what stands in a place and what is wanted there. Pure.

Promises, of the writes of one plan done in their order and cut off anywhere:
1. Every key that stood in the key set before and has not reached its retire time stands in it after; so tokens verify
   at every instant. The key set comes before the configuration, whose algorithms it must already satisfy.
2. The state says that a change is under way before it begins, so that of two publishers one loses its race before
   either has written a document, and a run that was killed is finished by the next.
3. A key that nobody wants is published only while the state and the key set agree on it, for a bounded time, and is
   told of each time.
4. A time in the state is never before the event: keys count as published when they are seen in the key set that is
   wanted, in a plan after the one that writes it.
5. What is not ours is left alone (``ForeignIssuerError``). Nothing is planned where everything is as it should be.
Leaves to others: each key's fate (``sorting``); reading and writing (``publisher``); whether the public sees it
(``readback``).
Source: companion proposal 002; Kubernetes pkg/serviceaccount/jwt.go (legacy tokens live for up to a year and an hour).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from nodeattest_identity.issuer.documents import (
    CONFIGURATION_TYPE,
    JWKS_TYPE,
    DocumentError,
    Documents,
    documents,
    parse_configuration,
)
from nodeattest_identity.issuer.keys import KeysError, read_jwks
from nodeattest_identity.publish.desired import DAY, RETIRE_AFTER, Desired
from nodeattest_identity.publish.errors import ForeignIssuerError
from nodeattest_identity.publish.key_lifecycle import check_clock, decide_keys, published_key_set
from nodeattest_identity.publish.paths import object_paths
from nodeattest_identity.publish.state import IssuerState, IssuerStateError, KeyRecord, encode, parse
from nodeattest_identity.publish.store import StoredObject

__all__ = ["DAY", "RETIRE_AFTER", "Current", "Desired", "Plan", "Write", "cache_control", "plan"]

_STATE_TYPE: Final = "application/json"
_UNCACHED: Final = "no-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What stands in the place."""

    state: StoredObject | None = None
    jwks: StoredObject | None = None
    configuration: StoredObject | None = None


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
    state: IssuerState
    """As it is once the writes are done."""
    notes: tuple[str, ...]
    """What happens to which key, for people."""
    unknown: frozenset[str]
    """Names of keys that are to be dropped, and that nothing there has."""


def cache_control(max_age: int) -> str:
    """Write the header as kube-apiserver does."""
    return f"public, max-age={max_age}"


def plan(current: Current, desired: Desired, now: int) -> Plan:
    """Plan the next writes; raises ``ForeignIssuerError``, ``PublishError``, ``KeysError`` and ``UrlError``.

    1. What stands there is ours, or adopted, and no later than now. 2. Which keys stay, come and go. 3. What differs.
    4. The state first where anything differs, then the key set, then the configuration.
    """
    place = object_paths(desired.issuer, desired.jwks_uri)
    # 1
    before = _ours(current, desired, now)
    check_clock(before, now)
    # 2
    there = published_key_set(current.jwks)
    changes = decide_keys(before, desired, there, now)
    made = documents(desired.issuer, desired.jwks_uri, [record.key for record in changes.kept])
    # 3
    public = cache_control(desired.max_age)
    late = [
        *_differing(current.jwks, place.jwks, made.jwks, JWKS_TYPE, public),
        *_differing(current.configuration, place.configuration, made.configuration, CONFIGURATION_TYPE, public),
    ]
    # 4
    if late:
        lasting = tuple(record for record in changes.removed if current.jwks is not None and there.may_hold(record.key))
        state = _under_way(before, desired, (*changes.kept, *lasting), stood=current.jwks is not None)
    else:
        state = _arrived(before, desired, changes.kept, now)
    early = _differing(current.state, place.state, encode(state), _STATE_TYPE, _UNCACHED)
    return Plan(
        writes=(*early, *late),
        documents=made,
        state=state,
        notes=changes.notes,
        unknown=changes.unknown,
    )


def _ours(current: Current, desired: Desired, now: int) -> IssuerState:
    """Tell what was published before; raises ``ForeignIssuerError``.

    1. A configuration of another issuer is never overwritten. 2. A state of another issuer or owner neither.
    3. Documents without a state are ours only if that is said, and if they can be read.
    """
    # 1
    said = None
    if current.configuration is not None:
        try:
            said = parse_configuration(current.configuration.body).issuer
        except DocumentError:
            said = ""
        if said not in {"", desired.issuer}:
            raise ForeignIssuerError(f"the configuration there is of the issuer {said!a}, not of {desired.issuer}")
    # 2
    state = _state(current, desired)
    if state is not None:
        if state.issuer != desired.issuer:
            raise ForeignIssuerError(f"the state there is of the issuer {state.issuer!a}, not of {desired.issuer}")
        if state.owner != desired.owner:
            raise ForeignIssuerError(
                f"the documents there belong to {state.owner!a}, not to {desired.owner!a}: one place is one "
                "cluster's, or each would accept the other's tokens"
            )
        return state
    # 3
    fresh = IssuerState(issuer=desired.issuer, jwks_uri=desired.jwks_uri, owner=desired.owner, max_age=desired.max_age)
    if current.jwks is None and current.configuration is None:
        return fresh
    if not desired.adopt:
        raise ForeignIssuerError(
            "documents stand there without our mark (.nodeattest/issuer-state.json); if they are this issuer's, say "
            "--adopt: all keys in them stay for --retire-after"
        )
    if said == "":
        raise ForeignIssuerError(
            "the configuration there cannot be read, so nobody can tell whose it is: remove it first"
        )
    return replace(fresh, keys=_adopted(current.jwks), replaced=True, held_until=now + max(desired.max_age, DAY))


def _state(current: Current, desired: Desired) -> IssuerState | None:
    """Read our mark; a spoilt one is none, where documents are adopted."""
    if current.state is None:
        return None
    try:
        return parse(current.state.body)
    except IssuerStateError as error:
        if desired.adopt:
            return None
        raise ForeignIssuerError(
            f"our state there cannot be read ({error}); say --adopt to make it anew: all published keys then stay for "
            "--retire-after"
        ) from None


def _adopted(jwks: StoredObject | None) -> tuple[KeyRecord, ...]:
    """Take over every key of a set that bears no mark."""
    if jwks is None:
        return ()
    try:
        return tuple(KeyRecord(key=key) for key in read_jwks(jwks.body))
    except KeysError as error:
        raise ForeignIssuerError(f"the key set there cannot be taken over: {error}") from None


def _differing(current: StoredObject | None, path: str, body: bytes, content_type: str, cached: str) -> Iterable[Write]:
    """Write an object unless it stands there already, with its headers where the store keeps them."""
    if current is None:
        yield Write(path=path, body=body, content_type=content_type, cache_control=cached, version=None, why="missing")
        return
    why = "differs" if current.body != body else ""
    if not why and current.content_type not in {None, content_type}:
        why = "has another content type"
    if not why and current.cache_control not in {None, cached}:
        why = "has another Cache-Control"
    if why:
        yield Write(
            path=path, body=body, content_type=content_type, cache_control=cached, version=current.version, why=why
        )


def _under_way(before: IssuerState, desired: Desired, records: tuple[KeyRecord, ...], *, stood: bool) -> IssuerState:
    """Say that the documents are being changed; whoever loses the race for this write has written nothing."""
    return IssuerState(
        issuer=desired.issuer,
        jwks_uri=desired.jwks_uri,
        owner=desired.owner,
        max_age=max(before.max_age, desired.max_age),
        held_until=before.held_until,
        replaced=before.replaced or stood,
        changed=None,
        keys=records,
    )


def _arrived(before: IssuerState, desired: Desired, records: Iterable[KeyRecord], now: int) -> IssuerState:
    """Say since when the documents are what they should be, and from when on new keys may sign.

    A key that came with the first key set may sign at once: nobody can hold an older one. For any other, whoever asked
    a moment before holds the older set for as long as it was told to.
    """
    held_until = (
        before.held_until if before.max_age <= desired.max_age else max(before.held_until, now + before.max_age)
    )
    settled = max(now + before.max_age if before.replaced else now, before.held_until)
    return IssuerState(
        issuer=desired.issuer,
        jwks_uri=desired.jwks_uri,
        owner=desired.owner,
        max_age=desired.max_age,
        held_until=held_until,
        replaced=True,
        changed=now if before.changed is None else before.changed,
        keys=tuple(
            replace(each, published=now, settled=settled) if each.published is None else each for each in records
        ),
    )
