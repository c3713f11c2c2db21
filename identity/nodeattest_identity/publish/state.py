"""The desired documents of an issuer, and the state object: each published key, and since when it is absent. Pure.

The state object is beside the documents and marks them as ours.
Promises: any bytes give an ``IssuerState`` or ``IssuerStateError``; encoding and parsing are inverse. No private key
can be part of it. It holds the published keys too, so that a lost key set can be restored from it.
Out of scope: decisions (``plan``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.issuer.documents import MAX_AGE, UrlError, default_jwks_uri, documents
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, read_jwks
from nodeattest_kube.jsontypes import parse_json
from nodeattest_parsing.values import JsonValue

RETIRE_AFTER: Final = 8761 * 3600
"""Seconds that an absent key stays published: the longest lifetime of a service account token, a year and an hour."""
FORMAT: Final = "nodeattest/issuer-state/v1"
MAX_SIZE: Final = 1 << 20
"""Bytes, as of a key set."""
LATEST: Final = 253_402_300_799
"""Seconds: the last of the year 9999."""
_MEMBERS: Final = frozenset({"format", "issuer", "owner", "updated", "absent_since", "jwks"})
_MAX_TEXT: Final = 2048


class IssuerStateError(ValueError):
    """Not a valid state object; says what was expected."""


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
    """Ids of keys that are removed at once, even if tokens by them are still valid: they leaked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A published key."""

    key: VerifyingKey
    absent_since: int | None = None
    """Since when it is not among the desired keys, seconds since the epoch; None: it is desired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerState:
    """What this issuer publishes."""

    issuer: str
    owner: str
    updated: int
    """When this state or a document was last written, seconds since the epoch: caches may hold what was before."""
    keys: tuple[KeyRecord, ...]


def encode(state: IssuerState) -> bytes:
    """Encode the state; raises ``KeysError`` and ``UrlError`` for what could not be published either."""
    keys = [record.key for record in state.keys]
    members: dict[str, JsonValue] = {
        "format": FORMAT,
        "issuer": state.issuer,
        "owner": state.owner,
        "updated": state.updated,
        "absent_since": {
            record.key.kid: record.absent_since for record in state.keys if record.absent_since is not None
        },
        "jwks": parse_json(documents(state.issuer, default_jwks_uri(state.issuer), keys).jwks),
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
    updated = _time(members["updated"], LATEST)
    try:
        keys = read_jwks(json.dumps(members["jwks"]).encode())
        state = IssuerState(
            issuer=_text(members["issuer"]),
            owner=_text(members["owner"]),
            updated=updated,
            keys=_records(keys, members["absent_since"], updated),
        )
        encode(state)
    except (KeysError, UrlError) as error:
        raise IssuerStateError(str(error)) from None
    return state


def _records(keys: tuple[VerifyingKey, ...], absent_since: JsonValue, updated: int) -> tuple[KeyRecord, ...]:
    if not isinstance(absent_since, dict) or not absent_since.keys() <= {key.kid for key in keys}:
        raise IssuerStateError("expected absent_since with names of keys of jwks, got something else")
    times = {kid: _time(value, updated) for kid, value in absent_since.items()}
    return tuple(KeyRecord(key=key, absent_since=times.get(key.kid)) for key in keys)


def _time(value: JsonValue, latest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= latest:
        raise IssuerStateError(
            "expected whole seconds before the year 10000, and absent_since no later than updated, got something else"
        )
    return value


def _text(value: JsonValue) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise IssuerStateError(f"expected a text of at most {_MAX_TEXT} characters, got something else")
    return value
