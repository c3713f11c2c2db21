"""Plans the next writes from the current objects and the desired documents. Pure.

Promises, for the writes of one plan in their order and interrupted anywhere:
1. Every key that was in the key set and has not reached its retire time stays in it, so tokens verify at every instant.
   The key set is written before the configuration, whose algorithms it must already satisfy.
2. The state object announces a change before it begins: of two publishers one gets a write conflict before either has
   written a document, and the next run finishes what a killed run began.
3. A key that is not desired is published only while state object and key set agree on it, and for a bounded time; each
   plan has a note about it.
4. A time in the state is never before the event: keys count as published when they are seen in the desired key set, by
   a plan after the one that writes it.
5. Documents of others are not touched (``ForeignIssuerError``). Nothing is planned if everything is as desired.
Leaves to others: the lifecycle of each key (``key_lifecycle``), reading and writing (``publisher``), the public URL
(``verify_public``).
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
from nodeattest_identity.publish.key_lifecycle import check_publisher_clock, decide_keys, published_key_set
from nodeattest_identity.publish.paths import object_paths
from nodeattest_identity.publish.state import (
    DAY,
    Desired,
    IssuerState,
    IssuerStateError,
    KeyRecord,
    encode,
    parse,
)
from nodeattest_identity.publish.store import ForeignIssuerError, StoredObject

__all__ = ["Current", "Plan", "Write", "cache_control", "plan"]

_STATE_TYPE: Final = "application/json"
_UNCACHED: Final = "no-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The objects in the store."""

    state: StoredObject | None = None
    jwks: StoredObject | None = None
    configuration: StoredObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A conditional write of one object."""

    path: str
    body: bytes = field(repr=False)
    content_type: str
    cache_control: str
    version: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The writes in their order, and the result."""

    writes: tuple[Write, ...]
    documents: Documents
    state: IssuerState
    """The state after the writes."""
    notes: tuple[str, ...]
    """What happens to which key, for the operator."""
    unknown: frozenset[str]
    """Ids of keys to remove that neither state object nor key set has."""


def cache_control(max_age: int) -> str:
    """Return the header value as kube-apiserver writes it."""
    return f"public, max-age={max_age}"


def plan(current: Current, desired: Desired, now: int) -> Plan:
    """Plan the next writes; raises ``ForeignIssuerError``, ``PublishError``, ``KeysError`` and ``UrlError``.

    1. The objects are ours, or adopted, and not of the future. 2. Decide on each key. 3. Compare the documents.
    4. Write the state object first if a document differs, then the key set, then the configuration.
    """
    place = object_paths(desired.issuer, desired.jwks_uri)
    # 1
    before = _ours(current, desired, now)
    check_publisher_clock(before, now)
    # 2
    key_set = published_key_set(current.jwks)
    changes = decide_keys(before, desired, key_set, now)
    made = documents(desired.issuer, desired.jwks_uri, [record.key for record in changes.kept])
    # 3
    public = cache_control(desired.max_age)
    late = [
        *_differing(current.jwks, place.jwks, made.jwks, JWKS_TYPE, public),
        *_differing(current.configuration, place.configuration, made.configuration, CONFIGURATION_TYPE, public),
    ]
    # 4
    if late:
        lasting = tuple(
            record for record in changes.removed if current.jwks is not None and key_set.may_hold(record.key)
        )
        state = _in_progress(before, desired, (*changes.kept, *lasting), stood=current.jwks is not None)
    else:
        state = _finished(before, desired, changes.kept, now)
    early = _differing(current.state, place.state, encode(state), _STATE_TYPE, _UNCACHED)
    return Plan(
        writes=(*early, *late),
        documents=made,
        state=state,
        notes=changes.notes,
        unknown=changes.unknown,
    )


def _ours(current: Current, desired: Desired, now: int) -> IssuerState:
    """Return the published state; raises ``ForeignIssuerError``.

    1. A configuration of another issuer is never overwritten. 2. Nor is a state object of another issuer or owner.
    3. Documents without a state object are adopted only on request, and only if they can be parsed.
    """
    # 1
    found_issuer = None
    if current.configuration is not None:
        try:
            found_issuer = parse_configuration(current.configuration.body).issuer
        except DocumentError:
            found_issuer = ""
        if found_issuer not in {"", desired.issuer}:
            raise ForeignIssuerError(
                f"the configuration there is of the issuer {found_issuer!a}, not of {desired.issuer}"
            )
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
            "documents are there without our mark (.nodeattest/issuer-state.json); if they are this issuer's, say "
            "--adopt: all keys in them stay for --retire-after"
        )
    if found_issuer == "":
        raise ForeignIssuerError(
            "the configuration there cannot be read, so nobody can tell whose it is: remove it first"
        )
    return replace(fresh, keys=_adopted(current.jwks), replaced=True, held_until=now + max(desired.max_age, DAY))


def _state(current: Current, desired: Desired) -> IssuerState | None:
    """Parse the state object; when documents are adopted an invalid one counts as none."""
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
    """Take over every key of a key set without a state object."""
    if jwks is None:
        return ()
    try:
        return tuple(KeyRecord(key=key) for key in read_jwks(jwks.body))
    except KeysError as error:
        raise ForeignIssuerError(f"the key set there cannot be taken over: {error}") from None


def _differing(current: StoredObject | None, path: str, body: bytes, content_type: str, cached: str) -> Iterable[Write]:
    """Write an object unless its bytes, and its headers if the store has any, are as desired."""
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


def _in_progress(before: IssuerState, desired: Desired, records: tuple[KeyRecord, ...], *, stood: bool) -> IssuerState:
    """Return the state of a change in progress; a publisher whose write of it conflicts has written nothing."""
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


def _finished(before: IssuerState, desired: Desired, records: Iterable[KeyRecord], now: int) -> IssuerState:
    """Return the state of a finished change: since when it is published, and from when on new keys may sign.

    A key of the first key set may sign at once: no cache can hold an older set. Before any other key signs, caches of
    the older set must have expired.
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
