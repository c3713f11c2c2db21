"""Seeds of the identity room's targets."""

from __future__ import annotations

import json

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fuzz.identity_tokens import AUDIENCE, ISSUER, KEY, MOMENT, signed
from fuzz.keys import AUTHORITY_KEY, NODE_KEY, authority, key_pem, pem_of
from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.issuer.keys import VerifyingKey, verifying_key

__all__ = ["seeds"]

_HEADER = {"alg": "ES256", "kid": KEY.kid}
_CLAIMS = {"aud": [AUDIENCE], "exp": MOMENT + 600, "iat": MOMENT, "iss": ISSUER, "nbf": MOMENT, "sub": "system:a:b"}


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    good = signed(_text(_HEADER), _text(_CLAIMS))
    made = documents(ISSUER, f"{ISSUER}/openid/v1/jwks", _keys())
    return {
        "identity-jwt": [good, good + b"=", good.replace(b".", b"..", 1), b"..", good.rpartition(b".")[0] + b"."],
        "identity-jwt-signed": [*_signed()],
        "identity-jwks": [made.jwks, *_key_sets(json.loads(made.jwks)["keys"])],
        "identity-pem": [*_pems()],
        "identity-configuration": [made.configuration, b'{"issuer":"https://a","jwks_uri":"http://a"}', b"{}"],
        "identity-caching": [b"public, max-age=3600", b'no-store, max-age="5"', b"max-age=60 120", b"s-maxage=1"],
    }


def _keys() -> list[VerifyingKey]:
    modulus = (1 << 2047) + 1  # a number is enough: nothing is signed with it
    numbers = rsa.RSAPublicNumbers(65537, modulus)
    others = (ec.derive_private_key(0xC0FFEE, curve).public_key() for curve in (ec.SECP384R1(), ec.SECP521R1()))
    return [KEY, verifying_key(numbers.public_key()), *map(verifying_key, others)]


def _signed() -> list[bytes]:
    made: list[tuple[object, object]] = [
        (_HEADER, _CLAIMS),
        ({**_HEADER, "typ": "JWT", "x5t": "AA"}, {**_CLAIMS, "aud": AUDIENCE, "jti": "1", "groups": ["a"]}),
        ({**_HEADER, "crit": ["b64"], "b64": False}, _CLAIMS),
        ({**_HEADER, "alg": "HS256"}, _CLAIMS),
        (_HEADER, {**_CLAIMS, "exp": MOMENT + 0.5}),
        (_HEADER, {**_CLAIMS, "exp": MOMENT + 3601}),
        (_HEADER, {**_CLAIMS, "iss": f"{ISSUER}/"}),
        (_HEADER, {**_CLAIMS, "kubernetes.io": {"namespace": "a", "pod": {"name": "b", "uid": "c"}}}),
    ]
    twice = _text(_CLAIMS)[:-1] + b',"sub":"x"}'
    return [b"%b\n%b" % (_text(one), _text(other)) for one, other in made] + [_text(_HEADER) + b"\n" + twice]


def _key_sets(keys: list[dict[str, object]]) -> list[bytes]:
    curve = keys[0]
    sets: list[list[dict[str, object]]] = [
        [curve, {"kty": "OKP", "crv": "Ed25519", "x": "AA", "kid": "1"}],
        [curve, curve],
        [{**curve, "d": "AA"}],
        [{"kty": "oct", "k": "AA", "kid": "1"}],
        [{**curve, "kid": "named otherwise", "use": "enc"}],
        [],
        [{**curve, "kid": "d"}],  # a name, and no member
    ]
    return [_text({"keys": each}) for each in sets]


def _pems() -> list[bytes]:
    public = NODE_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    other = AUTHORITY_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    return [public, public + other + public, pem_of(authority()), parameters + key_pem(NODE_KEY), public[:-20], b"none"]


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
