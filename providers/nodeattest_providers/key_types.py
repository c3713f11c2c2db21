"""The kinds of keys that certificates and tokens have here, as ``cryptography`` names them."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

PrivateKey = EllipticCurvePrivateKey | RSAPrivateKey
PublicKey = EllipticCurvePublicKey | RSAPublicKey
