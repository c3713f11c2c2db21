"""The state of an issuer's documents, and the next writes from the stored objects and the desired documents. Pure.

The state object stands beside the documents and marks them as ours. It has each published key, and since when the key
is absent. The writes of one plan go in the order state, key set, configuration, so that after an interruption anywhere
a key whose tokens may be valid is still published, and the next run completes.
Source: companion proposal 002; Kubernetes pkg/serviceaccount/jwt.go (legacy tokens live for up to a year and an hour).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from nodeattest_identity.issuer import documents as docs
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, deduplicate, read_jwks
from nodeattest_identity.publish.store import MAX_OBJECT, ForeignIssuerError, PublishError, StoredObject, Write
from nodeattest_identity.tokens.jwt import printable
from nodeattest_kube.answers import parse_json
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.values import JsonObject, JsonValue

RETIRE_AFTER: Final = 8761 * 3600
"""Seconds that an absent key stays published: the longest lifetime of a service account token, a year and an hour."""
FORMAT: Final = "nodeattest/issuer-state/v1"
CONFIGURATION: Final = docs.CONFIGURATION_PATH.removeprefix("/")
STATE: Final = ".nodeattest/issuer-state.json"
"""The state object: public keys and times, no secret."""
_LATEST: Final = 253_402_300_799
"""Seconds: the last of the year 9999."""
_MEMBERS: Final = frozenset({"format", "issuer", "owner", "updated", "absent_since", "jwks"})
_MAX_TEXT: Final = 2048
_CLOCK_TOLERANCE: Final = 24 * 3600
"""Seconds by which clocks of publishers may differ."""
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerState:
    """What this issuer publishes; times are in seconds since the epoch."""

    issuer: str
    owner: str
    updated: int
    """When this state or a document was last written: caches may hold what was before."""
    keys: tuple[VerifyingKey, ...]
    absent_since: Mapping[str, int]
    """By id of a key: since when it is not among the desired keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The documents as they should be published."""

    issuer: str
    jwks_uri: str
    keys: tuple[VerifyingKey, ...]
    owner: str = "nodeattest"
    """Owner of the documents: two clusters that share a location by mistake must not accept each other's tokens."""
    max_age: int = docs.MAX_AGE
    """Seconds that caches may hold the documents."""
    retire_after: int = RETIRE_AFTER
    adopt: bool = False
    """Take over documents of this issuer that have no state object; all their keys stay."""
    revoked: frozenset[str] = frozenset()
    """Ids of keys that are removed at once, even if tokens by them are still valid: they leaked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The objects in the store."""

    state: StoredObject | None = None
    jwks: StoredObject | None = None
    configuration: StoredObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The writes in their order, and the result."""

    writes: tuple[Write, ...]
    documents: docs.Documents
    state: IssuerState
    """The state after the writes."""
    notes: tuple[str, ...]
    """What happens to which key, for the operator."""
    unknown: frozenset[str]
    """Ids of keys to revoke that neither state object nor key set has."""


def encode_state(state: IssuerState) -> bytes:
    """Encode the state; raises ``KeysError`` and ``UrlError`` for what could not be published either."""
    members: JsonObject = {
        "format": FORMAT,
        "issuer": state.issuer,
        "owner": state.owner,
        "updated": state.updated,
        "absent_since": {key.kid: state.absent_since[key.kid] for key in state.keys if key.kid in state.absent_since},
        "jwks": parse_json(docs.documents(state.issuer, docs.default_jwks_uri(state.issuer), state.keys).jwks),
    }
    body = json.dumps(members, indent=1).encode() + b"\n"
    if len(body) > MAX_OBJECT:  # nobody could read it again
        raise KeysError(f"expected a state of at most {MAX_OBJECT} bytes, got {len(body)}: give keys shorter kids")
    return body


def parse_state(body: bytes) -> IssuerState:
    """Parse the state; raises ``ValueError``, which says what was expected."""
    if len(body) > MAX_OBJECT:
        raise ValueError(f"expected at most {MAX_OBJECT} bytes of an issuer's state, got {len(body)}")
    members = parse_json(body, max_values=100_000)
    if members.get("format") != FORMAT or members.keys() != _MEMBERS:
        raise ValueError(f"expected {FORMAT} with its members and no others, got something else")
    issuer, owner, absent = members["issuer"], members["owner"], members["absent_since"]
    if not isinstance(issuer, str) or not isinstance(owner, str) or max(len(issuer), len(owner)) > _MAX_TEXT:
        raise ValueError(f"expected issuer and owner of at most {_MAX_TEXT} characters, got something else")
    updated = _read_time(members["updated"], _LATEST)
    keys = read_jwks(json.dumps(members["jwks"]).encode())
    if not isinstance(absent, dict) or not absent.keys() <= {key.kid for key in keys}:
        raise ValueError("expected absent_since with names of keys of jwks, got something else")
    times = {kid: _read_time(value, updated) for kid, value in absent.items()}
    state = IssuerState(issuer=issuer, owner=owner, updated=updated, keys=keys, absent_since=times)
    encode_state(state)
    return state


def _read_time(value: JsonValue, latest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= latest:
        raise ValueError(
            "expected whole seconds before the year 10000, and absent_since no later than updated, got something else"
        )
    return value


def jwks_path(issuer: str, jwks_uri: str) -> str:
    """Return the path of the key set, relative to the issuer; raises ``UrlError``.

    A key set below the issuer is stored where its URL leads to, and one elsewhere at kube-apiserver's path. Only plain
    segments are allowed: the text of a URL must not name an object elsewhere.
    """
    root = docs.issuer_url(issuer).removesuffix("/") + "/"
    if not docs.jwks_url(jwks_uri).startswith(root):
        return docs.JWKS_PATH.removeprefix("/")
    path = jwks_uri.removeprefix(root)
    if path == CONFIGURATION or not all(_SEGMENT.fullmatch(segment) for segment in path.split("/")):
        raise docs.UrlError(
            "--service-account-jwks-uri: expected plain segments (letters, digits, . _ ~ -) below the issuer that are "
            f"not the configuration's own path, got {path[:80]!a}"
        )
    return path


def plan(current: Current, desired: Desired, now: int) -> Plan:
    """Plan the next writes; raises ``ForeignIssuerError``, ``PublishError``, ``KeysError`` and ``UrlError``.

    1. The objects are ours, or adopted, and not of the future. 2. Decide on each key. 3. Compare the objects.
    """
    path = jwks_path(desired.issuer, desired.jwks_uri)
    # 1
    before = _ours(current, desired, now)
    if before.updated > now + _CLOCK_TOLERANCE:  # a key that it marks as absent would be removed too early
        raise PublishError(
            f"expected a clock past the last change of the state, {_moment(before.updated)}, got {_moment(now)}: set "
            "this machine's clock; if it is right, remove the state object and give --adopt"
        )
    # 2
    after, notes = _decide_keys(before, desired, now)
    published, foreign_notes = _published_keys(current.jwks, before, desired)
    # 3
    made = docs.documents(desired.issuer, desired.jwks_uri, after.keys)
    cached = f"public, max-age={desired.max_age}"  # as kube-apiserver writes it
    writes = (
        *_differing(current.jwks, path, made.jwks, docs.JWKS_TYPE, cached),
        *_differing(current.configuration, CONFIGURATION, made.configuration, docs.CONFIGURATION_TYPE, cached),
    )
    if current.state is None or after != before or writes:
        after = replace(after, updated=max(before.updated, now))
    return Plan(
        writes=(*_differing(current.state, STATE, encode_state(after), docs.CONFIGURATION_TYPE, "no-store"), *writes),
        documents=made,
        state=after,
        notes=(*notes, *foreign_notes),
        unknown=desired.revoked - published - {key.kid for key in before.keys},
    )


def _ours(current: Current, desired: Desired, now: int) -> IssuerState:
    """Return the published state; raises ``ForeignIssuerError``.

    1. A configuration of another issuer is never overwritten. 2. Nor is a state object of another issuer or owner.
    3. Documents without a state object are adopted only on request, and only if they can be parsed.
    """
    # 1
    issuer = desired.issuer
    if current.configuration is not None:
        try:
            issuer = docs.parse_configuration(current.configuration.body).issuer
        except docs.DocumentError:
            issuer = ""
    if issuer not in {"", desired.issuer}:
        raise ForeignIssuerError(f"the configuration there is of the issuer {issuer!a}, not of {desired.issuer}")
    # 2
    try:
        state = None if current.state is None else parse_state(current.state.body)
    except ValueError as error:
        if not desired.adopt:
            raise ForeignIssuerError(
                f"our state there cannot be read ({error}); give --adopt to make it again: all published keys then "
                "stay for --retire-after"
            ) from None
        state = None
    if state is not None:
        if (state.issuer, state.owner) != (desired.issuer, desired.owner):
            raise ForeignIssuerError(
                f"the documents there are of the issuer {state.issuer!a} and belong to {state.owner!a}, not to "
                f"{desired.owner!a}: a location is for one cluster, or each would accept the other's tokens"
            )
        return state
    # 3
    if (current.jwks is not None or current.configuration is not None) and not desired.adopt:
        raise ForeignIssuerError(
            f"documents are there without our state ({STATE}); if they are this issuer's, give --adopt: all their keys "
            "stay for --retire-after"
        )
    if not issuer:
        raise ForeignIssuerError("the configuration there cannot be read, so its issuer is unknown: remove it first")
    keys = _adopted(current.jwks)
    absent = {key.kid: now for key in keys}
    return IssuerState(issuer=issuer, owner=desired.owner, updated=now, keys=keys, absent_since=absent)


def _adopted(jwks: StoredObject | None) -> tuple[VerifyingKey, ...]:
    try:
        return () if jwks is None else read_jwks(jwks.body)
    except KeysError as error:
        raise ForeignIssuerError(f"the key set there cannot be taken over: {error}") from None


def _decide_keys(before: IssuerState, desired: Desired, now: int) -> tuple[IssuerState, list[str]]:
    """Decide on each key: desired keys, then absent ones whose tokens may still be valid; raises ``PublishError``."""
    wanted = {key.kid: key for key in deduplicate(desired.keys)}
    if not desired.revoked.isdisjoint(wanted):
        raise PublishError("--drop-key names a key that is to be published: remove its --service-account-key-file")
    if not wanted:
        raise KeysError("expected at least one key to publish, got none: the last documents stay as they are")
    deduplicate([*before.keys, *wanted.values()])  # none is another's name
    known = {key.kid for key in before.keys}
    notes = [
        f"+ {printable(kid)}: {'new' if kid not in known else 'desired again'}"
        for kid in wanted
        if kid not in known or kid in before.absent_since
    ]
    staying: list[VerifyingKey] = []
    absent_since: dict[str, int] = {}
    for key in before.keys:
        if key.kid in wanted:
            continue
        since = before.absent_since.get(key.kid, now)
        if key.kid in desired.revoked or since + desired.retire_after <= now:
            notes.append(f"- {printable(key.kid)}: removed")
            continue
        staying.append(key)
        absent_since[key.kid] = since
        notes.append(
            f"~ {printable(key.kid)}: absent, stays until {_moment(since + desired.retire_after)} because its tokens "
            "may be valid; if it leaked or was never yours, give --drop-key"
        )
    return replace(before, keys=(*wanted.values(), *staying), absent_since=absent_since), notes


def _published_keys(
    jwks: StoredObject | None, before: IssuerState, desired: Desired
) -> tuple[frozenset[str], list[str]]:
    """Return the ids in the stored key set, and notes on keys that somebody else wrote there."""
    try:
        published = () if jwks is None else read_jwks(jwks.body)
    except KeysError:
        return frozenset(), ["! the key set there is invalid: written again"]
    ours = {(key.kid, key.spki) for key in (*before.keys, *desired.keys)}
    foreign = [key.kid for key in published if (key.kid, key.spki) not in ours]
    notes = [f"! {printable(kid)}: in the key set but not in our state: removed" for kid in foreign]
    return frozenset(key.kid for key in published), notes


def _differing(current: StoredObject | None, path: str, body: bytes, content_type: str, cached: str) -> Iterator[Write]:
    """Write an object unless its bytes, and its headers if the store has any, are as desired."""
    if current is None:
        why = "missing"
    elif current.body != body:
        why = "differs"
    elif current.content_type not in {None, content_type}:
        why = "has another content type"
    elif current.cache_control not in {None, cached}:
        why = "has another Cache-Control"
    else:
        return
    yield Write(path=path, body=body, content_type=content_type, cache_control=cached, replaces=current, why=why)


def _moment(at: int) -> str:
    return rfc3339(datetime.fromtimestamp(min(at, _LATEST), UTC))
