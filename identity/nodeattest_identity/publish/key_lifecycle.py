"""Decides for each key whether it stays in the key set, is added or is removed, with notes for the operator. Pure.

Promises: a key that is not desired stays only if state object and key set agree on it, byte for byte, and at most for
the longest lifetime of a token; there is a note about it each time. A lost or damaged key set is restored from the
state object.
Leaves to others: writing (``plan``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, read_jwks
from nodeattest_identity.publish.state import DAY, RETIRE_AFTER, Desired, IssuerState, KeyRecord
from nodeattest_identity.publish.store import PublishError, StoredObject
from nodeattest_identity.tokens.jwt import printable

__all__ = [
    "KeyChanges",
    "PublishedKeySet",
    "check_publisher_clock",
    "confirmed_state",
    "decide_keys",
    "published_key_set",
]

_CLOCK_TOLERANCE: Final = DAY
"""Seconds by which clocks of publishers may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedKeySet:
    """The key set in the store."""

    keys: tuple[VerifyingKey, ...] | None
    """None: missing or invalid."""
    invalid: bool = False

    def may_hold(self, key: VerifyingKey) -> bool:
        """Whether this key may be in the set; in a missing or invalid set it may."""
        return self.keys is None or any(each.kid == key.kid and each.spki == key.spki for each in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChanges:
    """The decision on each key."""

    kept: tuple[KeyRecord, ...]
    """In the order of the key set."""
    removed: tuple[KeyRecord, ...]
    notes: tuple[str, ...]
    """For the operator."""
    unknown: frozenset[str]
    """Ids of keys to remove that neither state object nor key set has."""


def published_key_set(jwks: StoredObject | None) -> PublishedKeySet:
    """Parse the stored key set; never raises."""
    if jwks is None:
        return PublishedKeySet(keys=None)
    try:
        return PublishedKeySet(keys=read_jwks(jwks.body))
    except KeysError:
        return PublishedKeySet(keys=None, invalid=True)


def decide_keys(before: IssuerState, desired: Desired, published: PublishedKeySet, now: int) -> KeyChanges:
    """Decide on each key; raises ``KeysError`` and ``PublishError``.

    1. Refuse contradictions. 2. Desired keys stay, and settle again if caches may lack them. 3. A key of the state
    object that a valid key set lacks was not published by us: somebody else wrote one of the two. Exceptions: a change
    is in progress, or the key set was lost. 4. Other keys that are not desired stay until their retire time. 5. Every
    other key in the key set is removed.
    """
    # 1
    keys = documents(desired.issuer, desired.jwks_uri, desired.keys).keys
    names = {key.kid for key in keys}
    known = {record.key.kid: record for record in before.keys}
    _check(keys, known, desired)
    # 2
    kept = [replace(_seen(known.get(key.kid) or KeyRecord(key=key), published), retire=None) for key in keys]
    removed: list[KeyRecord] = []
    notes = [f"+ {printable(key.kid)}: new" for key in keys if key.kid not in known]
    notes += [
        f"+ {printable(key.kid)}: wanted again"
        for key in keys
        if key.kid in known and known[key.kid].retire is not None
    ]
    for record in (record for record in before.keys if record.key.kid not in names):
        kid = printable(record.key.kid)
        # 3
        if before.changed is not None and not published.may_hold(record.key):
            notes.append(
                f"! {kid}: our state names it and the key set lacks it, so somebody else wrote there: not published; "
                "if it is yours and tokens by it live, give its file again"
            )
            continue
        # 4
        retire = _retire(record, desired, now)
        if record.retire is not None and now < retire < record.retire:
            notes.append(f"! {kid}: was to stay until {_moment(record.retire)}, longer than any token lives")
        (removed if retire <= now else kept).append(replace(_seen(record, published), retire=retire))
        notes.append(f"- {kid}: goes" if retire <= now else _stays(kid, retire))
    # 5
    return KeyChanges(
        kept=tuple(kept),
        removed=tuple(removed),
        notes=(*notes, *_foreign_keys(names, known, published)),
        unknown=desired.revoked - known.keys() - {key.kid for key in published.keys or ()},
    )


def confirmed_state(state: IssuerState, jwks: StoredObject | None) -> IssuerState:
    """Return the state as far as the key set confirms it: a key that is not in the set is not published."""
    published = published_key_set(jwks)
    unseen = replace(published, keys=published.keys or ())
    return replace(state, keys=tuple(_seen(record, unseen) for record in state.keys))


def check_publisher_clock(before: IssuerState, now: int) -> None:
    """Refuse a clock that is far behind; raises ``PublishError``.

    By it old keys would be removed while tokens by them live.
    """
    if before.changed is not None and before.changed > now + _CLOCK_TOLERANCE:
        raise PublishError(
            f"expected a clock that is past the last change of the documents, {_moment(before.changed)}, got "
            f"{_moment(now)}: set this machine's clock; if it is right and the state is wrong, remove the state and "
            "say --adopt"
        )


def _check(keys: tuple[VerifyingKey, ...], known: dict[str, KeyRecord], desired: Desired) -> None:
    if any(key.kid in desired.revoked for key in keys):
        raise PublishError(
            "a key that is to be dropped is among those that are to be published: take its file out first"
        )
    if any(key.kid in known and known[key.kid].key.spki != key.spki for key in keys):
        raise KeysError("expected every key under a name of its own, got two of one kid")


def _seen(record: KeyRecord, published: PublishedKeySet) -> KeyRecord:
    """Reset the times of a key that the key set lacks: caches may hold that set, so the key settles again."""
    return record if published.may_hold(record.key) else replace(record, published=None, settled=None)


def _retire(record: KeyRecord, desired: Desired, now: int) -> int:
    """Return until when a key stays that is not desired; the state object may hold any time."""
    if record.key.kid in desired.revoked:
        return now if record.retire is None else min(record.retire, now)  # in the state first, so that it stays away
    if record.retire is None:
        return now + desired.retire_after
    return min(record.retire, now + max(desired.retire_after, RETIRE_AFTER) + _CLOCK_TOLERANCE)


def _stays(kid: str, retire: int) -> str:
    return (
        f"~ {kid}: not wanted, stays until {_moment(retire)} because tokens by it may live; if it never was yours or "
        "leaked: --drop-key"
    )


def _foreign_keys(names: set[str], known: dict[str, KeyRecord], published: PublishedKeySet) -> list[str]:
    """Return notes on keys that somebody else wrote: they are removed, as our state has all our keys."""
    if published.invalid:
        return ["! the key set there is none: it is made anew"]
    return [
        f"! {printable(key.kid)}: stood there, and none of ours put it there: goes"
        for key in published.keys or ()
        if key.kid not in names and (key.kid not in known or known[key.kid].key.spki != key.spki)
    ]


def _moment(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
