"""What is to be public, and how long old keys stay. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nodeattest_identity.issuer.documents import MAX_AGE
from nodeattest_identity.issuer.keys import VerifyingKey

__all__ = ["DAY", "RETIRE_AFTER", "Desired"]

RETIRE_AFTER: Final = 8761 * 3600
"""Seconds that a key stays after nobody wants it: the longest life of a service account's token, a year and an hour."""
DAY: Final = 24 * 3600
"""Seconds; how long caches are taken to hold an adopted key set of which nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What is to be public."""

    issuer: str
    jwks_uri: str
    keys: tuple[VerifyingKey, ...]
    owner: str = "nodeattest"
    """Whose documents they are: two clusters by mistake at one place must not trust each other's tokens."""
    max_age: int = MAX_AGE
    """Seconds that others may keep the documents."""
    retire_after: int = RETIRE_AFTER
    adopt: bool = False
    """Take over documents of this very issuer that bear no mark of ours; all their keys stay."""
    revoked: frozenset[str] = frozenset()
    """Names of keys that go at once, whatever lives: they leaked."""
