"""Seeds of publication: states, and documents as they may stand in a place."""

from __future__ import annotations

from dataclasses import replace

from fuzz.issuer_publish import PUBLISHED, STANDING
from fuzz.keys import TPM_KEY
from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.issuer.keys import verifying_key
from nodeattest_identity.publish import state as states

__all__ = ["seeds"]


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    first, old = STANDING.keys
    desired_again = replace(STANDING, keys=(first, replace(old, absent_since=None)))
    sound = states.encode(STANDING)
    other = documents("https://other.example", "https://other.example/k", (verifying_key(TPM_KEY.public_key()),))
    return {
        "issuer-state": [
            sound,
            states.encode(desired_again),
            states.encode(replace(STANDING, issuer="https://other.example", owner="", keys=(first,))),
            sound.replace(b'"kty": "EC"', b'"kty": "EC", "d": "AA"', 1),
            sound.replace(b'"updated": ', b'"updated": -'),
            b"{}",
        ],
        "issuer-published": [
            PUBLISHED.configuration + b"\n" + PUBLISHED.jwks,
            PUBLISHED.configuration + b"\n",
            b"\n" + PUBLISHED.jwks,
            PUBLISHED.configuration + b"\n" + other.jwks,
            other.configuration + b"\n" + other.jwks,
            b'{"issuer":"https://issuer.example/c1","jwks_uri":"http://x"}\n{"keys":[]}',
            b"\n",
        ],
    }
