"""The gateway's signing keys in the one Secret that all replicas share, their rotation, and the tokens.

A key is published for ``ahead`` before it signs, except the very first, and for ``behind`` after it signed. Every write
of the Secret is a compare-and-swap, and an unreadable Secret is never replaced.
Source: Kubernetes pkg/serviceaccount/jwt.go; companion proposals 002, rotation, and 003, "Properties of this token".
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final, Literal

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_identity.tokens.jwt import SigningKey, mint, read_signing_key, signing_key
from nodeattest_kube.answers import parse_json
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.secret_store import SecretContent, SecretStore, secret_bytes
from nodeattest_parsing.objects import number
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.keys import PrivateKey

Algorithm = Literal["ES256", "RS256"]

LIFETIME: Final = 60
"""Seconds of a token; the longest that proposal 003 allows."""
_MAX_TOKEN: Final = 7_168
"""Bytes of a token; a header field may have 8190 in most servers, ours included."""
_RSA_BITS: Final = 2048
_MAX_KEYS: Final = 16
"""A rotation has two, and three for a while if keys are rotated early."""
_LATEST: Final = 2**40
"""Seconds since the epoch."""
SECRET_NAME: Final = "addon-auth-gateway-keys"
_DATA: Final = "keys.json"
_PERIOD: Final = 60.0
"""Seconds between two reads; a new key waits more than an hour before it signs."""
_RETRY: Final = 5.0
"""Seconds after a failure."""
_STALE: Final = 600.0
"""Seconds; less than a key stays published after it was succeeded (``RotationSchedule.behind``)."""

log = logging.getLogger(__name__)


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
    keys: list[JsonValue] = []
    for key in keyset.keys:
        pem = key.signing.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        keys.append({"key": pem.decode(), "signsFrom": key.signs_from})
    return json.dumps({"keys": keys}, separators=(",", ":"), sort_keys=True).encode()


def parse_keyset(data: bytes) -> KeySet:
    """Parse what ``encode_keyset`` wrote; raises ``KeysError``, which quotes no key."""
    try:
        stored = parse_json(data)
    except ValueError:
        raise KeysError("expected keys in JSON, got something else") from None
    entries = stored.get("keys")
    if not isinstance(entries, list) or not 0 < len(entries) <= _MAX_KEYS or set(stored) != {"keys"}:
        raise KeysError(f"expected one to {_MAX_KEYS} keys, got something else")
    keys = tuple(_key(entry) for entry in entries)
    times = [key.signs_from for key in keys]
    if len({key.signing.verifying.kid for key in keys}) < len(keys) or times != sorted(times):
        raise KeysError("expected different keys, in the order in which they sign, got others")
    return KeySet(keys)


def _key(entry: JsonValue) -> ScheduledKey:
    if not isinstance(entry, dict) or set(entry) != {"key", "signsFrom"}:
        raise KeysError("expected key and signsFrom of each key, got others")
    pem, signs_from = entry["key"], number(entry, "signsFrom")
    if not isinstance(pem, str) or signs_from is None or not 0 <= signs_from <= _LATEST:
        raise KeysError("expected a key in PEM, and signsFrom in whole seconds since 1970, got something else")
    return ScheduledKey(read_signing_key(pem.encode(errors="replace")), signs_from)


class KeyStore:
    """The keys of all replicas, as of the last read."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        schedule: RotationSchedule,
        algorithm: Algorithm,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``now`` is seconds since the epoch, ``clock`` monotonic seconds."""
        self._secret = SecretStore(client, namespace=namespace, name=SECRET_NAME)
        self._schedule = schedule
        self._algorithm: Algorithm = algorithm
        self._now = now
        self._clock = clock
        self.keyset = KeySet()
        """The keys as of the last read; empty before the first."""
        self._last_read = float("-inf")
        self._last_message = ""

    @property
    def published(self) -> tuple[VerifyingKey, ...]:
        """Public keys as of the last read."""
        return self.keyset.published

    def signer(self, now: float) -> SigningKey | None:
        """Return the signing key; None while no key is known to be current."""
        return None if self.unready_reason() else self.keyset.signer(now)

    def unready_reason(self) -> str | None:
        if not self.keyset.keys:
            return self._last_message or "the signing keys were not read yet"
        if self._clock() - self._last_read > _STALE:
            return f"the signing keys were not read for more than {_STALE:.0f} s"
        return None

    async def refresh(self) -> None:
        """Read the Secret, and create or update it if due; raises ``ApiError`` and ``KeysError``."""
        secret = await self._secret.update(self._next_content)
        self.keyset, self._last_read, self._last_message = _keyset_of(secret), self._clock(), ""

    def _next_content(self, secret: JsonObject | None) -> SecretContent | None:
        keyset = KeySet() if secret is None else _keyset_of(secret)
        wanted = rotate(keyset, self._now(), self._schedule, partial(generate_key, self._algorithm))
        if wanted is None:
            return None
        added = len({key.kid for key in wanted.published} - {key.kid for key in keyset.published})
        log.info("changing the signing keys: %d new, %d in all", added, len(wanted.keys))
        return SecretContent({_DATA: encode_keyset(wanted)})

    async def run(self) -> None:
        """Keep the keys fresh until cancelled; an error is logged once."""
        while True:
            delay = _RETRY
            try:
                await self.refresh()
                delay = _PERIOD
            except (ApiError, KeysError) as error:
                message = f"Secret {self._secret.name}: {error}"
                if isinstance(error, KeysError):
                    message += "; delete it, and the gateway makes another: tokens of the last minute are lost"
                if message != self._last_message:
                    log.warning("cannot read or change the signing keys: %s", message)
                self._last_message = message
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))  # noqa: S311 - spreads replicas


def _keyset_of(secret: JsonObject | None) -> KeySet:
    data = secret_bytes(secret, _DATA)
    if data is None:
        raise KeysError(f"expected keys in {_DATA}, got something else")
    return parse_keyset(data)


def mint_token(key: SigningKey, issuer: str, user: UserInfo, audience: str, *, now: float) -> str:
    """Mint a token at ``now``, seconds since the epoch; raises ``RefusalError``."""
    extra: JsonObject = {}
    if user.uid:
        extra["uid"] = user.uid
    if user.groups:
        extra["groups"] = list(user.groups)
    token = mint(key, issuer=issuer, subject=user.user, audience=audience, now=now, lifetime=LIFETIME, extra=extra)
    if len(token) > _MAX_TOKEN:
        raise RefusalError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"expected a name and groups that fit into a token of {_MAX_TOKEN} bytes, got {len(token)}",
        )
    return token
