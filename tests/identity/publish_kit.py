"""Keys, a clock and stores that fail, for tests of publication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_identity.issuer.documents import default_jwks_uri
from nodeattest_identity.issuer.keys import VerifyingKey, read_jwks, verifying_key
from nodeattest_identity.publish.plan import Desired, IssuerState, parse_state
from nodeattest_identity.publish.store import DirectoryStore, ObjectStore, StoredObject, Write

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


@dataclass
class Faulty(ObjectStore):
    """A store that is like another until its moment has come."""

    inner: ObjectStore
    before_write: Callable[[int, str], None] = lambda _number, _path: None
    content_type: str | None = None
    written: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.name = self.inner.name

    async def read(self, path: str, /) -> StoredObject | None:
        found = await self.inner.read(path)
        return found if found is None else replace(found, content_type=self.content_type)

    async def write(self, write: Write, /) -> None:
        self.before_write(len(self.written), write.path)
        await self.inner.write(write)
        self.written.append(write.path)


def directory(path: Path) -> DirectoryStore:
    return DirectoryStore(path)


def stood(root: Path) -> list[str]:
    """The names of the keys that are published."""
    return [each.kid for each in read_jwks((root / "openid/v1/jwks").read_bytes())]


def state_of(root: Path) -> IssuerState:
    return parse_state((root / ".nodeattest/issuer-state.json").read_bytes())


def files(root: Path) -> dict[Path, bytes]:
    """Everything that stands there."""
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def kids(*names: str) -> list[str]:
    return [key(name).kid for name in names]
