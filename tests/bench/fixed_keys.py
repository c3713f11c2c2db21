"""Keys of software TPMs that are the same in every process: they follow from a number."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric import ec


def fixed_key(what: str, number: int | None) -> ec.EllipticCurvePrivateKey:
    """Make the key of a number; None: a new one."""
    if number is None:
        return ec.generate_private_key(ec.SECP256R1())
    drawn = hashlib.sha256(f"{what} {number}".encode()).digest()[:31]  # 31 bytes: below the order of the curve
    return ec.derive_private_key(int.from_bytes(drawn, "big") + 1, ec.SECP256R1())
