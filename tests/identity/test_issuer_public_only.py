"""Whatever private keys a file holds, in whatever form and order: nothing of them is in what an issuer publishes."""

from __future__ import annotations

import json
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.issuer.keys import read_jwks, read_pem, verifying_key
from nodeattest_parsing.strict_base64 import encode_base64url

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

MEMBERS: Final = {
    "RSA": ["use", "kty", "kid", "alg", "n", "e"],
    "EC": ["use", "kty", "kid", "crv", "alg", "x", "y"],
}
CURVES: Final[list[tuple[ec.EllipticCurve, int]]] = [
    (ec.SECP256R1(), 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551 - 1),
    (ec.SECP384R1(), 2**384 - 2**190),
    (ec.SECP521R1(), 2**521 - 2**260),
]
"""With the largest private key, or one a little smaller."""
RSA_KEYS: Final = [rsa.generate_private_key(*kind) for kind in ((65537, 2048), (3, 2048), (65537, 3072))]
"""Made once: each takes a tenth of a second."""


@st.composite
def elliptic(draw: st.DrawFn) -> ec.EllipticCurvePrivateKey:
    curve, largest = draw(st.sampled_from(CURVES))
    return ec.derive_private_key(draw(st.integers(1, largest)), curve)


def pem(key: PrivateKey, form: PrivateFormat | None) -> bytes:
    if form is None:
        return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def secrets(key: PrivateKey) -> list[int]:
    """Tell every number that only the private key has."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return [key.private_numbers().private_value]
    numbers = key.private_numbers()
    return [numbers.d, numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp]


FORMS: Final = st.sampled_from([PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL, None])
FILES: Final = st.lists(st.tuples(st.one_of(st.sampled_from(RSA_KEYS), elliptic()), FORMS), min_size=1, max_size=4)


@settings(max_examples=40)  # reading an RSA key checks its primes
@given(FILES)
def test_no_private_member_and_no_private_number_ever_comes_out(
    file: list[tuple[PrivateKey, PrivateFormat | None]],
) -> None:
    keys = read_pem(b"".join(pem(key, form) for key, form in file))
    made = documents("https://issuer.example", "https://issuer.example/jwks", keys)
    for member in json.loads(made.jwks)["keys"]:
        assert [*member] == MEMBERS[member["kty"]]
    for key, _ in file:
        for secret in secrets(key):
            written = encode_base64url(secret.to_bytes((secret.bit_length() + 7) // 8))
            if len(written) > 16:  # a tiny number stands in any text by chance
                assert written not in made.jwks.decode()
    assert read_jwks(made.jwks) == made.keys
    wanted = dict.fromkeys(verifying_key(key.public_key()).kid for key, _ in file)
    assert [key.kid for key in made.keys] == [*wanted]
