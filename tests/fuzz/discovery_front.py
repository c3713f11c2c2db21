"""Targets of the discovery front: JWTs and Authorization headers of clients, TokenReviews of an API server."""

from __future__ import annotations

import json
from typing import Final

from fuzz.discovery import SIGNER
from fuzz.keys import NOW
from fuzz.target import Target, refused, require
from nodeattest_discovery import jwt
from nodeattest_discovery.front import tokenreview
from nodeattest_discovery.front.service import authenticate, bearer_token
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, encode, secret_name
from nodeattest_discovery.token import is_token_id
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers.errors import Denied, Reason

MOMENT: Final = int(NOW.timestamp())
"""Seconds since the epoch at which everything is evaluated."""
_AUDIENCE: Final = "cluster-1"
_STORED: Final = {
    "metadata": {"name": secret_name(SIGNER.id)},
    "type": SECRET_TYPE,
    "data": encode(TokenSecret(token=SIGNER)),
}
_REASON: Final = Reason.DISCOVERY_REQUEST_REFUSED


def _jwt(data: bytes) -> bool:
    try:
        unverified = jwt.parse(data)
    except Denied as denied:
        return refused(denied, _REASON)
    require(is_token_id(unverified.token_id), "a kid is the id of a token")
    spelt = unverified.signed + b"." + encode_base64url(unverified.signature).encode()
    require(spelt == data, "a JWT has one spelling")
    macs: list[bytes] = []

    def mac(key: bytes, message: bytes) -> bytes:
        macs.append(jwt.hs256(key, message))
        return macs[-1]

    try:
        jwt.verify(unverified, SIGNER, now=MOMENT, audience=_AUDIENCE, mac=mac)
    except Denied as denied:
        require(len(macs) == 1, "one MAC, whatever is wrong")
        return refused(denied, _REASON)
    require(macs == [unverified.signature], "one MAC, and it is the signature")
    require(0 < unverified.expires - MOMENT <= jwt.LONGEST, "good now, and for two minutes at most")
    require(unverified.audience in {None, _AUDIENCE}, "no other cluster's")
    return True


def _signed(data: bytes) -> bool:
    """Sign what stands before and behind the first line end as header and claims: a token holder may write anything."""
    header, _, claims = data.partition(b"\n")
    signed = f"{encode_base64url(header)}.{encode_base64url(claims)}"
    mac = encode_base64url(jwt.hs256(SIGNER.secret.encode(), signed.encode()))
    if not _jwt(f"{signed}.{mac}".encode()):
        return False
    members = json.loads(header)
    require(members == {"alg": "HS256", "kid": SIGNER.id, "typ": "JWT"}, "no other header says yes")
    require(set(json.loads(claims)) <= {"sub", "exp", "iat", "aud"}, "no other claim says yes")
    return True


def _authorization(data: bytes) -> bool:
    """Read a header as aiohttp hands it over."""
    try:
        unverified = jwt.parse(bearer_token(data.decode("utf-8", "surrogateescape")))
        token = authenticate(unverified, lambda token_id: _STORED if token_id == SIGNER.id else None, now=MOMENT)
    except Denied as denied:
        return refused(denied, _REASON)
    require(token == SIGNER, "nobody is anybody else")
    return True


def _review(data: bytes) -> bool:
    try:
        review = tokenreview.parse(data)
    except Denied as denied:
        return refused(denied, _REASON)
    require(bool(review.token), "a token to ask about")
    nobody = json.loads(tokenreview.answer(review, None))
    require(nobody["status"] == {"authenticated": False}, "nobody is nobody")
    audience = review.audiences[0] if review.audiences else None
    said = json.loads(tokenreview.answer(review, SIGNER.id, audience))
    require(said["apiVersion"] == review.api_version, "an answer in the version of the question")
    user = {"username": "nodeattest:discovery:abcdef", "groups": ["nodeattest:discovery"]}
    require(said["status"]["user"] == user, "somebody who reads, whatever was asked")
    return True


TARGETS: Final = (
    Target("discovery-jwt", _jwt),
    Target("discovery-jwt-signed", _signed),
    Target("discovery-authorization", _authorization),
    Target("discovery-review", _review),
)
