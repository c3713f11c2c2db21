"""Keys and a clock, for tests of publication."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_identity.issuer.documents import default_jwks_uri
from nodeattest_identity.issuer.keys import VerifyingKey, read_jwks, verifying_key
from nodeattest_identity.publish.plan import Desired
from nodeattest_identity.publish.store import DirectoryStore

ISSUER = "https://issuer.example/c1"
START = 1_800_000_000
HOUR = 3600
YEAR = 8761 * HOUR


@cache
def private(name: str) -> ec.EllipticCurvePrivateKey:
    """One key a name, made once."""
    assert name
    return ec.generate_private_key(ec.SECP256R1())


def key(name: str) -> VerifyingKey:
    return verifying_key(private(name).public_key())


def wanted(*names: str) -> Desired:
    return Desired(issuer=ISSUER, jwks_uri=default_jwks_uri(ISSUER), keys=tuple(map(key, names)))


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


def directory(path: Path) -> DirectoryStore:
    return DirectoryStore(path)


def kids(*names: str) -> list[str]:
    return [key(name).kid for name in names]


def stood(root: Path) -> list[str]:
    """The names of the keys that are published."""
    return [each.kid for each in read_jwks((root / "openid/v1/jwks").read_bytes())]


def files(root: Path) -> dict[Path, bytes]:
    """Everything that stands there."""
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
