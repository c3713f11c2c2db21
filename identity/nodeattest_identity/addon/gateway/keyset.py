"""The gateway's signing keys: which one signs, which are published, and when the next one comes. Pure.

Promises: a key is published for ``RotationSchedule.ahead`` before it signs, except the very first, when nobody can have
cached a key set without it. A key stays published for ``RotationSchedule.behind`` after its successor signs, which is
longer than any token lives. Bytes give a ``KeySet`` or ``KeySetError``, which quotes no key; parsing and encoding are
inverse.
Leaves to others: storage (``key_store``), random keys, the clock.
Source: Kubernetes pkg/serviceaccount/jwt.go (a new key is published before it signs); companion proposal 002, rotation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nodeattest_identity.issuer.keys import KeysError, VerifyingKey
from nodeattest_identity.tokens.signing import SigningKey, read_signing_key, signing_key
from nodeattest_kube.jsontypes import JsonObject, JsonValue, parse_json
from nodeattest_providers.key_types import PrivateKey

__all__ = [
    "Algorithm",
    "KeySet",
    "KeySetError",
    "RotationSchedule",
    "ScheduledKey",
    "encode_keyset",
    "generate_key",
    "parse_keyset",
    "rotate",
]

Algorithm = Literal["ES256", "RS256"]

_RSA_BITS: Final = 2048
_MAX_KEYS: Final = 16
"""A rotation has two, and three for a while if keys are rotated early."""
_LATEST: Final = 2**40
"""Seconds since the epoch."""


class KeySetError(ValueError):
    """Stored keys that cannot be used."""


@dataclass(frozen=True, slots=True)
class ScheduledKey:
    """A key pair and the time from which it signs."""

    signing: SigningKey = field(repr=False)
    signs_from: int
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """All keys, in the order in which they sign."""

    keys: tuple[ScheduledKey, ...] = ()

    def signer(self, now: float) -> SigningKey | None:
        """Return the newest key whose time has come; the oldest if our clock is behind the clock of its creator."""
        ready = [key for key in self.keys if key.signs_from <= now]
        chosen = ready[-1:] or self.keys[:1]
        return chosen[0].signing if chosen else None

    @property
    def published(self) -> tuple[VerifyingKey, ...]:
        """Public keys of all that signed, sign or will sign."""
        return tuple(key.signing.verifying for key in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationSchedule:
    """When keys change, in seconds."""

    period: float = 30 * 86_400.0
    """How long a key signs."""
    ahead: float = 4_500.0
    """How long a key is published before it signs: the documents' max-age of an hour, and a quarter for clock
    differences, replicas that read the Secret later, and publication of the documents elsewhere."""
    behind: float = 900.0
    """How long a key is published after it signed: a token's minute, and clock differences."""


def generate_key(algorithm: Algorithm) -> PrivateKey:
    """Generate a private key."""
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, _RSA_BITS)
    return ec.generate_private_key(ec.SECP256R1())


def rotate(keyset: KeySet, now: float, schedule: RotationSchedule, make: Callable[[], PrivateKey]) -> KeySet | None:
    """Return the keys as they must be now; None if they need no change.

    1. Without keys: one that signs at once. 2. Remove keys whose successor has signed for long enough. 3. If the newest
    key is near the end of its period, publish its successor.
    """
    # 1
    if not keyset.keys:
        return KeySet((ScheduledKey(signing_key(make()), int(now)),))
    # 2
    kept = tuple(
        key
        for key, successor in zip(keyset.keys, (*keyset.keys[1:], None), strict=True)
        if successor is None or successor.signs_from + schedule.behind > now
    )
    # 3
    if kept[-1].signs_from + schedule.period - schedule.ahead <= now:
        kept = (*kept, ScheduledKey(signing_key(make()), int(now + schedule.ahead) + 1))
    return None if kept == keyset.keys else KeySet(kept)


def encode_keyset(keyset: KeySet) -> bytes:
    """Encode the keys, private keys included."""
    keys: list[JsonValue] = [{"key": _pem(key.signing), "signsFrom": key.signs_from} for key in keyset.keys]
    return json.dumps({"keys": keys}, separators=(",", ":"), sort_keys=True).encode()


def parse_keyset(data: bytes) -> KeySet:
    """Read what ``encode_keyset`` wrote; raises ``KeySetError``."""
    try:
        stored = parse_json(data)
    except ValueError:
        raise KeySetError("expected keys in JSON, got something else") from None
    entries = stored.get("keys")
    if not isinstance(entries, list) or not 0 < len(entries) <= _MAX_KEYS or set(stored) != {"keys"}:
        raise KeySetError(f"expected one to {_MAX_KEYS} keys, got something else")
    keys = tuple(_key(entry) for entry in entries)
    if len({key.signing.verifying.kid for key in keys}) < len(keys) or list(keys) != sorted(
        keys, key=lambda key: key.signs_from
    ):
        raise KeySetError("expected different keys, in the order in which they sign, got others")
    return KeySet(keys)


def _key(entry: JsonValue) -> ScheduledKey:
    found: JsonObject = entry if isinstance(entry, dict) else {}
    pem, signs_from = found.get("key"), found.get("signsFrom")
    if not isinstance(pem, str) or set(found) != {"key", "signsFrom"}:
        raise KeySetError("expected key and signsFrom of each key, got others")
    if isinstance(signs_from, bool) or not isinstance(signs_from, int) or not 0 <= signs_from <= _LATEST:
        raise KeySetError("expected signsFrom in whole seconds since 1970, got something else")
    try:
        signing = read_signing_key(pem.encode(errors="replace"))
    except KeysError as error:
        raise KeySetError(str(error)) from None
    return ScheduledKey(signing, signs_from)


def _pem(key: SigningKey) -> str:
    return key.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
