"""The desired documents of an issuer, and the state object: what was published, and since when. Pure.

The state object is beside the documents and marks them as ours.
Promises: any bytes give an ``IssuerState`` or ``IssuerStateError``; encoding and parsing are inverse. No private key
can be part of it. It holds the published keys too, so that a damaged key set can be restored from it.
Leaves to others: decisions (``plan``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from nodeattest_identity.issuer.documents import MAX_AGE, documents
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, read_jwks
from nodeattest_identity.issuer.urls import UrlError
from nodeattest_kube.jsontypes import JsonObject, JsonValue, parse_json

__all__ = ["DAY", "RETIRE_AFTER", "Desired", "IssuerState", "IssuerStateError", "KeyRecord", "encode", "parse"]

RETIRE_AFTER: Final = 8761 * 3600
"""Seconds that a key stays published after its removal: the longest lifetime of a service account token, a year and
an hour."""
DAY: Final = 24 * 3600
"""Seconds; how long caches are assumed to hold an adopted key set of unknown max-age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The documents as they should be published."""

    issuer: str
    jwks_uri: str
    keys: tuple[VerifyingKey, ...]
    owner: str = "nodeattest"
    """Owner of the documents: two clusters that share a location by mistake must not accept each other's tokens."""
    max_age: int = MAX_AGE
    """Seconds that caches may hold the documents."""
    retire_after: int = RETIRE_AFTER
    adopt: bool = False
    """Take over documents of this issuer that have no state object; all their keys stay."""
    revoked: frozenset[str] = frozenset()
    """Ids of keys that are removed at once, even if tokens by them still live: they leaked."""


FORMAT: Final = "nodeattest/issuer-state/v1"
MAX_SIZE: Final = 1 << 20
"""Bytes, as of a key set."""
_LATEST: Final = 253_402_300_799
"""Seconds: the last of the year 9999."""
_MEMBERS: Final = frozenset(
    {"format", "issuer", "jwks_uri", "owner", "max_age", "held_until", "replaced", "changed", "jwks", "keys"}
)
_TIMES: Final = frozenset({"kid", "published", "settled", "retire"})
_MAX_TEXT: Final = 2048


class IssuerStateError(ValueError):
    """Not a valid state object; says what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key that is published, is about to be, or is about to be removed."""

    key: VerifyingKey
    published: int | None = None
    """Since when it is known to be in the key set, seconds since the epoch; None: not seen there yet."""
    settled: int | None = None
    """From when on no compliant cache holds a key set without it: from then on it may sign."""
    retire: int | None = None
    """Until when it stays published after its removal from the desired keys; None: it is desired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerState:
    """What this issuer has published."""

    issuer: str
    jwks_uri: str
    owner: str
    max_age: int
    """Seconds: the longest max-age of what is published now."""
    held_until: int = 0
    """Until when caches may hold an older version with a longer max-age."""
    replaced: bool = False
    """Whether there was a key set before the one that is being written."""
    changed: int | None = None
    """When the documents were last written; None: they are being written."""
    keys: tuple[KeyRecord, ...] = field(default=())


def encode(state: IssuerState) -> bytes:
    """Encode the state; raises ``KeysError`` and ``UrlError`` for what could not be published either."""
    jwks = documents(state.issuer, state.jwks_uri, [record.key for record in state.keys]).jwks
    members: dict[str, JsonValue] = {
        "format": FORMAT,
        "issuer": state.issuer,
        "jwks_uri": state.jwks_uri,
        "owner": state.owner,
        "max_age": state.max_age,
        "held_until": state.held_until,
        "replaced": state.replaced,
        "changed": state.changed,
        "keys": [
            {"kid": each.key.kid, "published": each.published, "settled": each.settled, "retire": each.retire}
            for each in state.keys
        ],
        "jwks": parse_json(jwks),
    }
    return json.dumps(members, indent=1).encode() + b"\n"


def parse(body: bytes) -> IssuerState:
    """Parse the state; raises ``IssuerStateError``."""
    if len(body) > MAX_SIZE:
        raise IssuerStateError(f"expected at most {MAX_SIZE} bytes of an issuer's state, got {len(body)}")
    try:
        members = parse_json(body, max_values=100_000)
    except ValueError as error:
        raise IssuerStateError(f"expected an issuer's state in JSON, got {error}") from None
    if members.get("format") != FORMAT or members.keys() != _MEMBERS:
        raise IssuerStateError(f"expected {FORMAT} with its members and no others, got something else")
    replaced, max_age = members["replaced"], _time(members["max_age"])
    held_until = _time(members["held_until"])
    if not isinstance(replaced, bool) or max_age is None or held_until is None:
        raise IssuerStateError("expected max_age and held_until in seconds and replaced as true or false, got others")
    state = IssuerState(
        issuer=_text(members["issuer"]),
        jwks_uri=_text(members["jwks_uri"]),
        owner=_text(members["owner"]),
        max_age=max_age,
        held_until=held_until,
        replaced=replaced,
        changed=_time(members["changed"]),
        keys=_records(members["jwks"], members["keys"]),
    )
    try:
        encode(state)
    except (KeysError, UrlError) as error:
        raise IssuerStateError(str(error)) from None
    return state


def _records(jwks: JsonValue, times: JsonValue) -> tuple[KeyRecord, ...]:
    """Read the keys and their times, which have the same order."""
    try:
        keys = read_jwks(json.dumps(jwks).encode())
    except KeysError as error:
        raise IssuerStateError(str(error)) from None
    if not isinstance(times, list) or len(times) != len(keys):
        raise IssuerStateError("expected the times of each key, got more or fewer")
    return tuple(_record(key, each) for key, each in zip(keys, times, strict=True))


def _record(key: VerifyingKey, times: JsonValue) -> KeyRecord:
    if not isinstance(times, dict) or times.keys() != _TIMES or times["kid"] != key.kid:
        raise IssuerStateError(
            "expected kid, published, settled and retire of each key in the key set's order, got others"
        )
    record = _of_times(key, times)
    if (record.published is None) != (record.settled is None):
        raise IssuerStateError("expected published and settled together, got one of them")
    return record


def _of_times(key: VerifyingKey, times: JsonObject) -> KeyRecord:
    published, settled, retire = (_time(times[name]) for name in ("published", "settled", "retire"))
    return KeyRecord(key=key, published=published, settled=settled, retire=retire)


def _time(value: JsonValue) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LATEST:
        raise IssuerStateError("expected whole seconds before the year 10000, got something else")
    return value


def _text(value: JsonValue) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise IssuerStateError(f"expected a text of at most {_MAX_TEXT} characters, got something else")
    return value
