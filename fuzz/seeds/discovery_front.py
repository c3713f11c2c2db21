"""Seeds of the discovery front's targets."""

from __future__ import annotations

import json

from fuzz.discovery import SIGNER
from fuzz.discovery_front import MOMENT
from nodeattest_discovery import jws
from nodeattest_discovery.jwt import mint

__all__ = ["seeds"]


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    good, named = mint(SIGNER, MOMENT).encode(), mint(SIGNER, MOMENT, audience="cluster-1").encode()
    detached = jws.sign(b"{}", SIGNER).encode()
    return {
        "discovery-jwt": [good, named, mint(SIGNER, MOMENT - 60).encode(), detached, good + b"=", b".."],
        "discovery-jwt-signed": [*_signed()],
        "discovery-authorization": [b"Bearer " + good, b"bearer " + good, b"Basic eA==", good, b"Bearer  " + good],
        "discovery-review": [*_reviews(good.decode())],
    }


def _signed() -> list[bytes]:
    header: dict[str, object] = {"typ": "JWT", "alg": "HS256", "kid": SIGNER.id}
    claims: dict[str, object] = {"sub": SIGNER.id, "exp": MOMENT + 120}
    made = [
        (header, claims),
        (header, {**claims, "iat": MOMENT, "aud": "cluster-1"}),
        ({**header, "crit": ["exp"]}, claims),
        (header, {**claims, "exp": float(MOMENT)}),
        (header, {**claims, "aud": ["cluster-1"]}),
    ]
    return [b"%b\n%b" % (json.dumps(one).encode(), json.dumps(other).encode()) for one, other in made]


def _reviews(token: str) -> list[bytes]:
    review: dict[str, object] = {
        "kind": "TokenReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"creationTimestamp": None},
        "spec": {"token": token, "audiences": ["https://kubernetes.default.svc"]},
        "status": {"user": {}},
    }
    older: dict[str, object] = {"apiVersion": "authentication.k8s.io/v1beta1", "spec": {"token": "x"}}
    empty: dict[str, object] = {"spec": {}}
    return [json.dumps(review | changes).encode() for changes in ({}, older, empty)]
