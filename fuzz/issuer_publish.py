"""Targets of publication: an issuer's state and documents as they are in a place that others may write to."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fuzz.keys import AUTHORITY_KEY, NODE_KEY, NOW, TPM_KEY
from fuzz.mutators.json_tree import JsonTree
from fuzz.target import Target, require
from nodeattest_identity.issuer.documents import Documents, documents
from nodeattest_identity.issuer.keys import KeysError, read_jwks, verifying_key
from nodeattest_identity.issuer.urls import default_jwks_uri
from nodeattest_identity.publish import state as states
from nodeattest_identity.publish.key_lifecycle import published_key_set
from nodeattest_identity.publish.plan import Current, plan
from nodeattest_identity.publish.rotation import timeline
from nodeattest_identity.publish.state import Desired
from nodeattest_identity.publish.store import ForeignIssuerError, PublishError, StoredObject

__all__ = ["PUBLISHED", "STANDING", "TARGETS"]

_ISSUER: Final = "https://issuer.example/c1"
_URI: Final = default_jwks_uri(_ISSUER)
_MOMENT: Final = int(NOW.timestamp())
_SIGNER, _OLD, _OTHER = (verifying_key(each.public_key()) for each in (NODE_KEY, AUTHORITY_KEY, TPM_KEY))
_WANTED: Final = Desired(issuer=_ISSUER, jwks_uri=_URI, keys=(_SIGNER,))
STANDING: Final = states.IssuerState(
    issuer=_ISSUER,
    jwks_uri=_URI,
    owner="nodeattest",
    max_age=3600,
    replaced=True,
    changed=_MOMENT - 9,
    keys=(
        states.KeyRecord(key=_SIGNER, published=_MOMENT - 9, settled=_MOMENT - 9),
        states.KeyRecord(key=_OLD, published=_MOMENT - 99, settled=_MOMENT - 99, retire=_MOMENT + 99),
    ),
)
"""A state with a key that signs and an old one."""
PUBLISHED: Final[Documents] = documents(_ISSUER, _URI, (_SIGNER, _OLD))


def _state(data: bytes) -> bool:
    try:
        state = states.parse(data)
    except states.IssuerStateError:
        return False
    require(states.parse(states.encode(state)) == state, "a state is read as it was written")
    require(b'"d"' not in states.encode(state), "no private member")
    timeline(state, _SIGNER.kid, now=_MOMENT)
    try:
        planned = plan(
            Current(state=StoredObject(body=data, version="1")), replace(_WANTED, owner=state.owner), _MOMENT
        )
    except (PublishError, KeysError):  # another issuer's, or a clock's far ahead; another key under our name
        return True
    stay = {each.key.kid for each in state.keys if each.retire is None or each.retire > _MOMENT}
    require(all(note.isprintable() for note in planned.notes), "no note of many lines")
    require(stay <= {key.kid for key in planned.documents.keys}, "no key goes before its time")
    return True


def _documents(data: bytes) -> bool:
    """Read a configuration in the first line and a key set behind it, once beside our state and once to be adopted."""
    first, _, rest = data.partition(b"\n")
    found = Current(
        configuration=StoredObject(body=first, version="1") if first else None,
        jwks=StoredObject(body=rest, version="1") if rest else None,
    )
    ours = replace(found, state=StoredObject(body=states.encode(STANDING), version="1"))
    try:
        planned = plan(ours, _WANTED, _MOMENT)
    except ForeignIssuerError:
        return False
    stood = published_key_set(found.jwks).keys
    ours_stands = stood is None or any((key.kid, key.spki) == (_OLD.kid, _OLD.spki) for key in stood)
    right = PUBLISHED if ours_stands else documents(_ISSUER, _URI, (_SIGNER,))
    require(planned.documents.jwks == right.jwks, "a key set adds no key, and takes none but an old one that it lacks")
    require(all(note.isprintable() for note in planned.notes), "no note of many lines")
    try:
        adopted = plan(found, replace(_WANTED, adopt=True), _MOMENT)
    except (ForeignIssuerError, KeysError):
        return False
    there = {key.kid for key in read_jwks(rest)} if rest else set[str]()
    require(there <= {key.kid for key in adopted.documents.keys}, "every adopted key stays")
    return True


TARGETS: Final = (
    Target("issuer-state", _state, JsonTree()),
    Target("issuer-published", _documents),
)
