"""Plans the next writes from the stored objects and the desired documents. Pure.

The state object decides which keys are published; both documents follow from it.
Promises, for the writes of one plan in their order (state, key set, configuration) and interrupted anywhere:
1. A key that was in the state and in the key set, and that was desired less than ``retire_after`` ago, stays in the key
   set, so its tokens verify at every instant. A revoked key goes at once.
2. Two publishers that start from the same read conflict at the first object that both write. The next run completes
   what a killed run began.
3. A key in the key set that the state does not know is removed: somebody else wrote it.
4. Documents of others are not touched (``ForeignIssuerError``). Nothing is planned if everything is as desired.
Out of scope: reading and writing, and the public URL (``publisher``).
Source: companion proposal 002; Kubernetes pkg/serviceaccount/jwt.go (legacy tokens live for up to a year and an hour).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from nodeattest_identity.issuer.documents import (
    CONFIGURATION_PATH,
    CONFIGURATION_TYPE,
    JWKS_PATH,
    JWKS_TYPE,
    DocumentError,
    Documents,
    UrlError,
    documents,
    issuer_url,
    jwks_url,
    parse_configuration,
)
from nodeattest_identity.issuer.keys import KeysError, read_jwks
from nodeattest_identity.publish.state import LATEST, Desired, IssuerState, IssuerStateError, KeyRecord, encode, parse
from nodeattest_identity.publish.store import ForeignIssuerError, PublishError, StoredObject
from nodeattest_identity.tokens.jwt import printable

CONFIGURATION: Final = CONFIGURATION_PATH.removeprefix("/")
STATE: Final = ".nodeattest/issuer-state.json"
"""The state object: public keys and times, no secret."""
_STATE_TYPE: Final = "application/json"
_UNCACHED: Final = "no-store"
_CLOCK_TOLERANCE: Final = 24 * 3600
"""Seconds by which clocks of publishers may differ."""
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", re.ASCII)


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
    replaces: StoredObject | None
    """The object as it was read; None: there was none."""
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
    """Ids of keys to revoke that neither state object nor key set has."""


def jwks_path(issuer: str, jwks_uri: str) -> str:
    """Return the path of the key set, relative to the issuer; raises ``UrlError``.

    A key set below the issuer is stored where its URL leads to, such as ``keys.json``. A key set elsewhere is stored at
    kube-apiserver's path, from where the server of that URL takes it; the check of the public URL shows that.
    Only plain segments: the text of a URL must not name an object elsewhere.
    """
    root = issuer_url(issuer).removesuffix("/") + "/"
    jwks_url(jwks_uri)
    if not jwks_uri.startswith(root):
        return JWKS_PATH.removeprefix("/")
    path = jwks_uri.removeprefix(root)
    if path == CONFIGURATION or not all(_SEGMENT.fullmatch(segment) for segment in path.split("/")):
        raise UrlError(
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
    _check_clock(before, now)
    # 2
    _check_keys(before, desired)
    records, notes = _decide_keys(before, desired, now)
    published, foreign_notes = _published_keys(current.jwks, before, desired)
    # 3
    made = documents(desired.issuer, desired.jwks_uri, [record.key for record in records])
    cached = f"public, max-age={desired.max_age}"  # as kube-apiserver writes it
    writes = (
        *_differing(current.jwks, path, made.jwks, JWKS_TYPE, cached),
        *_differing(current.configuration, CONFIGURATION, made.configuration, CONFIGURATION_TYPE, cached),
    )
    is_changed = current.state is None or records != before.keys or bool(writes)
    state = IssuerState(
        issuer=desired.issuer,
        owner=desired.owner,
        updated=max(before.updated, now) if is_changed else before.updated,
        keys=records,
    )
    return Plan(
        writes=(*_differing(current.state, STATE, encode(state), _STATE_TYPE, _UNCACHED), *writes),
        documents=made,
        state=state,
        notes=(*notes, *foreign_notes),
        unknown=desired.revoked - published - {record.key.kid for record in before.keys},
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
    state = _parsed_state(current, desired)
    if state is not None:
        if state.issuer != desired.issuer:
            raise ForeignIssuerError(f"the state there is of the issuer {state.issuer!a}, not of {desired.issuer}")
        if state.owner != desired.owner:
            raise ForeignIssuerError(
                f"the documents there belong to {state.owner!a}, not to {desired.owner!a}: a location is for one "
                "cluster, or each would accept the other's tokens"
            )
        return state
    # 3
    if (current.jwks is not None or current.configuration is not None) and not desired.adopt:
        raise ForeignIssuerError(
            f"documents are there without our state ({STATE}); if they are this issuer's, give --adopt: all their keys "
            "stay for --retire-after"
        )
    if found_issuer == "":
        raise ForeignIssuerError("the configuration there cannot be read, so its issuer is unknown: remove it first")
    return IssuerState(issuer=desired.issuer, owner=desired.owner, updated=now, keys=_adopted(current.jwks, now))


def _parsed_state(current: Current, desired: Desired) -> IssuerState | None:
    """Parse the state object; when documents are adopted an invalid one counts as none."""
    if current.state is None:
        return None
    try:
        return parse(current.state.body)
    except IssuerStateError as error:
        if desired.adopt:
            return None
        raise ForeignIssuerError(
            f"our state there cannot be read ({error}); give --adopt to make it again: all published keys then stay "
            "for --retire-after"
        ) from None


def _adopted(jwks: StoredObject | None, now: int) -> tuple[KeyRecord, ...]:
    """Take over every key of a key set without a state object."""
    if jwks is None:
        return ()
    try:
        return tuple(KeyRecord(key=key, absent_since=now) for key in read_jwks(jwks.body))
    except KeysError as error:
        raise ForeignIssuerError(f"the key set there cannot be taken over: {error}") from None


def _check_clock(before: IssuerState, now: int) -> None:
    """Refuse a clock that is far behind: a key that it marks as absent would be removed too early."""
    if before.updated > now + _CLOCK_TOLERANCE:
        raise PublishError(
            f"expected a clock past the last change of the state, {_moment(before.updated)}, got {_moment(now)}: set "
            "this machine's clock; if it is right, remove the state object and give --adopt"
        )


def _check_keys(before: IssuerState, desired: Desired) -> None:
    if any(key.kid in desired.revoked for key in desired.keys):
        raise PublishError("--drop-key names a key that is to be published: remove its --service-account-key-file")
    known = {record.key.kid: record.key.spki for record in before.keys}
    if any(known.get(key.kid, key.spki) != key.spki for key in desired.keys):
        raise KeysError("expected every key under a name of its own, got two of one kid")


def _decide_keys(before: IssuerState, desired: Desired, now: int) -> tuple[tuple[KeyRecord, ...], list[str]]:
    """Decide on each key: desired keys, then absent ones whose tokens may still be valid."""
    known = {record.key.kid: record for record in before.keys}
    wanted = documents(desired.issuer, desired.jwks_uri, desired.keys).keys
    records = [KeyRecord(key=key) for key in wanted]
    notes = [
        f"+ {printable(key.kid)}: {'new' if key.kid not in known else 'desired again'}"
        for key in wanted
        if key.kid not in known or known[key.kid].absent_since is not None
    ]
    names = {key.kid for key in wanted}
    for record in (record for record in before.keys if record.key.kid not in names):
        kid = printable(record.key.kid)
        since = now if record.absent_since is None else record.absent_since
        if record.key.kid in desired.revoked or since + desired.retire_after <= now:
            notes.append(f"- {kid}: removed")
        else:
            records.append(KeyRecord(key=record.key, absent_since=since))
            notes.append(
                f"~ {kid}: absent, stays until {_moment(since + desired.retire_after)} because its tokens may be "
                "valid; if it leaked or was never yours, give --drop-key"
            )
    return tuple(records), notes


def _published_keys(
    jwks: StoredObject | None, before: IssuerState, desired: Desired
) -> tuple[frozenset[str], list[str]]:
    """Return the ids in the stored key set, and notes on keys that somebody else wrote there."""
    if jwks is None:
        return frozenset(), []
    try:
        published = read_jwks(jwks.body)
    except KeysError:
        return frozenset(), ["! the key set there is invalid: written again"]
    ours = {(key.kid, key.spki) for key in (*(record.key for record in before.keys), *desired.keys)}
    foreign = [key for key in published if (key.kid, key.spki) not in ours]
    return (
        frozenset(key.kid for key in published),
        [f"! {printable(key.kid)}: in the key set but not in our state: removed" for key in foreign],
    )


def _differing(current: StoredObject | None, path: str, body: bytes, content_type: str, cached: str) -> Iterable[Write]:
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
    return datetime.fromtimestamp(min(at, LATEST), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
