"""Which keys stay in the key set, which come and which go, and what people are told of each. Pure.

Promises: a key that nobody wants stays only if the state and the key set agree on it, byte for byte, and at most for
the longest life of a token; it is told of each time. A key set that is gone or spoilt is made anew from the state.
Leaves to others: writing (``plan``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, read_jwks
from nodeattest_identity.publish.desired import DAY, RETIRE_AFTER, Desired
from nodeattest_identity.publish.errors import PublishError
from nodeattest_identity.publish.state import IssuerState, KeyRecord
from nodeattest_identity.publish.store import StoredObject
from nodeattest_identity.tokens.jwt import printable

__all__ = ["KeyChanges", "PublishedKeySet", "check_clock", "confirmed_state", "decide_keys", "published_key_set"]

_CLOCKS: Final = DAY
"""Seconds by which clocks of publishers may differ before one shortens what another promised, or is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedKeySet:
    """What the key set there holds."""

    keys: tuple[VerifyingKey, ...] | None
    """None: it is gone, or cannot be read."""
    spoilt: bool = False

    def may_hold(self, key: VerifyingKey) -> bool:
        """Whether this very key may stand there; in a set that cannot be read it may."""
        return self.keys is None or any(each.kid == key.kid and each.spki == key.spki for each in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChanges:
    """What becomes of each key."""

    kept: tuple[KeyRecord, ...]
    """In the order of the key set."""
    removed: tuple[KeyRecord, ...]
    notes: tuple[str, ...]
    """For people."""
    unknown: frozenset[str]
    """Names of keys that are to be dropped, and that neither the state nor the key set has."""


def published_key_set(jwks: StoredObject | None) -> PublishedKeySet:
    """Read the key set there; never raises."""
    if jwks is None:
        return PublishedKeySet(keys=None)
    try:
        return PublishedKeySet(keys=read_jwks(jwks.body))
    except KeysError:
        return PublishedKeySet(keys=None, spoilt=True)


def decide_keys(before: IssuerState, desired: Desired, published: PublishedKeySet, now: int) -> KeyChanges:
    """Decide on each key; raises ``KeysError`` and ``PublishError``.

    1. What may not be. 2. Wanted keys stay, and settle anew where caches may lack them. 3. Of the others one that the
    state names and a sound key set lacks is not ours: somebody wrote into one of the two. Only while a change is under
    way, or after the key set was lost, is it ours. 4. What else nobody wants stays for its time. 5. What else stands
    there goes.
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
        notes=(*notes, *_strangers(names, known, published)),
        unknown=desired.revoked - known.keys() - {key.kid for key in published.keys or ()},
    )


def confirmed_state(state: IssuerState, jwks: StoredObject | None) -> IssuerState:
    """Give what the state says as far as the key set bears it out: what is not in it is not published."""
    published = published_key_set(jwks)
    unseen = replace(published, keys=published.keys or ())
    return replace(state, keys=tuple(_seen(record, unseen) for record in state.keys))


def check_clock(before: IssuerState, now: int) -> None:
    """Refuse to count by a clock that is far behind; raises ``PublishError``.

    By it a key would seem to have been published long ago, and old keys would go while tokens by them live.
    """
    if before.changed is not None and before.changed > now + _CLOCKS:
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
    """Take back what the state says of a key that the key set lacks: caches may hold that set, so it settles anew."""
    return record if published.may_hold(record.key) else replace(record, published=None, settled=None)


def _retire(record: KeyRecord, desired: Desired, now: int) -> int:
    """Tell until when a key stays that nobody wants: whoever wrote the state may have written any time."""
    if record.key.kid in desired.revoked:
        return now if record.retire is None else min(record.retire, now)  # in the state first, so that it stays away
    if record.retire is None:
        return now + desired.retire_after
    return min(record.retire, now + max(desired.retire_after, RETIRE_AFTER) + _CLOCKS)


def _stays(kid: str, retire: int) -> str:
    return (
        f"~ {kid}: not wanted, stays until {_moment(retire)} because tokens by it may live; if it never was yours or "
        "leaked: --drop-key"
    )


def _strangers(names: set[str], known: dict[str, KeyRecord], published: PublishedKeySet) -> list[str]:
    """Tell of keys that somebody else put into the key set: they go, for our state knows every key of ours."""
    if published.spoilt:
        return ["! the key set there is none: it is made anew"]
    return [
        f"! {printable(key.kid)}: stood there, and none of ours put it there: goes"
        for key in published.keys or ()
        if key.kid not in names and (key.kid not in known or known[key.kid].key.spki != key.spki)
    ]


def _moment(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
