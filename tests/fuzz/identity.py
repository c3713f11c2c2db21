"""Targets of identities: the add-on proxies, tokens of issuers, and an issuer's keys, documents and state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from fuzz.target import AUTHORITY_KEY, NODE_KEY, NOW, TPM_KEY, require, target, text_of
from nodeattest_identity.addon.gateway import keyset
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, TrustError, identify, read_trust
from nodeattest_identity.addon.sidecar.caller import bearer, require_no_token_in_query
from nodeattest_identity.issuer import documents as issuer_documents
from nodeattest_identity.issuer.documents import Configuration, DocumentError, documents
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, read_jwks, read_pem, verifying_key
from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_identity.proxy.request import (
    RawHeaders,
    RequestTarget,
    canonical,
    read_target,
    request_headers,
    response_headers,
)
from nodeattest_identity.publish import plan as states
from nodeattest_identity.publish.plan import RETIRE_AFTER, Current, Desired, plan
from nodeattest_identity.publish.store import ForeignIssuerError, PublishError, StoredObject
from nodeattest_identity.tokens import jwt
from nodeattest_kube.answers import parse_json
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers.errors import Denied

NAME: Final = "front-proxy-client"
_TRUST: Final = FrontProxyTrust(authorities=(b"",), allowed_names=frozenset({NAME}), has_uid=True)

# The gateway


@target("gateway-headers", text_of)
def _headers(text: str, _data: bytes) -> bool:
    """Read a header from ``name: value`` lines; the first line is the certificate's name."""
    name, *lines = text.split("\n")
    headers = [(key, value) for key, _, value in (line.partition(": ") for line in lines)]
    try:
        who = identify(_TRUST, name or None, headers)
    except RefusalError as refusal:
        require(refusal.status.value == 401, "not known is 401")
        return False
    require(name == NAME, "only the front proxy is believed")
    require([value for key, value in headers if key.lower() == "x-remote-user"] == [who.user], "one user, verbatim")
    require(bool(who.user), "somebody")
    told = json.dumps([who.user, who.uid, who.groups, who.extra], ensure_ascii=False).encode()
    require(not any(byte < 0x20 for byte in told), "no control character")
    return True


@target("gateway-trust", lambda data: read_trust(parse_json(data)), refusals=(TrustError, ValueError))
def _trust(trust: FrontProxyTrust, _data: bytes) -> None:
    require(bool(trust.authorities), "a CA is demanded")
    require(bool(trust.allowed_names) and "" not in trust.allowed_names, "nobody without a name")
    require(trust.pem.count("BEGIN CERTIFICATE") == len(trust.authorities), "every CA counts")


@target("gateway-keys", keyset.parse_keyset, refusals=(KeysError,))
def _ring(found: keyset.KeySet, _data: bytes) -> None:
    written = keyset.encode_keyset(found)
    require(keyset.encode_keyset(keyset.parse_keyset(written)) == written, "what was written reads the same")
    require(found.signer(0) is not None, "a key is demanded")
    require("PRIVATE" not in repr(found), "keys are not shown")


# What both proxies forward by

_PEER: Final = "10.0.0.9"
_TCHAR: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""RFC 9110 §5.6.2; aiohttp hands no other name over."""
_REFUSED: Final = (RefusalError,)


def _target_of(data: bytes) -> RequestTarget:
    found = read_target(text_of(data))
    require_no_token_in_query(found)
    return found


@target("addon-target", _target_of, refusals=_REFUSED)
def _target(found: RequestTarget, data: bytes) -> None:
    """Read a request's target as aiohttp hands it over; however often it is decoded, it stays in its place."""
    require(found.raw == text_of(data), "what was judged is what is sent")
    slashes = found.path.count("/")
    for read in (found.path, unquote(found.path), unquote(unquote(found.path))):
        segments = read.split("/")
        require(not {".", ".."} & {segment.partition(";")[0] for segment in segments}, "no dot segment")
        require(read.count("/") == slashes and "\\" not in read, "no further separator")
        require("\0" not in read, "no NUL")
    require("//" not in found.path, "no empty segment")


def _fields(data: bytes) -> RawHeaders:
    """Read ``name: value`` lines as aiohttp would let them pass."""
    fields = (line.partition(b": ") for line in data.split(b"\n"))
    return [
        (name, value.replace(b"\r", b"").replace(b"\0", b"").strip())
        for name, _, value in fields
        if name and _TCHAR.issuperset(name)
    ]


@target("addon-request-headers", _fields)
def _request(raw: RawHeaders, _data: bytes) -> bool:
    """Clean a client's header; an upstream that folds names sees one identity, which is ours."""
    try:
        made = request_headers(raw, peer=_PEER, scheme="http", inject=[("X-Authenticated-User", "alice")])
    except RefusalError as refusal:
        require(refusal.refusal is Refusal.HEADER_NOT_ALLOWED, "refused for its header")
        return False
    folded = [(canonical(name.encode()), value) for name, value in made.items()]
    require([value for name, value in folded if name == b"x-authenticated-user"] == ["alice"], "one identity, ours")
    require([value for name, value in folded if name == b"x-forwarded-for"] == [_PEER], "the peer, and no other")
    hidden = {b"authorization", b"connection", b"upgrade", b"transfer-encoding", b"content-length", b"x-remote-user"}
    require(not hidden & {name for name, _ in folded}, "no credential and nothing of one hop")
    require(not any(control in value for _, value in folded for control in "\r\n\0"), "one line a field")
    return True


@target("addon-response-headers", _fields)
def _response(raw: RawHeaders, _data: bytes) -> bool:
    """Clean an upstream's header."""
    made = response_headers(raw)
    folded = [canonical(name.encode()) for name in made]
    identities = (b"x-authenticated-", b"x-remote-", b"impersonate-")
    require(not any(f"{name.decode()}-".encode().startswith(identities) for name in folded), "no identity comes back")
    require(not {b"connection", b"transfer-encoding", b"upgrade"} & set(folded), "nothing of one hop")
    return bool(made)


@target("addon-credentials", lambda data: bearer(_fields(data)), refusals=_REFUSED)
def _credentials(token: bytes, data: bytes) -> None:
    carriers = [value for name, value in _fields(data) if canonical(name) == b"authorization"]
    require(len(carriers) == 1 and carriers[0].strip().endswith(token), "one header, and its end")
    require(bool(token) and b" " not in token and b"," not in token, "one token")


# Tokens of an issuer

_MOMENT: Final = int(NOW.timestamp())
_ISSUER: Final = "https://issuer.example"
_KEY: Final = verifying_key(NODE_KEY.public_key())
_EXPECTED: Final = jwt.Expected(issuer=_ISSUER, audiences=frozenset({"vault"}), longest_lifetime=3600)
_LONG: Final = 40
"""Characters of a part that no message has by chance."""
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
"""Members; as a kid each of them is as good as another text."""


def _verified(data: bytes) -> bool:
    try:
        unverified = jwt.parse(data)
        require(unverified.token == data, "a token is what was read")
        claims = jwt.verify(unverified, (_KEY,), _EXPECTED, _MOMENT)
    except Denied as denied:
        require(denied.reason.startswith("JWT"), "a reason of tokens")
        told = str(denied).encode("utf-8", "replace")
        require(not any(part in told for part in data.split(b".") if len(part) > _LONG), "no part of it is told")
        return False
    require((claims.issuer, claims.key_id, claims.algorithm) == (_ISSUER, _KEY.kid, "ES256"), "the one issuer and key")
    require("vault" in claims.audiences and bool(claims.subject), "for us, and somebody's")
    require(-jwt.MAX_LEEWAY < claims.expires - _MOMENT <= 3600 + jwt.MAX_LEEWAY, "good now, and not for too long")
    return True


target("identity-jwt", lambda data: data)(lambda token, _: _verified(token))


@target("identity-jwt-signed", lambda data: data.partition(b"\n"))
def _signed(parts: tuple[bytes, bytes, bytes], _data: bytes) -> bool:
    """Sign what stands before and behind the first line end as header and claims: an issuer may write anything."""
    header, _, claims = parts
    text = f"{encode_base64url(header)}.{encode_base64url(claims)}".encode()
    r, s = decode_dss_signature(NODE_KEY.sign(text, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
    if not _verified(text + b"." + encode_base64url(r.to_bytes(32) + s.to_bytes(32)).encode()):
        return False
    members = json.loads(header)
    require(set(members) <= {"alg", "kid", "typ", "x5t", "x5t#S256"}, "no other header says yes")
    require(members["alg"] == "ES256" and members["kid"] == _KEY.kid, "no other key says yes")
    return True


# An issuer


def _published(keys: Sequence[VerifyingKey]) -> bytes:
    return documents(_ISSUER, f"{_ISSUER}/keys", tuple(keys)).jwks


@target("identity-jwks", lambda data: data)
def _jwks(data: bytes, _data: bytes) -> bool:
    for skip_unusable in (True, False):
        try:
            keys = read_jwks(data, skip_unusable=skip_unusable)
        except KeysError:
            continue
        written = _published(keys)
        members = {name for key in json.loads(written)["keys"] for name in key}
        require(_PRIVATE.isdisjoint(members), "no private member leaves")
        require(read_jwks(written) == keys, "what is written is read again")
        return True
    return False


@target("identity-pem", read_pem, refusals=(KeysError,))
def _pem(keys: Sequence[VerifyingKey], _data: bytes) -> None:
    unique = list({key.kid: key for key in keys}.values())
    require(list(read_jwks(_published(keys))) == unique, "every key is published, once")


@target("identity-configuration", issuer_documents.parse_configuration, refusals=(DocumentError,), max_len=2048)
def _configuration(configuration: Configuration, _data: bytes) -> None:
    require(issuer_documents.issuer_url(configuration.issuer) == configuration.issuer, "an issuer's URL")
    require(issuer_documents.jwks_url(configuration.jwks_uri).startswith("https://"), "keys over https")


_OWN: Final = "https://issuer.example/c1"
_URI: Final = issuer_documents.default_jwks_uri(_OWN)
_SIGNER, _OLD, _OTHER = (verifying_key(each.public_key()) for each in (NODE_KEY, AUTHORITY_KEY, TPM_KEY))
_WANTED: Final = Desired(issuer=_OWN, jwks_uri=_URI, keys=(_SIGNER,))
_STANDING: Final = states.IssuerState(
    issuer=_OWN,
    owner="nodeattest",
    updated=_MOMENT - 9,
    keys=(_SIGNER, _OLD),
    absent_since={_OLD.kid: _MOMENT - 99},
)
"""A state with a key that signs and an old one."""


@target("issuer-state", states.parse_state, refusals=(ValueError,))
def _state(state: states.IssuerState, data: bytes) -> None:
    require(states.parse_state(states.encode_state(state)) == state, "a state is read as it was written")
    require(b'"d"' not in states.encode_state(state), "no private member")
    try:
        planned = plan(Current(state=StoredObject(body=data, e_tag="1")), replace(_WANTED, owner=state.owner), _MOMENT)
    except (PublishError, KeysError):  # another issuer's, or a clock's far ahead; another key under our name
        return
    absent = state.absent_since
    stay = {key.kid for key in state.keys if absent.get(key.kid, _MOMENT) + RETIRE_AFTER > _MOMENT}
    require(all(note.isprintable() for note in planned.notes), "no note of many lines")
    require(stay <= {key.kid for key in planned.documents.keys}, "no key goes before its time")


@target("issuer-published", lambda data: data.partition(b"\n"))
def _documents(parts: tuple[bytes, bytes, bytes], _data: bytes) -> bool:
    """Read a configuration in the first line and a key set behind it, once beside our state and once to be adopted."""
    first, _, rest = parts
    found = Current(
        configuration=StoredObject(body=first, e_tag="1") if first else None,
        jwks=StoredObject(body=rest, e_tag="1") if rest else None,
    )
    ours = replace(found, state=StoredObject(body=states.encode_state(_STANDING), e_tag="1"))
    try:
        planned = plan(ours, _WANTED, _MOMENT)
        ours_only = documents(_OWN, _URI, (_SIGNER, _OLD)).jwks
        require(planned.documents.jwks == ours_only, "a key set in the store adds and removes no key")
        require(all(note.isprintable() for note in planned.notes), "no note of many lines")
        adopted = plan(found, replace(_WANTED, adopt=True), _MOMENT)
    except (ForeignIssuerError, KeysError):
        return False
    there = {key.kid for key in read_jwks(rest)} if rest else set[str]()
    require(there <= {key.kid for key in adopted.documents.keys}, "every adopted key stays")
    return True
