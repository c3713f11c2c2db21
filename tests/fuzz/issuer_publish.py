"""Targets of publication: an issuer's state and documents in a store that others may write to."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fuzz.keys import AUTHORITY_KEY, NODE_KEY, NOW, TPM_KEY
from fuzz.target import Target, require
from nodeattest_identity.issuer.documents import Documents, default_jwks_uri, documents
from nodeattest_identity.issuer.keys import KeysError, read_jwks, verifying_key
from nodeattest_identity.publish import plan as states
from nodeattest_identity.publish.plan import RETIRE_AFTER, Current, Desired, plan
from nodeattest_identity.publish.store import ForeignIssuerError, PublishError, StoredObject

_ISSUER: Final = "https://issuer.example/c1"
_URI: Final = default_jwks_uri(_ISSUER)
_MOMENT: Final = int(NOW.timestamp())
_SIGNER, _OLD, _OTHER = (verifying_key(each.public_key()) for each in (NODE_KEY, AUTHORITY_KEY, TPM_KEY))
_WANTED: Final = Desired(issuer=_ISSUER, jwks_uri=_URI, keys=(_SIGNER,))
STANDING: Final = states.IssuerState(
    issuer=_ISSUER,
    owner="nodeattest",
    updated=_MOMENT - 9,
    keys=(states.KeyRecord(key=_SIGNER), states.KeyRecord(key=_OLD, absent_since=_MOMENT - 99)),
)
"""A state with a key that signs and an old one."""
PUBLISHED: Final[Documents] = documents(_ISSUER, _URI, (_SIGNER, _OLD))


def _state(data: bytes) -> bool:
    try:
        state = states.parse_state(data)
    except states.IssuerStateError:
        return False
    require(states.parse_state(states.encode_state(state)) == state, "a state is read as it was written")
    require(b'"d"' not in states.encode_state(state), "no private member")
    try:
        planned = plan(Current(state=StoredObject(body=data, e_tag="1")), replace(_WANTED, owner=state.owner), _MOMENT)
    except (PublishError, KeysError):  # another issuer's, or a clock's far ahead; another key under our name
        return True
    stay = {
        record.key.kid
        for record in state.keys
        if record.absent_since is None or record.absent_since + RETIRE_AFTER > _MOMENT
    }
    require(all(note.isprintable() for note in planned.notes), "no note of many lines")
    require(stay <= {key.kid for key in planned.documents.keys}, "no key goes before its time")
    return True


def _documents(data: bytes) -> bool:
    """Read a configuration in the first line and a key set behind it, once beside our state and once to be adopted."""
    first, _, rest = data.partition(b"\n")
    found = Current(
        configuration=StoredObject(body=first, e_tag="1") if first else None,
        jwks=StoredObject(body=rest, e_tag="1") if rest else None,
    )
    ours = replace(found, state=StoredObject(body=states.encode_state(STANDING), e_tag="1"))
    try:
        planned = plan(ours, _WANTED, _MOMENT)
    except ForeignIssuerError:
        return False
    require(planned.documents.jwks == PUBLISHED.jwks, "a key set in the store adds and removes no key")
    require(all(note.isprintable() for note in planned.notes), "no note of many lines")
    try:
        adopted = plan(found, replace(_WANTED, adopt=True), _MOMENT)
    except (ForeignIssuerError, KeysError):
        return False
    there = {key.kid for key in read_jwks(rest)} if rest else set[str]()
    require(there <= {key.kid for key in adopted.documents.keys}, "every adopted key stays")
    return True


TARGETS: Final = (
    Target("issuer-state", _state),
    Target("issuer-published", _documents),
)
